//! The daemon: a drive, pollers on it, and for each tenant an NVMe controller behind a vfio-user socket or a virtio-blk
//! disk behind a vhost-user one.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use backend_memory::{MemoryDrive, NullDrive};
use backend_uring::{Kind, UringDrive};
use client_socket::Log;
use config::{Change, Config, DeviceLock, LayoutFile, Placement, Prepared, Tenant};
use io_model::{Nanos, TenantId};
use policy::{PolicyConfig, PollerShape};
use poller::{Board, Poller, Probe};
use ssd_model::Profile;
use vfio_user::{DeviceId, Level, Server, ServerHandle};
use vhost_blk::{Disk, Queues};

use crate::clock::Clock;
use crate::control::{ControlSocket, View};
use crate::device::Device;
use crate::disk::DiskQueues;
use crate::disk_client::{DiskClient, Part};
use crate::drive::{Drive, SetWeights};
use crate::foresight::Foresight;
use crate::handler::{Route, Router};
use crate::patrol::Patrol;
use crate::poller_thread::{Mail, Mailbox, Manners};
use crate::promises_watch::PromiseWatch;
use crate::served::Served;
use crate::{device, disk_client, drive, poller_thread, queues};
use promises::{drive_profile, planning, policies};

/// A tenant's guest formatted its namespace; the layout file must remember.
struct Formatted {
    tenant: usize,
    lba_bytes: u32,
}

/// A running daemon. Drop it only after [`Daemon::stop`].
pub struct Daemon {
    pollers: Vec<(Mailbox, poller_thread::Thread)>,
    server: Option<(JoinHandle<()>, ServerHandle, Arc<AtomicBool>)>,
    disks: Vec<vhost_user::Server>,
    layout_keeper: Option<JoinHandle<()>>,
    promises: Option<PromiseWatch>,
    _control: ControlSocket,
    _lock: DeviceLock,
}

impl Daemon {
    /// Starts everything. Sockets accept clients once this returns. `profile` is the drive that the configuration names.
    ///
    /// # Errors
    /// A problem with the drive, a socket in use, a thread that can't be started. What was started is stopped.
    pub fn start(prepared: Prepared, profile: Profile, sink: vfio_user::Sink) -> Result<Self> {
        let is_new = |change: &Change| match change {
            Change::Placed(placement) => Some(placement.name.clone()),
            _ => None,
        };
        let new_tenants: Vec<String> = prepared.changes.iter().filter_map(is_new).collect();
        let (config, layout, lock) = prepared.commit()?;
        let size_bytes = layout.layout().map_or(0, |layout| layout.device().size_bytes);
        let builder = Builder::new(&config, &profile, new_tenants, sink)?;
        match &config.device.backend {
            config::Backend::Null => builder.build(&NullDrive::new(size_bytes), layout, lock),
            config::Backend::Memory => {
                let drive = MemoryDrive::new(size_bytes).map_err(|error| config.no_memory(error))?;
                builder.build(&drive, layout, lock)
            }
            config::Backend::Model => builder.build(&drive::model(&config, profile.clone(), size_bytes)?, layout, lock),
            config::Backend::File { path, .. } => {
                builder.build(&UringDrive::open(path, Kind::File, None)?, layout, lock)
            }
            config::Backend::Block { path } => builder.build(&UringDrive::open(path, Kind::Block, None)?, layout, lock),
        }
    }

    /// Completes what is in flight and ends. Returns the commands that the drive never answered.
    pub fn stop(mut self) -> u32 {
        drop(self.promises.take());
        // Their threads may be waiting for pollers, so they are joined after these.
        self.disks.iter().for_each(vhost_user::Server::stop);
        for (mailbox, _) in &self.pollers {
            mailbox.send(Mail::Drain);
        }
        let drained = self.pollers.drain(..).map(|(_, thread)| thread.join().unwrap_or(u32::MAX));
        let lost = drained.fold(0, u32::saturating_add);
        if let Some((thread, handle, stop)) = self.server.take() {
            stop.store(true, Ordering::Release);
            handle.wake();
            let _ = thread.join();
        }
        self.disks.clear();
        // Ends when the devices are gone, which the pollers took with them; what it was told by then is written.
        if let Some(thread) = self.layout_keeper.take() {
            let _ = thread.join();
        }
        lost
    }
}

