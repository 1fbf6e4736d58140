//! Disks that come and change while others run, as the API asks for them.
//!
//! Each change is checked as if it stood in the configuration file, judged beside everybody's promises, made durable in
//! the layout, and then applied. A kill before it is durable leaves what was; a kill after it, what is to be.

use std::sync::mpsc::channel;

use api::{
    Applied, Apply, Ceilings, Deletion, Disk, DiskChange, DiskState, Drive, Exported, NewDisk, Operation, Problem, Wipe,
};
use config::{Config, ConfigErrors, Sections, Tenant};
use io_model::TenantId;
use io_model::units::Size;
use layout::{LayoutError, Placement, RANGE_STEP_BYTES, WipeMethod};
use policy::Limits;
use promises::admission::Admission;

use crate::owner::{Live, Owner};

/// Where an answer goes. Dropped: there is none.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// What the API asks of the owner.
pub enum DiskCommand {
    /// All disks, or those whose sockets are a user's.
    List(Option<u32>, Reply<Vec<Disk>>),
    /// One more; `true`: it was not there.
    Create(Box<NewDisk>, Reply<Result<(Disk, bool), Problem>>),
    /// What one is promised and held to.
    Change(String, Box<DiskChange>, Reply<Result<Disk, Problem>>),
    /// It goes, and what it leaves is wiped.
    Delete(String, Deletion, Reply<Result<Vec<Operation>, Problem>>),
    /// What goes on by itself.
    Operations(Reply<Vec<Operation>>),
    /// The drive.
    Drives(Reply<Vec<Drive>>),
    /// A configuration file.
    Apply(Box<Apply>, Reply<Result<Applied, Problem>>),
    /// All that is served, as one.
    Export(Reply<Result<Exported, Problem>>),
}

impl Owner {
    /// Does what the API asks for.
    pub fn apply_to_disks(&mut self, command: DiskCommand) {
        match command {
            DiskCommand::List(of_user, reply) => {
                let user = |live: &Live| live.tenant.socket.user.as_ref().and_then(|user| user.id);
                let seen = self.tenants.iter().filter(|(_, live)| of_user.is_none() || user(live) == of_user);
                reply(seen.filter_map(|(id, _)| self.describe_disk(*id)).collect());
            }
            DiskCommand::Create(disk, reply) => {
                let made = self.create_disk(&disk);
                reply(made.and_then(|(id, is_new)| Ok((self.describe_disk(id).ok_or_else(broken)?, is_new))));
            }
            DiskCommand::Change(name, change, reply) => {
                let changed = self.change_disk(&name, &change);
                reply(changed.and_then(|id| self.describe_disk(id).ok_or_else(broken)));
            }
            DiskCommand::Delete(name, deletion, reply) => {
                let deleted = self.delete_disk(&name, deletion);
                reply(deleted.map(|()| self.operations().filter(|it| it.disk == name).collect()));
            }
            DiskCommand::Operations(reply) => reply(self.operations().collect()),
            DiskCommand::Drives(reply) => reply(vec![self.describe_drive()]),
            DiskCommand::Apply(file, reply) => reply(self.apply_file(&file)),
            DiskCommand::Export(reply) => reply(self.export()),
        }
    }

    /// What is served, as a configuration file.
    fn export(&self) -> Result<Exported, Problem> {
        let mut sections = Sections::of(&self.config).map_err(|errors| invalid(&errors))?;
        let made = self.layout.layout().into_iter().flat_map(|layout| layout.settings());
        made.for_each(|(_, settings)| sections.extend(settings));
        Ok(Exported { text: sections.to_text() })
    }

    /// The section that a disk was made with.
    fn settings_of(&self, name: &str) -> Option<&str> {
        let settings = self.layout.layout().into_iter().flat_map(|layout| layout.settings());
        settings.filter(|(of, _)| *of == name).map(|(_, settings)| settings).next()
    }

    /// The configuration with a disk as `settings` say, whether it is there or not, if it holds together and every
    /// promise can be kept.
    fn config_with(&self, name: &str, settings: &str) -> Result<(Config, Tenant), Problem> {
        let made = self.layout.layout().into_iter().flat_map(|layout| layout.settings());
        let others = made.filter(|(of, _)| *of != name).map(|(_, settings)| settings);
        let config = self.config.with_disks(others.chain([settings])).map_err(|errors| invalid(&errors))?;
        Admission::new(&config, &self.profile).refuse(&config).map_err(|errors| {
            let (title, _) = in_words(&errors);
            let remedy = "change what the title says, or make the disk with overcommit to serve it all the same";
            Problem::new(409, "promise-not-kept", title, remedy)
        })?;
        let tenant = config.tenants.iter().find(|tenant| tenant.name == name).cloned().ok_or_else(broken)?;
        Ok((config, tenant))
    }

