//! Opens what needs the rights of the user that starts the daemon: the drive, the directories, the sockets.
//!
//! One thread opens them, before the process drops its rights and any other thread starts.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use client_socket::{About, Access, Keeper, Level, Listener, Sink};
use config::{
    Absent, Account, AddedDrives, AllowedCpus, Config, ConfigErrors, DeviceLock, Identity, LBA_BYTES, Missing, Node,
    Prepared, SocketSection, Tenant,
};
use layout::{Change, LayoutError, LayoutFile, Placement};
use policy::PolicyConfig;
use promises::drive_profile;
use ssd_model::Profile;
use ublk::Helper;

use crate::config_file::OwnFile;
use crate::disk_keys::{self, DiskKeys};
use crate::service_manager::Manager;
use api_server::roles::Roles;
use api_server::tcp_port::OpenedPort;
use runtime::drive::AnyDrive;
use runtime::nvme_drive::raise_memory_lock;

/// Opens the drive of a configuration, with this many bytes.
pub trait OpenDrive: FnOnce(&Config, &Profile, u64) -> Result<Box<dyn AnyDrive>> {}

impl<O: FnOnce(&Config, &Profile, u64) -> Result<Box<dyn AnyDrive>>> OpenDrive for O {}

/// What follows from a configuration, unless a test has its own.
pub struct Engine<O> {
    /// Of every poller.
    pub policy: PolicyConfig,
    /// Opens the drive.
    pub open: O,
}

/// A drive that is to be opened.
pub struct ToOpen<O> {
    /// How.
    pub engine: Engine<O>,
    /// What is served on it.
    pub prepared: Prepared,
    /// What it is, or is taken for.
    pub profile: Profile,
}

/// Everything that is opened once.
pub struct Opened {
    pub(crate) drives: Vec<OpenedDrive>,
    pub(crate) added: AddedDrives,
    /// Drives that can't be had.
    pub(crate) absent: Absent,
    pub(crate) api: Listener,
    pub(crate) port: Option<OpenedPort>,
    /// Where the daemon keeps what must outlive it.
    pub(crate) state_dir: PathBuf,
    pub(crate) own_file: Option<OwnFile>,
    pub(crate) roles: Roles,
    /// Where summaries of the last day belong.
    pub(crate) history: PathBuf,
    /// The file of what `/metrics` has counted.
    pub(crate) totals: PathBuf,
    /// What makes block devices, with the rights that this takes; none where it was not started.
    pub(crate) helper: Option<Arc<Helper>>,
    /// What keeps clients, so that they go on with the next daemon; none where nothing does.
    pub(crate) keeper: Option<Arc<Keeper>>,
    /// What opens the keys of disks.
    pub(crate) disk_keys: DiskKeys,
    /// The service manager that is told when the daemon serves. `None`: there is none.
    pub(crate) manager: Option<Manager>,
    identity: Option<Identity>,
}

/// One drive, and what belongs to it.
pub(crate) struct OpenedDrive {
    pub(crate) config: Config,
    pub(crate) profile: Profile,
    pub(crate) policy: PolicyConfig,
    pub(crate) layout: LayoutFile,
    pub(crate) lock: DeviceLock,
    pub(crate) drive: Box<dyn AnyDrive>,
    /// CPUs of the drive's NUMA node that this process may use. Empty: any CPU is as near.
    pub(crate) near_cpus: Vec<u32>,
    /// Of each tenant, by its name; nobody can connect yet.
    pub(crate) sockets: BTreeMap<String, Listener>,
}

fn near_cpus(node: &Node) -> Vec<u32> {
    AllowedCpus::of_this_process().map(|allowed| allowed.on(node)).unwrap_or_default()
}

