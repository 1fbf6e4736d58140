//! Users and groups of this host.

use std::ffi::CString;
use std::ops::Range;
use std::path::Path;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setfsgid, setfsuid};
use rustix::process::{geteuid, getgroups};
use rustix::thread::set_thread_groups;

use super::links::only_root_leads_to;
use crate::access::SocketSection;
use crate::config::Config;
use crate::problem::{ConfigErrors, Sink};
use crate::values::Account;

/// A process's users and groups, as the kernel sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Real, effective and saved user.
    pub uid: u32,
    /// Real, effective and saved group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Does something with files as this user, if the thread may: where that user could have put links, root must not
    /// follow them. What it makes belongs to this user.
    pub fn act<T>(&self, work: impl FnOnce() -> T) -> T {
        let raw = |gid: &u32| rustix::process::Gid::from_raw(*gid);
        let former = getgroups().ok().filter(|_| geteuid().is_root());
        if former.is_some() {
            // Root's own groups may have rights that this user has not.
            let _ = set_thread_groups(&self.groups.iter().map(raw).collect::<Vec<_>>());
        }
        let group = setfsgid(Gid::from_raw(self.gid));
        let user = setfsuid(Uid::from_raw(self.uid));
        let done = work();
        setfsuid(user);
        setfsgid(group);
        if let Some(groups) = former {
            let _ = set_thread_groups(&groups);
        }
        done
    }

    /// Does something with the file at `path`, if there is one: as root where only root could have put links on the
    /// way, or else as the user that the daemon will be, if it will be another one.
    pub fn act_at<T>(identity: Option<&Self>, path: Option<&Path>, work: impl FnOnce() -> T) -> T {
        match (identity, path) {
            (Some(identity), Some(path)) if !only_root_leads_to(path) => identity.act(work),
            _ => work(),
        }
    }
}

impl Config {
    /// As [`Identity::act_at`], with the [identity](Config::identity) that the daemon takes.
    pub(crate) fn act_at<T>(&self, path: Option<&Path>, work: impl FnOnce() -> T) -> T {
        // What is wrong with it is told by those who take it.
        let identity = self.identity().ok().flatten();
        Identity::act_at(identity.as_ref(), path, work)
    }

    /// Finds the numbers of all users and groups of the file. Asks the host's name service, which may read any file
    /// and talk to any socket: so once, and before the daemon is confined.
    ///
    /// # Errors
    /// There is no such user or group.
    pub(crate) fn look_up_accounts(&mut self) -> Result<(), ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        let daemon_mark = self.marks.daemon.as_ref();
        look_up(&mut sink, daemon_mark, &mut self.daemon.user, &mut None);
        for group in [&mut self.api.operators, &mut self.api.viewers] {
            look_up(&mut sink, self.marks.api.as_ref(), &mut None, group);
        }
        for tenant in &mut self.tenants {
            let SocketSection { user, group, .. } = &mut tenant.socket;
            look_up(&mut sink, Some(&tenant.marks.name), user, group);
        }
        sink.finish()
    }

    /// Finds them among those of a configuration that were found before, for a process that may not ask any more.
    ///
    /// # Errors
    /// Each tenant with a name that nobody had before.
    pub fn take_accounts_of(&mut self, known: &Self) -> Result<(), ConfigErrors> {
        let sockets = || known.tenants.iter().map(|tenant| &tenant.socket);
        let users: Vec<&Account> = sockets().flat_map(|it| &it.user).chain(&known.daemon.user).collect();
        let of_api = known.api.operators.iter().chain(&known.api.viewers);
        let groups = sockets().flat_map(|it| &it.group).chain(of_api);
        let groups: Vec<&Account> = groups.collect();
        let mut sink = Sink::new(&self.text);
        let mut find = |account: &mut Option<Account>, known: &[&Account], mark: Option<&Range<usize>>, ask: &str| {
            let Some(account) = account.as_mut().filter(|account| account.id.is_none()) else { return };
            account.id = known.iter().find(|other| other.name == account.name).and_then(|other| other.id);
            if account.id.is_none() {
                let what = format!("{:?} can't be looked up while the daemon runs", account.name);
                sink.maybe_at(mark, what, format!("write the number instead (`{ask} {}`)", account.name));
            }
        };
        for tenant in &mut self.tenants {
            let mark = Some(&tenant.marks.name);
            find(&mut tenant.socket.user, &users, mark, "id -u");
            find(&mut tenant.socket.group, &groups, mark, "getent group");
        }
        for group in [&mut self.api.operators, &mut self.api.viewers] {
            find(group, &groups, self.marks.api.as_ref(), "getent group");
        }
        find(&mut self.daemon.user, &users, self.marks.daemon.as_ref(), "id -u");
        sink.finish()
    }

    /// The identity that the daemon takes. `None`: it keeps its own.
    ///
    /// # Errors
    /// The daemon is not root, so it can't change its identity.
    pub fn identity(&self) -> Result<Option<Identity>, ConfigErrors> {
        let Some(Account { name, id: Some(uid) }) = &self.daemon.user else { return Ok(None) };
        let wrong = |what: String, remedy: String| {
            let mut sink = Sink::new(&self.text);
            sink.maybe_at(self.marks.daemon.as_ref(), what, remedy);
            ConfigErrors { file: self.file().to_owned(), problems: sink.into_problems() }
        };
        if !geteuid().is_root() {
            if *uid == geteuid().as_raw() {
                return Ok(None);
            }
            let what = format!("the daemon can't become user {name:?}: it is not started as root");
            return Err(wrong(what, "start it as root or as that user, or remove `user`".into()));
        }
        if *uid == 0 {
            let what = "user = \"root\" under [daemon] is no user to become".into();
            return Err(wrong(what, "name a user of its own, such as evenkeel (useradd --system evenkeel)".into()));
        }
        let user = User::from_uid(Uid::from_raw(*uid)).ok().flatten();
        // A number without an account is taken for that of its group too.
        let gid = user.as_ref().map_or(*uid, |user| user.gid.as_raw());
        let known = user.and_then(|user| CString::new(user.name).ok());
        let groups = known.and_then(|name| getgrouplist(&name, Gid::from_raw(gid)).ok());
        let groups = groups.map_or_else(|| vec![gid], |groups| groups.into_iter().map(Gid::as_raw).collect());
        Ok(Some(Identity { uid: *uid, gid, groups }))
    }
}

fn look_up(sink: &mut Sink<'_>, mark: Option<&Range<usize>>, user: &mut Option<Account>, group: &mut Option<Account>) {
    let found_user = |name: &str| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    let found_group = |name: &str| Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    for account in user.iter_mut().filter(|account| account.id.is_none()) {
        account.id = found_user(&account.name);
        if account.id.is_none() {
            let remedy = format!("make it (useradd --system {}), or name another one", account.name);
            sink.maybe_at(mark, format!("there is no user {:?} on this host", account.name), remedy);
        }
    }
    for account in group.iter_mut().filter(|account| account.id.is_none()) {
        account.id = found_group(&account.name);
        if account.id.is_none() {
            let remedy = format!("make it (groupadd --system {}), or name another one", account.name);
            sink.maybe_at(mark, format!("there is no group {:?} on this host", account.name), remedy);
        }
    }
}

/// Users whom the daemon's directories may belong to.
pub(crate) fn owners(identity: Option<&Identity>) -> Vec<u32> {
    [0, geteuid().as_raw()].into_iter().chain(identity.map(|identity| identity.uid)).collect()
}
