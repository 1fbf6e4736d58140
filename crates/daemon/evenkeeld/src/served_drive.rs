//! One of the daemon's drives, with its pollers, tenants, sockets and layout. All calls come from the owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use api::{DiskError, EventKind};
use client_socket::{Keeper, Level, Listener, Surroundings};
use config::{Config, DeviceLock, Home, Tenant};
use io_model::{Extents, HeldRange, Nanos, TenantId};
use keys::StoredKey;
use layout::{LayoutFile, Placement, SanitizeState};
use policy::{Class, Percentile, PolicyConfig, Terms};
use poller::TenantProbes;
use promises::planning;
use ssd_model::Profile;
use state::errors::nobody;
use state::{At, Command as StateCommand, DriveState, Effect, Effects, Facts, NewDisk, Record};
use ublk::Helper;

use observe::DriveView;
use observe::clock::Clock;

use crate::disk_keys::DiskKeys;
use crate::error_texts::not_durable;
use crate::image_disks::ImageDisks;
use crate::log;
use crate::namespaces::Then;
use crate::reencryption_state::Reencryptions;
use crate::snapshots::Snapshots;
use crate::startup::{self, OpenedDrive};
use crate::thin_disks::ThinPool;
use crate::wipe_state::Wiper;
use observe::events::EventLog;
use observe::foresight::Foresight;
use promises::forecasts::Forecasts;
use runtime::command::{Command, Handle};
use runtime::front_end::{Fitted, Making, OwnPromise, Reached, ServedAt, fit};
use runtime::group_ids::GroupIds;
use runtime::happening::{DriveId, Happening, Teller};
use runtime::poller_thread::Message;
use runtime::pollers::{Part, PollerId, PollerThreads, Pollers};
use runtime::zeroer::Zeroing;

/// A tenant that is there.
pub(crate) struct Live {
    pub(crate) tenant: Tenant,
    /// `None`: it is leaving, or not served yet.
    pub(crate) server: Option<Reached>,
    pub(crate) pollers: Vec<PollerId>,
    /// The tenants that these pollers are for, as configured when this tenant came.
    pub(crate) home: Home,
    /// It was told to go: pollers that have not let go of it yet.
    pub(crate) leaving: Option<usize>,
    /// It is served again after that.
    pub(crate) comes_back: bool,
}

/// What puts a tenant on its socket.
pub(crate) struct Ready {
    serve: Box<dyn FnOnce(Vec<ServedAt>) -> Result<Reached> + Send>,
    served_at: Vec<ServedAt>,
}

/// What all drives have in common.
#[derive(Clone)]
pub(crate) struct Common {
    /// What was given out last.
    pub(crate) next_tenant: Arc<AtomicU32>,
    pub(crate) threads: PollerThreads,
    pub(crate) clock: Clock,
    pub(crate) handle: Handle,
    pub(crate) around: Surroundings,
    pub(crate) events: Arc<EventLog>,
    /// What makes block devices, if this host has any.
    pub(crate) helper: Option<Arc<Helper>>,
    /// What keeps clients, if anything does.
    pub(crate) keeper: Option<Arc<Keeper>>,
    /// Those that are known; what is missing is noted.
    pub(crate) forecasts: Forecasts,
    pub(crate) groups: Arc<GroupIds>,
    pub(crate) disk_keys: DiskKeys,
}