impl OpenedDrive {
    pub(crate) fn open(
        to_open: ToOpen<impl OpenDrive>,
        keeper: Option<&Arc<Keeper>>,
        disk_keys: &DiskKeys,
        sink: &Sink,
    ) -> Result<Self> {
        let ToOpen { engine: Engine { policy, open }, mut prepared, profile } = to_open;
        let new = |change: &Change| match change {
            Change::Placed(placement) => Some(placement.name.clone()),
            _ => None,
        };
        let new_tenants: Vec<String> = prepared.changes.iter().filter_map(new).collect();
        // With their places: no disk is recorded as one without encryption before.
        for (name, encryption) in prepared.config.encryptions() {
            if !new_tenants.iter().any(|new| new == name) {
                let is_encrypted = prepared.layout.find(name).is_some_and(|it| it.key.is_some());
                disk_keys::warn_of_change(&prepared.config, name, encryption, is_encrypted, sink);
            } else if let Some(key) = disk_keys.of_new(name, encryption)? {
                prepared.layout.set_key(name, key);
            }
        }
        for (name, key) in disk_keys.wrapped_anew(prepared.layout.placements().iter()) {
            prepared.layout.replace_key(&name, key);
            sink(Level::Info.of_tenant(&name), &format!("{name}: its key is wrapped by the present host key now"));
        }
        let identity = prepared.config.identity()?;
        let is_new = prepared.host.to_create;
        let near_cpus = prepared.host.node.as_ref().map(near_cpus).unwrap_or_default();
        let (config, mut layout, lock) = prepared.commit()?;
        if let (PolicyConfig::Lpns(lpns), None) = (&policy, config.device.profile.figures()) {
            sink(Level::Info.of_drive(&config.device.name), &drive_profile::assumed(&profile.name, lpns));
        }
        let size_bytes = layout.layout().map_or(0, |layout| layout.device().size_bytes);
        let path = config.device.backend.path().map(Path::to_owned);
        let drive = Identity::act_at(identity.as_ref(), path.as_deref(), || open(&config, &profile, size_bytes))?;
        let kept_at = layout.path().map(Path::to_owned);
        let block_bytes = drive.facts().block_bytes;
        Identity::act_at(identity.as_ref(), kept_at.as_deref(), || {
            fit_blocks(&config, &mut layout, block_bytes, &new_tenants, sink)
        })?;
        if let Some(identity) = &identity {
            // Before their directory is given away, too.
            let image = path.as_deref().filter(|_| is_new);
            image.into_iter().chain(kept_at.as_deref()).try_for_each(|file| config.hand_over(file, identity))?;
        }
        config.make_directories(identity.as_ref())?;
        let bound = config.tenants.iter().map(|tenant| {
            let listener = bind(&config, tenant, identity.as_ref(), keeper);
            Ok(listener?.map(|listener| (tenant.name.clone(), listener)))
        });
        let sockets = bound.filter_map(Result::transpose).collect::<Result<_>>()?;
        Ok(Self { config, profile, policy, layout, lock, drive, near_cpus, sockets })
    }

    fn layout_directory(&self) -> Option<PathBuf> {
        self.layout.path().and_then(Path::parent).map(PathBuf::from)
    }
}

impl Opened {
    /// # Errors
    /// A problem with a drive, a directory, or a socket in use. There must be a drive.
    pub(crate) fn open(drives: Vec<ToOpen<impl OpenDrive>>, keeper: Option<Arc<Keeper>>, sink: &Sink) -> Result<Self> {
        guest_memory::install().context("can't guard against guest memory that is taken away")?;
        // A drive that reaches pinned memory may also be added later.
        raise_memory_lock();
        let disk_keys = drives.first().map(|drive| DiskKeys::read(&drive.prepared.config, sink)).transpose()?;
        let disk_keys = disk_keys.unwrap_or_default();
        let (drives, missing) = open_all(drives, keeper.as_ref(), &disk_keys, sink)?;
        let Some(OpenedDrive { config, .. }) = drives.first() else { bail!("there is no drive to serve") };
        let identity = config.identity()?;
        config.make_state_directory(identity.as_ref())?;
        let added = Identity::act_at(identity.as_ref(), Some(&config.added_file()), || -> Result<_> {
            let kept = AddedDrives::in_directory(&config.state_dir)?;
            let added = kept.not_declared(config.declared_text());
            if added != kept {
                // Before that is recorded, the next start finds the same.
                added.save().context("can't write the list of added drives")?;
            }
            Ok(added)
        })?;
        let (roles, history) = (Roles::new(config), config.history_path());
        // A user without the right gets an error that says so.
        let mode = if roles.let_others_in() { 0o666 } else { 0o600 };
        let mine = Access { mode, ..Access::default() };
        let api = as_user(identity.as_ref(), || Listener::bind(&config.api_path(), mine))?;
        let api = api.for_users(access(None, None, mode, identity.as_ref()))?;
        let port = OpenedPort::open(config, identity.as_ref(), sink)?;
        let (state_dir, totals) = (config.state_dir.clone(), config.totals_path());
        let own_file = OwnFile::find(config.file());
        let absent = Absent { drives: missing, unknown: Vec::new() };
        Ok(Self {
            drives,
            added,
            absent,
            api,
            port,
            state_dir,
            own_file,
            roles,
            history,
            totals,
            helper: None,
            keeper,
            disk_keys,
            manager: None,
            identity,
        })
    }

