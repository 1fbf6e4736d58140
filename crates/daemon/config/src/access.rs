//! Users and groups of the file: whose the daemon is once it serves, and whom its sockets are for; and its port.

use std::net::SocketAddr;

use toml::Spanned;
use toml::de::DeValue;

use crate::problem::Sink;
use crate::section::{Section, Wrong, boolean, clip, or, text};

/// A user or a group, by name or by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// As in the file.
    pub name: String,
    /// Looked up by [`Prepared::new`](crate::Prepared::new); before, only where the name is the number.
    pub id: Option<u32>,
}

/// Whom the daemon becomes once it has opened what takes root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaemonSection {
    /// `None`: it stays who it is.
    pub user: Option<Account>,
}

/// Who may ask the API, besides root and the daemon's own user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiSection {
    /// A group whose members may do everything.
    pub operators: Option<Account>,
    /// A group whose members may look at everything.
    pub viewers: Option<Account>,
    /// The user of a tenant's socket may look at that tenant.
    pub tenants: bool,
    /// Whoever has the token may look here by TCP too: an address of this host alone.
    pub listen: Option<SocketAddr>,
}

/// Who may use a tenant's socket, besides root and the daemon's own user.
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

fn account(value: &DeValue<'_>) -> Result<Account, Wrong> {
    let name = text(value)?;
    // What useradd(8) allows, and numbers.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
    if name.is_empty() || name.len() > 64 || name.starts_with('-') || !name.chars().all(allowed) {
        let what = format!("is {:?}", clip(&name));
        return Err(Wrong { what, remedy: "write the name or number of a user or group of this host".into() });
    }
    let id = name.parse().ok();
    Ok(Account { name, id })
}

fn mode(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let found = text(value).ok();
    let bits = found.as_deref().filter(|text| text.len() == 4 && text.starts_with('0'));
    let bits = bits.and_then(|text| u32::from_str_radix(text, 8).ok());
    // Writing is connecting, reading is for looks; nothing else means anything on a socket.
    bits.filter(|bits| bits & !0o666 == 0 && bits & 0o600 == 0o600).ok_or_else(|| Wrong {
        what: found.map_or_else(|| "is no text".into(), |found| format!("is {:?}", clip(&found))),
        remedy: "write \"0600\" (the user), \"0660\" (and the group) or \"0666\" (everybody)".into(),
    })
}

/// The section `[daemon]`.
pub(crate) fn read_daemon(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> DaemonSection {
    section.reject_unknown(sink);
    let user = section.get(sink, "user", account).map(Spanned::into_inner);
    DaemonSection { user }
}

/// The section `[api]`.
pub(crate) fn read_api(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> ApiSection {
    section.reject_unknown(sink);
    let operators = section.get(sink, "operators", account).map(Spanned::into_inner);
    let viewers = section.get(sink, "viewers", account).map(Spanned::into_inner);
    // What can't be read is a problem of the file already.
    let tenants = or(sink, section, "tenants", false, boolean).unwrap_or_default();
    let listen = section.get(sink, "listen", loopback).map(Spanned::into_inner);
    ApiSection { operators, viewers, tenants, listen }
}

/// An address that other hosts can't reach: what goes over it is not encrypted.
fn loopback(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    let found = text(value)?;
    let remedy = "write an address of this host alone with a port, \"127.0.0.1:9560\" or \"[::1]:9560\"; for other \
                  hosts, put a proxy with TLS before it";
    let wrong = |why: &str| Wrong { what: format!("is {:?}, {why}", clip(&found)), remedy: remedy.into() };
    let address: SocketAddr = found.parse().map_err(|_| wrong("which is no address with a port"))?;
    match address {
        _ if !address.ip().is_loopback() => Err(wrong("which other hosts may reach")),
        _ if address.port() == 0 => Err(wrong("which nobody could find")),
        _ => Ok(address),
    }
}

/// The keys of a tenant that say whom its socket is for. `None`: the mode can't be used.
pub(crate) fn read_socket(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<SocketSection> {
    let user = section.get(sink, "socket_user", account).map(Spanned::into_inner);
    let group = section.get(sink, "socket_group", account).map(Spanned::into_inner);
    let default = if group.is_some() { 0o660 } else { 0o600 };
    let mode = match section.has("socket_mode") {
        true => section.get(sink, "socket_mode", mode)?.into_inner(),
        false => default,
    };
    if group.is_some() && mode & 0o020 == 0 {
        let why = "its socket_mode keeps the group out";
        section.forbid(sink, "socket_group", why, "write socket_mode = \"0660\", or remove one of the two");
    }
    Some(SocketSection { user, group, mode })
}
