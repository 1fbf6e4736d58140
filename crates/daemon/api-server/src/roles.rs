//! Roles of API clients, by the credentials that the kernel gives for the other end of a connection.

use std::os::fd::AsFd;

use config::{Account, Config};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

/// The users and groups that the configuration allows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Roles {
    operators: Option<u32>,
    viewers: Option<u32>,
    tenants: bool,
}

/// A client's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything: root, the daemon's own user, an operator.
    Operator,
    /// Look at everything.
    Viewer,
    /// Look at the tenants whose sockets are this user's.
    Tenant(u32),
    /// Nothing.
    Nobody(u32),
}

impl Roles {
    /// As the section `[api]` says.
    pub fn new(config: &Config) -> Self {
        let id = |group: &Option<Account>| group.as_ref().and_then(|group| group.id);
        let api = &config.api;
        Self { operators: id(&api.operators), viewers: id(&api.viewers), tenants: api.tenants }
    }

    /// Whether others than root and the daemon's own user may ask.
    pub fn let_others_in(&self) -> bool {
        self.operators.is_some() || self.viewers.is_some() || self.tenants
    }

    /// The role of the client at the other end.
    ///
    /// # Errors
    /// The kernel doesn't tell.
    pub fn of(&self, client: impl AsFd) -> Result<Role, Errno> {
        let peer = socket_peercred(&client)?;
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        if uid == 0 || uid == geteuid().as_raw() {
            return Ok(Role::Operator);
        }
        let groups = confine::groups_of_peer(client.as_fd());
        let is_in = |group: Option<u32>| group.is_some_and(|group| gid == group || groups.contains(&group));
        Ok(match () {
            () if is_in(self.operators) => Role::Operator,
            () if is_in(self.viewers) => Role::Viewer,
            () if self.tenants => Role::Tenant(uid),
            () => Role::Nobody(uid),
        })
    }
}

impl Role {
    /// The user whose tenants the client sees; `None`: it sees all.
    pub fn sees_only(self) -> Option<u32> {
        match self {
            Self::Operator | Self::Viewer => None,
            Self::Tenant(uid) | Self::Nobody(uid) => Some(uid),
        }
    }
}