/// Everything that does not depend on the type of the drive.
struct Builder<'a> {
    config: &'a Config,
    policy: PolicyConfig,
    foresight: Arc<Foresight>,
    new_tenants: Vec<String>,
    server: Server,
    sink: vfio_user::Sink,
    board: Arc<Board>,
    clock: Clock,
}

impl<'a> Builder<'a> {
    fn new(config: &'a Config, profile: &Profile, new_tenants: Vec<String>, sink: vfio_user::Sink) -> Result<Self> {
        guest_memory::sigbus::install().context("can't guard against shrinking guest memory")?;
        let server = Server::new(Arc::clone(&sink)).context("can't start the vfio-user server")?;
        let policy = planning::policy(config, profile);
        if let (PolicyConfig::Lpns(lpns), None) = (&policy, config.device.profile.figures()) {
            sink(Level::Info, &drive_profile::assumed(&profile.name, lpns));
        }
        let foresight = Arc::new(Foresight::new(config, profile));
        Ok(Self { config, policy, foresight, new_tenants, server, sink, board: Arc::default(), clock: Clock::start() })
    }

    fn build<D: Drive>(self, drive: &D, mut layout: LayoutFile, lock: DeviceLock) -> Result<Daemon> {
        self.fit_blocks(&mut layout, drive.facts().block_bytes)?;
        std::fs::create_dir_all(&self.config.runtime_dir).with_context(|| {
            format!("can't create runtime_dir = {:?}; choose another one, or create it", self.config.runtime_dir)
        })?;
        self.remove_former_sockets();
        let names: Arc<[String]> = self.config.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        let view = View {
            board: Arc::clone(&self.board),
            foresight: Arc::clone(&self.foresight),
            policy: self.config.policy.name().into(),
            clock: self.clock,
        };
        let control = ControlSocket::serve(&self.config.control_path(), view)?;
        let placements = layout.layout().map(|layout| layout.placements().to_vec()).unwrap_or_default();
        let (formatted, layout_keeper) = keep_layout(layout, names, Arc::clone(&self.sink))?;
        let mut daemon = Daemon {
            pollers: Vec::new(),
            server: None,
            disks: Vec::new(),
            layout_keeper: Some(layout_keeper),
            promises: None,
            _control: control,
            _lock: lock,
        };
        // Nobody is watched where nobody was promised anything.
        let promised = self.config.tenants.iter().any(Tenant::is_guaranteed);
        let (board, foresight) = (Arc::clone(&self.board), Arc::clone(&self.foresight));
        let (clock, sink) = (self.clock, Arc::clone(&self.sink));
        // The watch begins with what the board has: not before the pollers' probes are there.
        let started = self.start_threads(drive, &placements, formatted, &mut daemon).and_then(|()| {
            let watch = promised.then(|| PromiseWatch::start(board, foresight, clock, sink)).transpose();
            daemon.promises = watch.context("can't start the thread that watches promises")?;
            Ok(())
        });
        match started {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.stop();
                Err(error)
            }
        }
    }

    /// A tenant that has the other front end now must not look as if the former one were still there.
    fn remove_former_sockets(&self) {
        for tenant in &self.config.tenants {
            let former = self.config.socket_path(tenant).with_file_name(tenant.frontend.other_socket_name());
            let is_socket = former.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
            if is_socket && UnixStream::connect(&former).is_err() {
                // If it can't be removed, it is in nobody's way.
                let _ = std::fs::remove_file(&former);
            }
        }
    }

    /// No tenant's blocks can be smaller than the drive's. A new tenant gets the drive's; one that was placed
    /// before has data in blocks of its own, and is refused.
    fn fit_blocks(&self, layout: &mut LayoutFile, block_bytes: u32) -> Result<()> {
        let placements = layout.layout().map(|layout| layout.placements().to_vec()).unwrap_or_default();
        let served = |placement: &&Placement| self.config.tenants.iter().any(|tenant| tenant.name == placement.name);
        for placement in placements.iter().filter(served).filter(|placement| placement.lba_bytes < block_bytes) {
            let Placement { name, lba_bytes, .. } = placement;
            if !self.new_tenants.contains(name) {
                bail!(
                    "tenant {name:?} has blocks of {lba_bytes} bytes, and this drive only {block_bytes}: move its image \
                     back to a file system or device with smaller blocks"
                );
            }
            layout.set_lba_bytes(name, block_bytes).map_err(|e| anyhow!("{}; {}", e.what(), e.remedy()))?;
            let line = format!("{name}: blocks of {block_bytes} bytes, the smallest that the drive has");
            (self.sink)(Level::Info, &line);
        }
        Ok(())
    }

    fn start_threads<D: Drive>(
        self,
        drive: &D,
        placements: &[Placement],
        formatted: Sender<Formatted>,
        daemon: &mut Daemon,
    ) -> Result<()> {
        let mut routes = HashMap::new();
        let mut disks = self.disks(drive, placements)?;
        let patrol =
            Patrol::start(Duration::from_nanos(self.config.pollers.patrol.0)).context("can't start the patrol")?;
        let plan = self.config.poller_plan();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for (number, planned) in plan.iter().enumerate() {
            let shape = queues::shape(self.config, plan.len(), planned);
            let policy = policies::build(&self.config.policy, &self.policy, &shape).context("[policy]")?;
            let (queues, weights) = self.open_queues(drive, &shape)?;
            let mut poller = Poller::new(queues, policy, Arc::clone(&self.board), self.clock.now());
            let (mut controllers, mut parts) = (Vec::new(), Vec::new());
            for config::Serves { tenant, queues } in &planned.serves {
                if let Some(made) = disks.get(tenant) {
                    let disk = DiskQueues::new(
                        Arc::clone(&made.name),
                        Queues::new(Arc::clone(&made.disk), queues.clone()),
                        Log::new(Arc::clone(&self.sink)),
                    );
                    let slot = poller.add(Served::Disk(Box::new(disk)), self.probe(*tenant));
                    parts.push((*tenant, queues.clone(), slot));
                } else {
                    let (device, spec, doorbells) = self.device(*tenant, drive, placements, formatted.clone())?;
                    let id = self.server.handle().add_device(spec)?;
                    let slot = poller.add(Served::Nvme(Box::new(device)), self.probe(*tenant));
                    controllers.push((id, slot, doorbells));
                }
            }
            let manners = Manners {
                mode: planned.mode,
                idle_after: Nanos(self.config.pollers.idle_after.0),
                patrol: Nanos(self.config.pollers.patrol.0),
                yields: plan.len() >= cores,
                cpu: planned.cpu,
            };
            let server = self.server.handle();
            let (mailbox, thread) =
                poller_thread::start(number, poller, weights, manners, self.clock, server, patrol.clone())
                    .with_context(|| format!("can't start poller {number}"))?;
            routes.extend(
                controllers
                    .into_iter()
                    .map(|(id, slot, doorbells)| (id, Route { mailbox: mailbox.clone(), slot, doorbells })),
            );
            for (tenant, queues, slot) in parts {
                let part = Part { queues, mailbox: mailbox.clone(), slot };
                disks.entry(tenant).and_modify(|made| made.parts.push(part));
            }
            daemon.pollers.push((mailbox, thread));
        }
        for (tenant, MadeDisk { name, disk, parts }) in disks {
            let client = DiskClient::new(name, disk, parts, Log::new(Arc::clone(&self.sink)));
            let spec = client.spec(self.config.socket_path(&self.config.tenants[tenant]));
            daemon.disks.push(vhost_user::Server::start(spec, Box::new(client), Arc::clone(&self.sink))?);
        }
        daemon.server = Some(self.serve(routes)?);
        Ok(())
    }

    /// The disks of the tenants with a vhost-user front end, by tenant.
    fn disks<D: Drive>(&self, drive: &D, placements: &[Placement]) -> Result<BTreeMap<usize, MadeDisk>> {
        let tenants = self.config.tenants.iter().enumerate();
        let with_disk = tenants.filter(|(_, tenant)| tenant.frontend.vhost().is_some());
        with_disk
            .map(|(index, tenant)| {
                let disk = disk_client::disk(tenant, placement(tenant, placements)?, &drive.facts());
                let disk = Arc::new(disk.with_context(|| format!("tenant {}", tenant.name))?);
                Ok((index, MadeDisk { name: tenant.name.as_str().into(), disk, parts: Vec::new() }))
            })
            .collect()
    }

    /// A poller's queues, and what sets their weights where the policy relies on them.
    fn open_queues<D: Drive>(&self, drive: &D, shape: &PollerShape) -> Result<(D::Queues, Option<SetWeights>)> {
        let (Some(classes), Some(weights)) = (self.policy.hwq_classes(shape.hwqs), self.policy.wrr_weights()) else {
            return Ok((drive.open_queues(shape.hwqs, shape.hwq_depth)?, None));
        };
        // The configuration was checked; this is for whoever adds a back end.
        let none = || anyhow!("{} needs a drive with weighted round robin", self.policy.name());
        let queues = drive.open_weighted_queues(&classes, weights, shape.hwq_depth).ok_or_else(none)??;
        Ok((queues, drive.weights()))
    }

    /// What measures a tenant at one poller; on the board.
    fn probe(&self, index: usize) -> Arc<Probe> {
        let class = policies::class(self.config.tenants[index].class);
        let probe = Arc::new(Probe::new(TenantId(index as u16), class));
        self.board.add(Arc::clone(&probe));
        probe
    }

    fn device<D: Drive>(
        &self,
        index: usize,
        drive: &D,
        placements: &[Placement],
        formatted: Sender<Formatted>,
    ) -> Result<(Device, vfio_user::DeviceSpec, Arc<guest_memory::Mapping>)> {
        let tenant = &self.config.tenants[index];
        let placement = placement(tenant, placements)?;
        let on_format = move |lba_bytes| {
            // The receiver lives as long as the daemon.
            let _ = formatted.send(Formatted { tenant: index, lba_bytes });
        };
        let (policy, socket) = (&self.config.policy, self.config.socket_path(tenant));
        device::build(tenant, policy, placement, &drive.facts(), socket, Box::new(on_format))
            .with_context(|| format!("tenant {}", tenant.name))
    }

    fn serve(mut self, routes: HashMap<DeviceId, Route>) -> Result<(JoinHandle<()>, ServerHandle, Arc<AtomicBool>)> {
        let stop = Arc::new(AtomicBool::new(false));
        let (handle, stop_server) = (self.server.handle(), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("vfio-user".into()).spawn(move || {
            let mut router = Router::new(routes);
            if let Err(error) = self.server.run(&mut router, &stop_server) {
                (self.sink)(Level::Warn, &format!("the vfio-user server ended: {error}"));
            }
        })?;
        Ok((thread, handle, stop))
    }
}