/// A drive with all that is its own: pollers, tenants with their sockets, the layout. What happens on one touches no
/// other.
pub struct ServedDrive {
    /// Its disks, and the file's view of it.
    pub(crate) state: DriveState,
    pub(crate) profile: Profile,
    pub(crate) policy: PolicyConfig,
    pub(crate) pollers: Pollers,
    pub(crate) tenants: BTreeMap<TenantId, Live>,
    /// Tenants that the present command has taken off their pollers, and is to wait for.
    pub(crate) awaited: Vec<TenantId>,
    next_tenant: Arc<AtomicU32>,
    /// Where the state's layout is recorded.
    pub(crate) layout_file: LayoutFile,
    /// Of tenants that come with the configuration, until they are served.
    sockets: BTreeMap<String, Listener>,
    pub(crate) zeroing: Option<Zeroing>,
    pub(crate) waiting: BTreeMap<TenantId, Ready>,
    /// Tenants whose keys are not here.
    pub(crate) locked: BTreeMap<TenantId, Ready>,
    /// The names of disks that events called locked last.
    pub(crate) told_locked: BTreeSet<String>,
    /// What is done once a controller has let go of a namespace.
    pub(crate) detaching: BTreeMap<At, Vec<Then>>,
    /// What is done once no poller has a disk's former key, in the order of the erasures.
    pub(crate) erasing: BTreeMap<TenantId, Vec<Then>>,
    pub(crate) wiper: Wiper,
    pub(crate) reencryptions: Reencryptions,
    /// What thin disks share, if the drive has a pool.
    pub(crate) pool: Option<ThinPool>,
    pub(crate) snapshots: Snapshots,
    pub(crate) images: ImageDisks,
    /// Of encrypted disks, by name: what keeps commands away from a part of each.
    pub(crate) held: BTreeMap<String, Arc<HeldRange>>,
    pub(crate) foresight: Arc<Foresight>,
    pub(crate) forecasts: Forecasts,
    groups: Arc<GroupIds>,
    pub(crate) disk_keys: DiskKeys,
    clock: Clock,
    pub(crate) teller: Teller,
    pub(crate) around: Surroundings,
    pub(crate) events: Arc<EventLog>,
    helper: Option<Arc<Helper>>,
    keeper: Option<Arc<Keeper>>,
    pub(crate) lock: DeviceLock,
}

impl ServedDrive {
    /// Nobody is served yet.
    pub(crate) fn new(id: DriveId, opened: OpenedDrive, common: Common) -> Self {
        let OpenedDrive { config, profile, policy, layout, lock, drive, near_cpus, sockets } = opened;
        let Common { next_tenant, threads, clock, handle, mut around, events, helper, keeper, forecasts, .. } = common;
        let (groups, disk_keys) = (common.groups, common.disk_keys);
        around.sink = log::on_drive(around.sink, &config.device.name);
        let teller = Teller::new(move |happening| handle.tell(Command::Happened(id, happening)));
        drive.report_to(teller.clone());
        let pollers = Pollers::new(drive, threads, clock, near_cpus, groups.ceilings());
        let facts = Facts { block_bytes: pollers.drive_facts().block_bytes, can_zero: pollers.zeroer().is_some() };
        Self {
            tenants: BTreeMap::new(),
            awaited: Vec::new(),
            next_tenant,
            sockets,
            zeroing: None,
            waiting: BTreeMap::new(),
            locked: BTreeMap::new(),
            told_locked: BTreeSet::new(),
            detaching: BTreeMap::new(),
            erasing: BTreeMap::new(),
            wiper: Wiper::default(),
            reencryptions: Reencryptions::default(),
            pool: None,
            snapshots: Snapshots::default(),
            images: ImageDisks::default(),
            held: BTreeMap::new(),
            forecasts: forecasts.clone(),
            groups,
            disk_keys,
            foresight: Arc::new(Foresight::new(&config, &profile, policy.clone(), &forecasts)),
            state: DriveState::new(config, layout.layout().cloned(), facts),
            layout_file: layout,
            policy,
            clock,
            teller,
            around,
            events,
            helper,
            keeper,
            profile,
            lock,
            pollers,
        }
    }

    /// By the pollers' clock.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// For threads that read what its tenants get.
    pub fn view(&self) -> DriveView {
        let (board, foresight) = (Arc::clone(self.pollers.board()), Arc::clone(&self.foresight));
        let (health, wiper) = (self.pollers.drive_health(), self.wiper.probes.clone());
        DriveView { name: self.config().device.name.as_str().into(), board, foresight, health, wiper }
    }

    /// Serves all tenants of the configuration.
    ///
    /// # Errors
    /// A tenant that can't be served, or a thread that can't be started.
    pub fn start_tenants(&mut self) -> Result<()> {
        let config = self.state.shared_config();
        self.read_changes();
        let parts = self.pollers.open_planned(&config, &self.policy)?;
        self.open_pool()?;
        self.images.start(self.pollers.take_images(), &self.teller);
        let begin = |(tenant, parts): (&Tenant, Vec<Part>)| {
            let id = self.create(tenant.into(), None)?;
            self.begin_to_add(id, tenant.clone(), &config, parts).map(|()| id)
        };
        let coming: Vec<TenantId> = config.tenants.iter().zip(parts).map(begin).collect::<Result<_>>()?;
        self.start_namespaces(&config)?;
        coming.into_iter().try_for_each(|id| self.apply(StateCommand::Placed(id)))
    }