    /// With these drives missing, too.
    pub(crate) fn without(mut self, absent: Absent) -> Self {
        self.absent.drives.extend(absent.drives);
        self.absent.unknown.extend(absent.unknown);
        self
    }

    /// With a helper that makes block devices.
    pub(crate) fn with_helper(mut self, helper: Option<Arc<Helper>>) -> Self {
        self.helper = helper;
        self
    }

    /// With a service manager that waits for messages.
    pub(crate) fn with_manager(mut self, manager: Option<Manager>) -> Self {
        self.manager = manager;
        self
    }

    /// Whether a drive of that name is there.
    pub(crate) fn has_drive(&self, name: &str) -> bool {
        self.drives.iter().any(|drive| drive.config.device.name == name)
    }

    /// Drops what rights are not needed any more. What is opened from now on is opened as who the process then is.
    ///
    /// # Errors
    /// The kernel refused, or the layout could not be written any more.
    pub fn drop_privileges(&self) -> Result<()> {
        let identity = self.identity.as_ref();
        let becomes = identity.map(|Identity { uid, gid, groups }| confine::Identity { uid: *uid, gid: *gid, groups });
        confine::drop_privileges(becomes).context("can't drop privileges")?;
        let Some(Identity { uid, .. }) = identity else { return Ok(()) };
        for directory in self.drives.iter().filter_map(OpenedDrive::layout_directory) {
            if let Err(errno) = rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK) {
                let at = directory.display();
                bail!("user {uid} can't write to {at}, where a drive's layout file belongs: {errno}; chown {uid} {at}");
            }
        }
        Ok(())
    }

    /// Whether the process is root and stays it.
    pub fn stays_root(&self) -> bool {
        self.identity.is_none() && rustix::process::geteuid().is_root()
    }

    /// Where the configuration file is read again.
    pub fn readable(&self) -> Option<&Path> {
        self.own_file.as_ref().map(OwnFile::directory)
    }

    /// Where files are made, replaced and removed while the daemon runs.
    pub fn directories(&self) -> Vec<PathBuf> {
        let of = |OpenedDrive { config, layout, .. }: &OpenedDrive| {
            let state_dir = Some(&config.state_dir).filter(|directory| directory.is_dir());
            let layout_dir = layout.path().and_then(Path::parent).map(Path::to_owned);
            [Some(config.runtime_dir.clone()), state_dir.cloned(), layout_dir]
        };
        let all: BTreeSet<PathBuf> = self.drives.iter().flat_map(of).flatten().collect();
        all.into_iter().collect()
    }
}

/// Opens every drive. A drive that may be missing counts as missing if it can't be opened: it is in use, or it fails.
fn open_all(
    drives: Vec<ToOpen<impl OpenDrive>>,
    keeper: Option<&Arc<Keeper>>,
    disk_keys: &DiskKeys,
    sink: &Sink,
) -> Result<(Vec<OpenedDrive>, Vec<Missing>)> {
    let (mut opened, mut missing) = (Vec::new(), Vec::<Missing>::new());
    for drive in drives {
        let config = &drive.prepared.config;
        let absent = config.device.nofail.then(|| config.clone());
        match (OpenedDrive::open(drive, keeper, disk_keys, sink), absent) {
            (Ok(drive), _) => opened.push(drive),
            (Err(error), None) => return Err(error),
            (Err(error), Some(config)) => {
                let in_words =
                    |error| ConfigErrors::one(config.file(), format!("{error:#}"), "see to the drive (`dmesg`)");
                let errors = error.downcast::<ConfigErrors>().unwrap_or_else(in_words);
                missing.push(Missing::new(config, errors));
            }
        }
    }
    if let (true, Some(first)) = (opened.is_empty(), missing.first()) {
        // At least one drive must be served.
        return Err(first.errors.clone().into());
    }
    missing.iter().for_each(|it| sink(Level::Warn.of_drive(it.name()), &it.warning().in_file(it.config.file())));
    Ok((opened, missing))
}

