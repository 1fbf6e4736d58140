//! Users and groups of the file: whose the daemon is once it serves, and whom its sockets are for; and its port.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;

use crate::keys::{api, daemon, host_keys, tenant};
use crate::problem::Sink;
use crate::section::Section;
use crate::values::Account;

/// The user and group that the daemon takes once it has opened what needs root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaemonSection {
    /// `None`: it stays who it is.
    pub user: Option<Account>,
}

/// Where keys come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeysSection {
    /// The host key. `None`: a credential of the service manager, if there is one.
    pub host_key: Option<KeySource>,
}

/// Where the host key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A program with its arguments, at least one word.
    Command(Vec<String>),
}

/// The users that may use the API, besides root and the daemon's own user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiSection {
    /// A group whose members may do everything.
    pub operators: Option<Account>,
    /// A group whose members may look at everything.
    pub viewers: Option<Account>,
    /// The user of a tenant's socket may look at that tenant.
    pub tenants: bool,
    /// Address of a read-only TCP port for clients with the token: an address of this host only.
    pub listen: Option<SocketAddr>,
}

/// The users that may use a tenant's socket, besides root and the daemon's own user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketSection {
    /// Its owner.
    pub user: Option<Account>,
    /// Its group.
    pub group: Option<Account>,
    /// Its permission bits.
    pub mode: u32,
}

impl SocketSection {
    /// Whether others than the daemon's own user must be able to reach the socket.
    pub fn is_for_others(&self) -> bool {
        self.user.is_some() || self.mode & 0o077 != 0
    }
}

/// The section `[daemon]`.
pub(crate) fn read_daemon(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> DaemonSection {
    section.reject_unknown(sink);
    let user = daemon::USER.get(sink, section).map(Spanned::into_inner);
    DaemonSection { user }
}

/// The section `[keys]`.
pub(crate) fn read_keys(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> KeysSection {
    section.reject_unknown(sink);
    let file = host_keys::HOST_KEY.get(sink, section).map(|path| KeySource::File(path.into_inner()));
    let command = host_keys::KEY_COMMAND.get(sink, section).map(|words| KeySource::Command(words.into_inner()));
    if file.is_some() {
        section.forbid(sink, "key_command", "host_key names a file", "remove one of the two");
    }
    KeysSection { host_key: file.or(command) }
}

/// The section `[api]`.
pub(crate) fn read_api(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> ApiSection {
    section.reject_unknown(sink);
    let operators = api::OPERATORS.get(sink, section).map(Spanned::into_inner);
    let viewers = api::VIEWERS.get(sink, section).map(Spanned::into_inner);
    // What can't be read is a problem of the file already.
    let tenants = api::TENANTS.get_or_default(sink, section).unwrap_or_default();
    let listen = api::LISTEN.get(sink, section).map(Spanned::into_inner);
    ApiSection { operators, viewers, tenants, listen }
}

/// The keys of a tenant that say whom its socket is for. `None`: the mode can't be used.
pub(crate) fn read_socket(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<SocketSection> {
    let user = tenant::SOCKET_USER.get(sink, section).map(Spanned::into_inner);
    let group = tenant::SOCKET_GROUP.get(sink, section).map(Spanned::into_inner);
    let default = if group.is_some() { 0o660 } else { 0o600 };
    let mode = match section.has("socket_mode") {
        true => tenant::SOCKET_MODE.get(sink, section)?.into_inner(),
        false => default,
    };
    if group.is_some() && mode & 0o020 == 0 {
        let why = "its socket_mode keeps the group out";
        section.forbid(sink, "socket_group", why, "write socket_mode = \"0660\", or remove one of the two");
    }
    Some(SocketSection { user, group, mode })
}