    /// Something happened here.
    pub fn happened(&mut self, happening: Happening) {
        match happening {
            Happening::Left(id) => self.left(id),
            Happening::Erase(id, record) => self.record_erasure(id, record),
            Happening::NamespaceLeft(controller, nsid) => {
                self.apply_or_warn(StateCommand::Detached((controller, nsid)))
            }
            Happening::Erased(id) => self.erased(id),
            Happening::Zeroed(zeroed) => self.zeroed(zeroed),
            Happening::Wiped(step) => self.wiped(step),
            Happening::Looked(range, pieces) => self.overwrite(range, pieces),
            Happening::WiperLeft(id) => self.wiper_left(id),
            Happening::Reencrypted(id, result) => self.reencrypted(id, result),
            Happening::ReencrypterLeft(id) => self.reencrypter_left(id),
            Happening::Quiet(witness) => self.drop_when_all_are_quiet(&witness),
            Happening::Frozen(token) => self.frozen(token),
            Happening::Room(room) => self.tell_room(room),
            Happening::PoolFailed(why) => self.pool_fails(&why),
            Happening::ImageFailed(name, why) => self.image_fails(&name, &why),
            Happening::DriveFailing(what) => self.drive_fails(&what),
        }
    }

    fn drive_fails(&mut self, what: &str) {
        let name = &self.config().device.name;
        self.events.tell(EventKind::DriveFailing, None, Some(format!("{name}: {what}")));
        if self.pollers.is_drive_gone() {
            // Pollers that sleep are to let go of it too: it can't be taken away before.
            self.pollers.tell_behaviour(self.state.config());
        }
    }

    fn image_fails(&self, name: &str, what: &str) {
        let line = format!("{name}: {what}");
        (self.around.sink)(Level::Warn.of_tenant(name), &line);
        self.events.tell(EventKind::DriveFailing, Some(name), Some(line));
    }

    /// The file's view of this drive, with the disks that were made since.
    pub(crate) fn config(&self) -> &Config {
        self.state.config()
    }