/// A tenant's disk, until its parts are at their pollers.
struct MadeDisk {
    name: Arc<str>,
    disk: Arc<Disk>,
    parts: Vec<Part>,
}

fn placement<'a>(tenant: &Tenant, placements: &'a [Placement]) -> Result<&'a Placement> {
    let placement = placements.iter().find(|placement| placement.name == tenant.name);
    placement.with_context(|| format!("tenant {} has no place on the drive", tenant.name))
}

/// A thread that writes the layout file when a guest formats: pollers must not wait for a disk.
fn keep_layout(
    mut layout: LayoutFile,
    names: Arc<[String]>,
    sink: vfio_user::Sink,
) -> Result<(Sender<Formatted>, JoinHandle<()>)> {
    let (sender, receiver) = channel::<Formatted>();
    let thread = std::thread::Builder::new().name("layout".into()).spawn(move || {
        for Formatted { tenant, lba_bytes } in receiver {
            let Some(name) = names.get(tenant) else { continue };
            let outcome = layout.set_lba_bytes(name, lba_bytes);
            match outcome {
                Ok(()) => sink(Level::Info, &format!("{name}: formatted with LBAs of {lba_bytes} bytes")),
                Err(error) => sink(Level::Warn, &format!("{name}: {}; {}", error.what(), error.remedy())),
            }
        }
    })?;
    Ok((sender, thread))
}