    /// `true`: it is new.
    fn create_disk(&mut self, disk: &NewDisk) -> Result<(TenantId, bool), Problem> {
        let settings = disk.to_section().map_err(|error| {
            Problem::new(422, "invalid", format!("it can't be written down: {error}"), "use plain texts")
        })?;
        if let Some(id) = self.find_tenant(&disk.name) {
            let is_same = self.settings_of(&disk.name) == Some(settings.as_str());
            return if is_same { Ok((id, false)) } else { Err(name_taken(&disk.name)) };
        }
        if self.layout.layout().is_some_and(|layout| layout.find(&disk.name).is_some()) {
            let title = format!("the drive has data of an earlier tenant {:?}", disk.name);
            let remedy = "choose another name, delete that data by `evenkeel disk delete`, or write that tenant into the \
                          configuration again to have it back";
            return Err(Problem::new(409, "name-reserved", title, remedy));
        }
        let (config, tenant) = self.config_with(&disk.name, &settings)?;
        let id = self.add(tenant, Some(&settings)).map_err(|error| match error.downcast_ref::<ConfigErrors>() {
            Some(errors) => {
                let (title, remedy) = in_words(errors);
                Problem::new(409, "no-room", title, remedy)
            }
            None => Problem::new(500, "failed", format!("{error:#}"), "see the daemon's log; nothing has changed"),
        })?;
        self.config = config;
        Ok((id, true))
    }

    fn change_disk(&mut self, name: &str, change: &DiskChange) -> Result<TenantId, Problem> {
        let id = self.find_tenant(name).ok_or_else(|| no_such_disk(name))?;
        if self.tenants.get(&id).is_some_and(|live| live.leaving.is_some()) {
            let title = format!("{name:?} is being deleted");
            return Err(Problem::new(409, "leaving", title, "make another disk"));
        }
        let Some(settings) = self.settings_of(name) else { return Err(declared(name, &self.config)) };
        let disk = NewDisk::from_section(settings).map_err(|_| broken())?;
        let settings = change.apply(&disk).to_section().map_err(|_| broken())?;
        let (config, tenant) = self.config_with(name, &settings)?;
        self.change_to(id, &tenant, Some(&settings))?;
        self.config = config;
        Ok(id)
    }

    /// A tenant is promised and held to what its section says from now on, and has a disk as large as that: durably
    /// first. `settings`: of a disk that the API made.
    pub(crate) fn change_to(&mut self, id: TenantId, tenant: &Tenant, settings: Option<&str>) -> Result<(), Problem> {
        let (name, size_bytes) = (&tenant.name, tenant.size.0);
        let had_bytes = self.layout.layout().and_then(|layout| layout.find(name)).map_or(0, Placement::size_bytes);
        if size_bytes < had_bytes {
            return Err(no_shrinking(name, had_bytes));
        }
        let accept_content = self.pollers.zeroer().is_none();
        let grown = self.layout.change_disk(name, settings, size_bytes, accept_content);
        grown.map_err(|error| not_durable(&error))?.map_err(|most| no_room_to_grow(name, had_bytes, most))?;
        if let Some(live) = self.tenants.get_mut(&id) {
            (live.tenant.overcommit, live.tenant.size) = (tenant.overcommit, tenant.size);
            live.tenant.demand = tenant.demand.clone();
        }
        self.change(id, tenant.terms).map_err(|_| no_such_disk(name))?;
        if size_bytes > had_bytes {
            self.has_grown(id, name).map_err(|error| {
                let title = format!("{name:?} grows at the next start only: {error:#}");
                Problem::new(500, "failed", title, "see the daemon's log")
            })?;
        }
        Ok(())
    }

    fn delete_disk(&mut self, name: &str, Deletion { force, wipe }: Deletion) -> Result<(), Problem> {
        if self.layout.layout().is_none_or(|layout| layout.find(name).is_none()) {
            // As good as the first time.
            return self.operations().any(|it| it.disk == name).then_some(()).ok_or_else(|| no_such_disk(name));
        }
        if let Some(live) = self.find_tenant(name).and_then(|id| self.tenants.get(&id)) {
            if self.settings_of(name).is_none() {
                let title = format!("{name:?} is declared in {}", self.config.file().display());
                let file = self.config.file().display();
                let remedy = format!("remove it there, and run `evenkeel apply {file}`, which deletes it");
                return Err(Problem::new(409, "declared", title, remedy));
            }
            if !force && live.server.as_ref().is_some_and(client_socket::Server::has_client) {
                let title = format!("{name:?} is attached to a client");
                return Err(Problem::new(409, "attached", title, "detach it there, or use force: its connection ends"));
            }
        }
        let settings = self.layout.layout().into_iter().flat_map(|layout| layout.settings());
        let others: Vec<String> = settings.filter(|(of, _)| *of != name).map(|(_, it)| it.to_owned()).collect();
        let config = self.config.with_disks(others.iter().map(String::as_str)).map_err(|errors| invalid(&errors))?;
        let method = match wipe {
            Wipe::Zeros => WipeMethod::Zeros,
            Wipe::ThreePasses => WipeMethod::ThreePasses,
        };
        // When it has left nobody waits for it.
        self.delete(name, method, channel().0).map_err(|error| not_durable(&error))?;
        self.config = config;
        Ok(())
    }