/// Puts a tenant's socket in its place, if it has one. A keeper has its clients too where the next daemon can go on
/// with them.
///
/// # Errors
/// The place is taken, or the daemon may not give the socket to whom it is for.
pub fn bind(
    config: &Config,
    tenant: &Tenant,
    identity: Option<&Identity>,
    keeper: Option<&Arc<Keeper>>,
) -> Result<Option<Listener>> {
    // The directory is the daemon's user's, who could have links there by now.
    as_user(identity, || remove_former(config, tenant));
    let Some(path) = config.socket_path(tenant) else { return Ok(None) };
    let SocketSection { user, group, mode } = &tenant.socket;
    let mine = Access { mode: *mode, groups_of: confine::groups_of_peer, ..Access::default() };
    let bound = as_user(identity, || match keeper.filter(|_| config.device.backend.outlives_daemon()) {
        Some(keeper) => Listener::bind_kept(&path, mine, keeper),
        None => Listener::bind(&path, mine),
    });
    Ok(Some(bound?.for_users(access(user.as_ref(), group.as_ref(), *mode, identity))?))
}

/// Removes the socket of another front end that the tenant had: it must not look as if that were still there.
fn remove_former(config: &Config, tenant: &Tenant) {
    for name in tenant.frontend.other_socket_names() {
        let former = config.runtime_dir.join(&tenant.name).join(name);
        let is_socket = former.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
        if is_socket && UnixStream::connect(&former).is_err() {
            // If it can't be removed, it is in nobody's way.
            let _ = std::fs::remove_file(&former);
        }
    }
}

/// Does it as the user that the daemon will be.
fn as_user<T>(identity: Option<&Identity>, work: impl FnOnce() -> T) -> T {
    match identity {
        Some(identity) => identity.act(work),
        None => work(),
    }
}

/// What is nobody's in particular is the daemon's, as who it will be.
fn access(user: Option<&Account>, group: Option<&Account>, mode: u32, identity: Option<&Identity>) -> Access {
    Access {
        user: user.map_or(identity.map(|identity| identity.uid), |user| user.id),
        group: group.map_or(identity.map(|identity| identity.gid), |group| group.id),
        mode,
        groups_of: confine::groups_of_peer,
    }
}

/// No disk's blocks can be smaller than the drive's. A new one gets the drive's, and is refused where the file says
/// otherwise; one that was placed before has data in blocks of its own, and is refused.
fn fit_blocks(config: &Config, layout: &mut LayoutFile, block_bytes: u32, new: &[String], sink: &Sink) -> Result<()> {
    let placements = layout.layout().map(|layout| layout.placements().to_vec()).unwrap_or_default();
    let (new, before): (Vec<Placement>, Vec<Placement>) = placements.into_iter().partition(|it| new.contains(&it.name));
    let placed = |name: &str| before.iter().find(|it| it.name == name).map(|it| it.lba_bytes);
    let in_words = |e: LayoutError| anyhow!("{}; {}", e.what(), e.remedy());
    if let Err(refused) = config.refuse_smaller_blocks(block_bytes, &placed) {
        // No client has seen them. If they stayed, the next start would take their blocks for given.
        new.iter().try_for_each(|it| layout.withdraw(&it.name)).map_err(in_words)?;
        return Err(refused.into());
    }
    for Placement { name, lba_bytes, .. } in new {
        if lba_bytes < block_bytes {
            layout.set_lba_bytes(&name, block_bytes).map_err(in_words)?;
        }
        if block_bytes > LBA_BYTES {
            sink(
                About { drive: Some(&config.device.name), ..Level::Info.of_tenant(&name) },
                &format!("{name}: blocks of {block_bytes} bytes, the smallest that the drive has"),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// The daemon's account can put a link in the place of its own directory, between root's steps. Of 100 starts 10
    /// once made a socket in a directory of root's.
    #[test]
    fn a_link_that_comes_at_the_right_moment_leads_root_nowhere() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root follows links to where their owner may not go");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let (run, of_root) = (directory.path().join("run"), directory.path().join("of-root"));
        let text = format!(
            "runtime_dir = {run:?}\n[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n\
             [policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n"
        );
        let config = Config::parse(&directory.path().join("ek.toml"), &text).expect("good");
        let account = Identity { uid: 65_534, gid: 65_534, groups: Vec::new() };
        chown(directory.path(), Some(0), Some(0)).expect("root's");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("for all to pass");
        std::fs::create_dir(&of_root).expect("made");
        config.make_directories(Some(&account)).expect("made");
        let tenant = &config.tenants[0];
        drop(bind(&config, tenant, Some(&account), None).expect("bound").expect("a socket"));
        std::fs::remove_dir(run.join("db")).expect("empty");
        symlink(&of_root, run.join("db")).expect("a link");
        let refused = bind(&config, tenant, Some(&account), None).expect_err("refused").to_string();
        assert!(refused.contains("can't bind") && refused.contains("Permission denied"), "{refused}");
        assert_eq!(std::fs::read_dir(&of_root).expect("it is there").count(), 0);
    }
}