    /// Applies a command to the drive's state: records the layout, and carries out what follows. If the record fails,
    /// nothing has changed. An effect that fails keeps no other from being carried out.
    ///
    /// # Errors
    /// A [`DiskError`] where the command is refused or can't be recorded; else what the first failed effect says.
    pub(crate) fn apply(&mut self, command: StateCommand) -> Result<()> {
        let before = self.state.may_record(&command).then(|| self.state.clone());
        let Effects { record, then } = self.state.apply(command)?;
        let recorded = match record {
            Some(Record::Keep(layout)) => self.layout_file.save(layout),
            Some(Record::Withdraw(layout)) => self.layout_file.save_without_withdrawn(layout),
            None => Ok(()),
        };
        if let Err(error) = recorded {
            before.into_iter().for_each(|before| self.state = before);
            return Err(not_durable(&error).into());
        }
        let mut failed = None;
        for effect in then {
            if let Err(error) = self.carry_out(effect) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// News that nobody waits for.
    pub(crate) fn apply_or_warn(&mut self, news: StateCommand) {
        if let Err(error) = self.apply(news) {
            (self.around.sink)(Level::Warn.of_drive(&self.config().device.name), &format!("{error:#}"));
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Result<()> {
        match effect {
            Effect::Connect(id) => {
                if let Some(ready) = self.waiting.remove(&id) {
                    self.connect(id, ready)?;
                }
            }
            Effect::Zero(id) => self.zero(id)?,
            Effect::Leave(id) => self.leave(id),
            Effect::StopZeroing(id) => self.zeroing.iter().for_each(|zeroing| zeroing.cancel(id)),
            Effect::Order(controller, order) => self.order_namespace(controller, order),
            Effect::ShowSize(id) => self.show_size(id),
            Effect::TellDetached(at) => self.tell_detached(at),
            Effect::TellZeroed(id) => self.tell_zeroed(id),
            Effect::TellNotZeroed(id, why) => self.tell_not_zeroed(id, &why),
            Effect::Wipe => self.wipe_next(),
            Effect::RemoveMaps(maps) => self.remove_maps(maps)?,
            Effect::ExtendPool(ranges) => self.pool.as_ref().map_or(Ok(()), |pool| pool.pieces().extend(ranges))?,
        }
        Ok(())
    }

    /// A disk comes, and has a place on the drive. `section`: of a disk that the configuration file does not have.
    pub(crate) fn create(&mut self, mut disk: NewDisk, section: Option<&str>) -> Result<TenantId> {
        let id = self.new_id();
        // A clone has the key of its origin.
        if disk.key.is_none() {
            self.give_key(&mut disk)?;
        }
        self.apply(StateCommand::Create { id, disk, section: section.map(str::to_owned) })?;
        Ok(id)
    }

    /// Where a disk lies, and what keeps its guests away from a part of it while that is re-encrypted.
    pub(crate) fn extents(&self, placement: &Placement) -> Extents {
        let map = placement.thin.as_ref().and_then(|thin| self.pool.as_ref()?.table(thin.map));
        let map = map.or_else(|| self.images.map(&placement.name));
        let lies = map.map_or_else(|| placement.to_look_up(), Extents::thin);
        lies.with_held(self.held.get(&placement.name).cloned())
    }

    /// A disk without a place yet gets the key that it is to have.
    pub(crate) fn give_key(&mut self, disk: &mut NewDisk) -> Result<(), DiskError> {
        if self.state.layout().is_some() && self.state.placement(&disk.name).is_none() {
            disk.key = self.disk_keys.of_new(&disk.name, disk.encryption)?;
        }
        if disk.key.is_some() || self.is_encrypted(&disk.name) {
            self.held.entry(disk.name.clone()).or_default();
        }
        Ok(())
    }

    /// A tenant comes with a disk. `section` as for [`create`](Self::create). A failure leaves no trace of the disk.
    pub(crate) fn add(&mut self, tenant: Tenant, config: &Config, section: Option<&str>) -> Result<()> {
        self.add_with(tenant, config, section, None)
    }

    /// As [`add`](Self::add), of a disk with that key. `None`: it gets one of its own, if it is to be encrypted.
    pub(crate) fn add_with(
        &mut self,
        mut tenant: Tenant,
        config: &Config,
        section: Option<&str>,
        key: Option<StoredKey>,
    ) -> Result<()> {
        tenant.lba_bytes = tenant.lba_bytes.max(self.state.facts().block_bytes);
        self.pollers.check_cpus(&tenant)?;
        let is_new = self.state.layout().is_some() && self.state.placement(&tenant.name).is_none();
        let (name, size) = (tenant.name.clone(), tenant.size);
        let id = self.create(NewDisk { key, ..(&tenant).into() }, section)?;
        if let Err(error) = self.serve(id, tenant, config) {
            if is_new && let Err(error) = self.apply(StateCommand::Withdraw(id)) {
                (self.around.sink)(Level::Warn.of_tenant(&name), &format!("{name}: its range stays reserved: {error}"));
            } else if !is_new {
                self.apply_or_warn(StateCommand::Remove(id));
            }
            return Err(error);
        }
        self.events.tell(EventKind::Created, Some(&name), Some(size.to_string()));
        Ok(())
    }

    /// Serves a tenant whose disk has a place.
    ///
    /// # Errors
    /// Why it is not served. Its disk is not there then.
    pub(crate) fn serve_placed(&mut self, tenant: Tenant, config: &Config) -> Result<TenantId> {
        let id = self.create((&tenant).into(), None)?;
        self.serve(id, tenant, config).inspect_err(|_| self.apply_or_warn(StateCommand::Remove(id)))?;
        Ok(id)
    }

    /// `config`: says where the tenant is served.
    fn serve(&mut self, id: TenantId, tenant: Tenant, config: &Config) -> Result<()> {
        config.make_socket_directory(&tenant, None)?;
        let parts = self.pollers.open_for(config, &self.policy, &tenant)?;
        self.begin_to_add(id, tenant, config, parts)?;
        self.apply(StateCommand::Placed(id))
    }

    /// Given once.
    pub(crate) fn new_id(&self) -> TenantId {
        TenantId(self.next_tenant.fetch_add(1, Ordering::Relaxed))
    }

    /// The tenant that has that name now.
    pub(crate) fn find_tenant(&self, name: &str) -> Option<TenantId> {
        self.state.find_tenant(name)
    }

    /// Which tenant or namespace has that name now.
    pub(crate) fn find_disk(&self, name: &str) -> Option<TenantId> {
        self.state.disks().find(name)
    }

    /// Makes a tenant's front end, and sends its queues to their pollers.
    fn begin_to_add(&mut self, id: TenantId, tenant: Tenant, config: &Config, parts: Vec<Part>) -> Result<()> {
        self.open_map(&tenant)?;
        self.images.refuse_unopened(&tenant)?;
        let promise = Arc::<OwnPromise>::default();
        let made = self.fit(id, &tenant, &parts, &promise).with_context(|| format!("tenant {}", tenant.name));
        let Fitted { parts: front_ends, serve } = made.inspect_err(|_| self.pollers.close_unused(config))?;
        let terms = at_pollers(&self.groups, &tenant, parts.len());
        self.tell_key(id, 0, &tenant.name);
        let add = |(front_end, part): (_, &Part)| self.pollers.add(part.poller, id, front_end, terms);
        let probes: TenantProbes = front_ends.into_iter().zip(&parts).map(add).collect();
        promise.measure(probes.clone());
        let foresight = Arc::make_mut(&mut self.foresight);
        foresight.set(id, &tenant, tenant.overcommit);
        foresight.measure(probes, promise.verdicts());
        self.events.set_labels(&tenant.name, &tenant.labels);
        let pollers = parts.iter().map(|part| part.poller).collect();
        let served_at = parts.into_iter().filter_map(|part| Some((part.queues, self.pollers.sender(part.poller)?)));
        self.waiting.insert(id, Ready { serve, served_at: served_at.collect() });
        let home = config.home(&tenant);
        self.tenants.insert(id, Live { tenant, server: None, pollers, home, leaving: None, comes_back: false });
        Ok(())
    }

    /// Pollers are told how a disk is encrypted, before its first command. Events tell when it becomes locked or is
    /// unlocked.
    pub(crate) fn tell_key(&mut self, tenant: TenantId, disk: u16, name: &str) {
        let Some(placement) = self.state.placement(name) else { return };
        let (access, why_locked) = self.disk_keys.access(placement);
        if let Some(why) = why_locked {
            if self.told_locked.insert(name.to_owned()) {
                (self.around.sink)(Level::Warn.of_tenant(name), &format!("{name}: locked: {why}; its commands fail"));
                self.events.tell(EventKind::Locked, Some(name), Some(why));
            }
        } else if self.told_locked.remove(name) {
            self.events.tell(EventKind::Unlocked, Some(name), None);
        }
        self.pollers.keys().set(tenant, disk, access);
    }

    fn fit(&mut self, id: TenantId, tenant: &Tenant, parts: &[Part], promise: &Arc<OwnPromise>) -> Result<Fitted> {
        let bind = || startup::bind(self.state.config(), tenant, None, self.keeper.as_ref());
        let listener = self.sockets.remove(&tenant.name).map_or_else(bind, |it| Ok(Some(it)))?;
        let placement = self.state.placement(&tenant.name).context("it has no place on the drive")?;
        let name = &tenant.name;
        if placement.sanitize.is_some_and(|it| it.state == SanitizeState::Running) {
            (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: its guest's Sanitize goes on"));
        } else if placement.formatting_to_lba_bytes.is_some() {
            let line =
                format!("{name}: a Format was cut short; reads and writes fail until its guest formats it again");
            (self.around.sink)(Level::Warn.of_tenant(name), &line);
        }
        let teller = self.teller.clone();
        fit(Making {
            id,
            tenant,
            placement,
            extents: self.extents(placement),
            drive: &self.pollers.drive_facts(),
            pins: self.pollers.pins(),
            policy: self.policy.kind(),
            queues: &parts.iter().map(|part| part.queues.clone()).collect::<Vec<_>>(),
            listener,
            promise: Arc::clone(promise),
            helper: self.helper.clone(),
            drive_mark: &self.drive_mark(),
            around: self.around.clone(),
            on_erase: Box::new(move |record| teller.tell(Happening::Erase(id, record))),
        })
    }

    /// The mark by which a later daemon recognizes the block devices of this drive's disks as its own.
    ///
    /// It is not the drive's own identifier. If a client handed the drive over while the daemon ran, only the next
    /// start reads that identifier, and the mark must not change.
    fn drive_mark(&self) -> String {
        format!("{}:{}", self.config().runtime_dir.display(), self.config().device.name)
    }

    /// A disk without its key waits for it.
    pub(crate) fn connect(&mut self, id: TenantId, ready: Ready) -> Result<()> {
        let placement = self.tenants.get(&id).and_then(|live| self.state.placement(&live.tenant.name));
        if placement.is_some_and(|it| self.disk_keys.is_locked(it) || self.images.is_missing(&it.name)) {
            self.locked.insert(id, ready);
            return Ok(());
        }
        self.put_on_socket(id, ready)
    }

    pub(crate) fn put_on_socket(&mut self, id: TenantId, ready: Ready) -> Result<()> {
        let server = (ready.serve)(ready.served_at)?;
        if let Some(live) = self.tenants.get_mut(&id) {
            live.server = Some(server);
        }
        Ok(())
    }

    pub(crate) fn change(&mut self, id: TenantId, terms: Terms) -> Result<()> {
        let Some(live) = self.tenants.get_mut(&id).filter(|live| live.leaving.is_none()) else {
            return Err(nobody(id).into());
        };
        live.tenant.terms = terms;
        let terms = at_pollers(&self.groups, &live.tenant, live.pollers.len());
        live.pollers.iter().for_each(|poller| self.pollers.send(*poller, Message::ChangeTerms(id, terms)));
        let overcommits = live.tenant.overcommit;
        Arc::make_mut(&mut self.foresight).set(id, &live.tenant, overcommits);
        self.events.set_labels(&live.tenant.name, &live.tenant.labels);
        Ok(())
    }

    /// The policy that `config` asks for, if it can take over while the pollers run.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn can_have_policy_of(&self, config: &Config) -> Result<PolicyConfig, String> {
        let policy = planning::policy(config, &self.profile);
        self.pollers.can_change(&self.policy, &policy).map(|()| policy)
    }

    /// Another policy decides from now on.
    pub(crate) fn change_policy(&mut self, policy: PolicyConfig) {
        if policy == self.policy {
            return;
        }
        self.pollers.change_policy(&policy);
        let foresight = Arc::make_mut(&mut self.foresight);
        foresight.change_policy(policy.clone());
        for (id, live) in &self.tenants {
            foresight.set(*id, &live.tenant, live.tenant.overcommit);
        }
        let name = &self.config().device.name;
        (self.around.sink)(Level::Info.of_drive(name), &format!("drive {name}: {} decides now", policy.name()));
        self.events.tell(EventKind::PolicyChanged, None, Some(format!("{name}: {}", policy.name())));
        self.policy = policy;
    }

    /// Takes its tenants off their sockets, and has what is in flight completed. Returns what serves the sockets.
    pub fn begin_to_stop(&mut self) -> Vec<Reached> {
        self.zeroing = None;
        let servers: Vec<Reached> = self.tenants.values_mut().filter_map(|live| live.server.take()).collect();
        servers.iter().for_each(Reached::stop);
        self.pollers.begin_to_drain();
        servers
    }
}

/// What a tenant is promised and held to.
pub(crate) fn terms_in_words(terms: &Terms) -> String {
    let promise = match terms.class {
        Class::Guaranteed { latency_target: Some(target), percentile: Percentile::P99 } => format!("promised {target}"),
        Class::Guaranteed { latency_target: Some(target), percentile } => {
            format!("promised {target} for {percentile} % of its commands")
        }
        Class::Guaranteed { latency_target: None, .. } => "promised".to_owned(),
        Class::BestEffort { weight } => format!("weight {weight}"),
    };
    let floor = terms.floor.in_words().map(|floor| format!(", at least {floor}")).unwrap_or_default();
    let limits = terms.limits.in_words().map(|limits| format!(", at most {limits}")).unwrap_or_default();
    format!("{promise}{floor}{limits}")
}

pub(crate) fn answer<T>(to: &Sender<T>, answer: T) {
    // The asking thread may have given up.
    let _ = to.send(answer);
}

/// A tenant's terms at each of its pollers.
fn at_pollers(groups: &GroupIds, tenant: &Tenant, pollers: usize) -> Terms {
    let group = tenant.group.as_deref().and_then(|name| groups.of(name));
    Terms { pollers: pollers as u16, group, ..tenant.terms }
}