    fn describe_disk(&self, id: TenantId) -> Option<Disk> {
        let live = self.tenants.get(&id)?;
        let tenant = &live.tenant;
        let placement = self.layout.layout().and_then(|layout| layout.find(&tenant.name));
        let state = match () {
            () if live.leaving.is_some() => DiskState::Leaving,
            () if self.waiting.contains_key(&id) => DiskState::Zeroing,
            () => DiskState::Served,
        };
        let class = tenant.terms.class;
        Some(Disk {
            name: tenant.name.clone(),
            size_bytes: placement.map_or(tenant.size.0, Placement::served_bytes),
            grows_to_bytes: placement.filter(|it| it.grows_from_bytes.is_some()).map(Placement::size_bytes),
            lba_bytes: placement.map_or(tenant.lba_bytes, |it| it.lba_bytes),
            frontend: tenant.frontend.name().to_owned(),
            class: class.name().to_owned(),
            weight: class.weight(),
            latency_target_us: class.latency_target().map(io_model::Nanos::as_micros_f64),
            limits: tenant.terms.limits.in_words(),
            ceilings: ceilings(&tenant.terms.limits),
            socket: self.config.socket_path(tenant).display().to_string(),
            state,
            attached: live.server.as_ref().is_some_and(client_socket::Server::has_client),
            declared: self.settings_of(&tenant.name).is_none(),
        })
    }

    fn describe_drive(&self) -> Drive {
        let layout = self.layout.layout();
        Drive {
            backend: self.config.device.backend.name().to_owned(),
            path: self.config.device.backend.path().map(|path| path.display().to_string()),
            size_bytes: layout.map_or(0, |layout| layout.device().size_bytes),
            free_bytes: layout.map_or(0, layout::Layout::free_bytes),
            wiping_bytes: layout.map_or(0, |layout| layout.wiping().iter().map(|range| range.size_bytes).sum()),
            policy: self.policy.name().to_owned(),
        }
    }
}

fn ceilings(limits: &Limits) -> Ceilings {
    let some = |limit: u64| (limit > 0).then_some(limit);
    let bytes = |mbytes: u64| some(mbytes << 20);
    Ceilings {
        rw_iops: some(limits.rw_ios_per_sec),
        r_iops: some(limits.r_ios_per_sec),
        w_iops: some(limits.w_ios_per_sec),
        rw_bytes_per_second: bytes(limits.rw_mbytes_per_sec),
        r_bytes_per_second: bytes(limits.r_mbytes_per_sec),
        w_bytes_per_second: bytes(limits.w_mbytes_per_sec),
        burst_ms: some(limits.burst.0).map(|ns| ns as f64 / 1e6),
    }
}

/// Every problem, then every remedy. The lines of a file that nobody wrote would only mislead.
pub(crate) fn in_words(errors: &ConfigErrors) -> (String, String) {
    let all = |part: fn(&config::Problem) -> &str| errors.problems.iter().map(part).collect::<Vec<_>>().join("; ");
    (all(|problem| &problem.what), all(|problem| &problem.remedy))
}

pub(crate) fn invalid(errors: &ConfigErrors) -> Problem {
    let (title, remedy) = in_words(errors);
    Problem::new(422, "invalid", title, remedy)
}

fn name_taken(name: &str) -> Problem {
    let title = format!("there is another disk {name:?} already");
    Problem::new(409, "name-taken", title, "choose another name, or delete that one first")
}

fn no_shrinking(name: &str, has_bytes: u64) -> Problem {
    let title = format!("{name:?} has {}, and a disk can't shrink", Size(has_bytes));
    Problem::new(409, "no-shrinking", title, "make a smaller disk, copy the data in a guest, and delete this one")
}

fn no_room_to_grow(name: &str, has_bytes: u64, most_bytes: u64) -> Problem {
    let title = format!("no room for {name:?} to grow so far: {} more could be had", Size(most_bytes));
    let remedy = match most_bytes - most_bytes % RANGE_STEP_BYTES {
        0 => "delete what nobody needs, or wait until what was deleted is wiped".to_owned(),
        more => format!("ask for a size of {}", Size(has_bytes + more)),
    };
    Problem::new(409, "no-room", title, remedy)
}

fn no_such_disk(name: &str) -> Problem {
    Problem::new(404, "no-such-disk", format!("there is no disk {name:?}"), "`evenkeel disk list` has their names")
}

fn declared(name: &str, config: &Config) -> Problem {
    let file = config.file().display();
    let title = format!("{name:?} is declared in {file}");
    Problem::new(409, "declared", title, format!("change it there, and run `evenkeel apply {file}`"))
}

pub(crate) fn not_durable(error: &LayoutError) -> Problem {
    Problem::new(507, "not-durable", error.what(), error.remedy())
}

pub(crate) fn broken() -> Problem {
    Problem::new(500, "failed", "the daemon has lost track of it", "please report this, with the daemon's log")
}
