//! One of the daemon's drives, with its pollers, tenants, sockets and layout. All calls come from the owner.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::EventKind;
use client_socket::{Keeper, Level, Listener, Surroundings};
use config::{Config, ConfigErrors, DeviceLock, Home, Tenant};
use io_model::{Nanos, TenantId};
use layout::{Layout, LayoutFile};
use nvme_controller::{FormatRecord, FormatStep};
use policy::{Class, Percentile, PolicyConfig, Terms};
use poller::{Probe, TenantSlot};
use promises::planning;
use ssd_model::Profile;
use ublk::Helper;

use observe::DriveView;
use observe::clock::Clock;

use crate::log;
use crate::namespaces::Namespaces;
use crate::startup::{self, OpenedDrive};
use crate::wipe_state::Wipes;
use observe::events::EventLog;
use observe::foresight::Foresight;
use observe::promises_watch::PromiseWatch;
use promises::forecasts::Forecasts;
use runtime::command::{Command, Handle};
use runtime::front_end::{self, Fitted, Making, Reached, ServedAt, fit};
use runtime::happening::{DriveId, Happening, Teller};
use runtime::poller_thread::{Addition, Message, TenantAt};
use runtime::pollers::{Part, PollerId, PollerThreads, Pollers};
use runtime::zeroer::Zeroing;

/// A poller that has not taken a tenant on by then is stuck.
pub(crate) const ADD_LIMIT: Duration = Duration::from_secs(5);

/// A tenant that is there.
pub(crate) struct Live {
    pub(crate) tenant: Tenant,
    /// `None`: it is leaving, or not served yet.
    pub(crate) server: Option<Reached>,
    pub(crate) places: Vec<(PollerId, TenantSlot)>,
    /// The tenants that these pollers are for, as configured when this tenant came.
    pub(crate) home: Home,
    /// It was told to go: pollers that have not let go of it yet.
    pub(crate) leaving: Option<usize>,
}

/// A tenant whose queues are on their way to its pollers.
struct Coming {
    id: TenantId,
    fitted: Fitted,
    parts: Vec<Part>,
    slots: Vec<Receiver<TenantSlot>>,
}

/// What puts a tenant on its socket, once its queues are with their pollers.
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
}

/// A drive with all that is its own: pollers, tenants with their sockets, the layout. What happens on one touches no
/// other.
pub struct ServedDrive {
    /// The file's view of this drive, with the disks that were made since.
    pub(crate) config: Config,
    pub(crate) profile: Profile,
    pub(crate) policy: PolicyConfig,
    pub(crate) pollers: Pollers,
    pub(crate) tenants: BTreeMap<TenantId, Live>,
    pub(crate) namespaces: Namespaces,
    next_tenant: Arc<AtomicU32>,
    pub(crate) layout: LayoutFile,
    /// Of tenants that come with the configuration, until they are served.
    sockets: BTreeMap<String, Listener>,
    pub(crate) zeroing: Option<Zeroing>,
    pub(crate) waiting: BTreeMap<TenantId, Ready>,
    pub(crate) wipes: Wipes,
    pub(crate) foresight: Arc<Foresight>,
    pub(crate) forecasts: Forecasts,
    promises: PromiseWatch,
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
        let OpenedDrive { config, profile, policy, layout, lock, drive, sockets } = opened;
        let Common { next_tenant, threads, clock, handle, mut around, events, helper, keeper, forecasts } = common;
        around.sink = log::on_drive(around.sink, &config.device.name);
        let teller = Teller::new(move |happening| handle.tell(Command::Happened(id, happening)));
        drive.report_to(teller.clone());
        let pollers = Pollers::new(drive, threads, clock);
        let promises = PromiseWatch::new(pollers.board(), clock.now(), Arc::clone(&around.sink), Arc::clone(&events));
        Self {
            tenants: BTreeMap::new(),
            namespaces: Namespaces::default(),
            next_tenant,
            layout,
            sockets,
            zeroing: None,
            waiting: BTreeMap::new(),
            wipes: Wipes::default(),
            forecasts: forecasts.clone(),
            foresight: Arc::new(Foresight::new(&config, &profile, policy.clone(), &forecasts)),
            policy,
            promises,
            clock,
            teller,
            around,
            events,
            helper,
            keeper,
            profile,
            lock,
            config,
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
        let (health, wiper) = (self.pollers.drive_health(), self.wipes.wiper());
        DriveView { name: self.config.device.name.as_str().into(), board, foresight, health, wiper }
    }

    /// All tenants of the configuration at once: nobody waits for a poller to take them on one by one.
    ///
    /// # Errors
    /// A tenant that can't be served, or a thread that can't be started.
    pub fn start_tenants(&mut self) -> Result<()> {
        let tenants = self.config.tenants.clone();
        let parts = self.pollers.open_planned(&self.config, &self.policy)?;
        let coming: Result<Vec<Coming>> =
            tenants.into_iter().zip(parts).map(|(tenant, parts)| self.begin_to_add(tenant, parts)).collect();
        let coming = coming?;
        self.start_namespaces()?;
        coming.into_iter().try_for_each(|coming| self.bring(coming))
    }

    /// What to wait for a command at most, to look at promises in time. Nobody is watched where nobody was promised
    /// anything.
    pub fn patience(&self) -> Option<Duration> {
        let promised = self.tenants.values().any(|live| live.tenant.is_promised());
        promised.then(|| self.promises.patience(self.clock.now()))
    }

    /// Holds what tenants got against their targets, if it is time to.
    pub fn look_at_promises(&mut self) {
        self.promises.look(self.clock.now(), self.pollers.board(), &self.foresight);
    }

    /// Tenants whose promises fail.
    pub(crate) fn broken_promises(&self) -> impl Iterator<Item = &str> {
        let names = self.promises.broken().filter_map(|id| self.tenants.get(&id));
        names.map(|live| live.tenant.name.as_str())
    }

    /// Something happened here.
    pub fn happened(&mut self, happening: Happening) {
        match happening {
            Happening::Left(id) => self.left(id),
            Happening::Format(id, record) => self.record_format(id, record),
            Happening::NamespaceLeft(controller, nsid) => self.namespace_left(controller, nsid),
            Happening::Zeroed(zeroed) => self.zeroed(zeroed),
            Happening::Wiped(step) => self.wiped(step),
            Happening::Looked(range, pieces) => self.overwrite(range, pieces),
            Happening::WiperLeft(id) => self.wiper_left(id),
            Happening::DriveFailing(what) => self.drive_fails(&what),
        }
    }

    fn drive_fails(&mut self, what: &str) {
        let name = &self.config.device.name;
        self.events.tell(EventKind::DriveFailing, None, Some(format!("{name}: {what}")));
        if self.pollers.is_drive_gone() {
            // Pollers that sleep are to let go of it too: it can't be taken away before.
            self.pollers.tell_behaviour(&self.config);
        }
    }

    /// `settings`: of a disk that the configuration file does not have. What comes to nothing leaves no trace of it.
    pub(crate) fn add(&mut self, mut tenant: Tenant, settings: Option<&str>) -> Result<TenantId> {
        tenant.lba_bytes = tenant.lba_bytes.max(self.pollers.drive_facts().block_bytes);
        if self.find_disk(&tenant.name).is_some() {
            bail!("there is a disk {:?} already; choose another name, or remove that one first", tenant.name);
        }
        self.pollers.check_cpus(&tenant).map_err(|problem| anyhow!("{}; {}", problem.title, problem.remedy))?;
        let is_new = self.layout.layout().is_some_and(|layout| layout.find(&tenant.name).is_none());
        self.place(&tenant, settings)?;
        let (name, size) = (tenant.name.clone(), tenant.size);
        let added = self.serve_placed(tenant);
        if added.is_ok() {
            self.events.tell(EventKind::Created, Some(&name), Some(size.to_string()));
        }
        if added.is_err()
            && is_new
            && let Err(error) = self.layout.withdraw(&name)
        {
            (self.around.sink)(Level::Warn.of_tenant(&name), &format!("{name}: its range stays reserved: {error}"));
        }
        added
    }

    /// A tenant that has its range of the drive.
    pub(crate) fn serve_placed(&mut self, tenant: Tenant) -> Result<TenantId> {
        self.config.make_socket_directory(&tenant, None)?;
        let parts = self.pollers.open_for(&self.config, &self.policy, &tenant)?;
        let coming = self.begin_to_add(tenant, parts)?;
        let id = coming.id;
        self.bring(coming)?;
        Ok(id)
    }

    /// Gives a tenant its range of the drive, durably. One that was there before has it still.
    fn place(&mut self, tenant: &Tenant, settings: Option<&str>) -> Result<()> {
        if self.layout.layout().is_none_or(|layout| layout.find(&tenant.name).is_some()) {
            return Ok(());
        }
        let Some(mut layout) = self.placed(tenant)? else { return Ok(()) };
        if self.pollers.zeroer().is_none() {
            layout.accept_content();
        }
        if let Some(settings) = settings {
            layout.set_settings(&tenant.name, settings);
        }
        self.layout.save(layout).map_err(|e| anyhow!("{}; {}", e.what(), e.remedy()))
    }

    /// The layout with one more tenant; `None`: the drive has none.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn placed(&self, tenant: &Tenant) -> Result<Option<Layout>, ConfigErrors> {
        let Some(recorded) = self.layout.layout() else { return Ok(None) };
        let placed: HashSet<&str> = recorded.placements().iter().map(|placement| placement.name.as_str()).collect();
        let mut config = self.config.clone();
        let tenants = self.tenants.values().map(|live| &live.tenant);
        // What is leaving has none any more, and must not get one again.
        let tenants = tenants.filter(|it| placed.contains(it.name.as_str())).chain([tenant]);
        config.tenants = tenants.cloned().collect();
        config.namespaces.retain(|it| placed.contains(it.name.as_str()));
        config.plan_layout(recorded.device(), Some(recorded)).map(|(layout, _)| Some(layout))
    }

    /// Given once.
    pub(crate) fn new_id(&self) -> TenantId {
        TenantId(self.next_tenant.fetch_add(1, Ordering::Relaxed))
    }

    /// The tenant that has that name now.
    pub(crate) fn find_tenant(&self, name: &str) -> Option<TenantId> {
        self.tenants.iter().find(|(_, live)| live.tenant.name == name).map(|(id, _)| *id)
    }

    /// Which tenant or namespace has that name now.
    pub(crate) fn find_disk(&self, name: &str) -> Option<TenantId> {
        self.find_tenant(name).or_else(|| self.namespaces.find(name))
    }

    /// Makes a tenant's front end, and sends its queues to their pollers. It has an identifier from now on.
    fn begin_to_add(&mut self, tenant: Tenant, parts: Vec<Part>) -> Result<Coming> {
        let id = self.new_id();
        let fitted = self.fit(id, &tenant, &parts);
        let made = fitted.with_context(|| format!("tenant {}", tenant.name));
        let mut fitted = match made {
            Ok(fitted) => fitted,
            Err(error) => {
                self.pollers.close_unused(&self.config);
                return Err(error);
            }
        };
        let terms = Terms { pollers: parts.len() as u16, ..tenant.terms };
        let add = |(front_end, part): (_, &Part)| {
            let probe = Arc::new(Probe::new(id, terms.class));
            let (done, slot) = channel();
            self.pollers.send(part.poller, Message::Add(Box::new(Addition { front_end, id, probe, terms }), done));
            slot
        };
        let slots = std::mem::take(&mut fitted.parts).into_iter().zip(&parts).map(add).collect();
        parts.iter().for_each(|part| self.pollers.serves(part.poller, id));
        let overcommits = tenant.overcommit;
        Arc::make_mut(&mut self.foresight).set(id, &tenant, overcommits);
        let home = self.config.home(&tenant);
        self.tenants.insert(id, Live { tenant, server: None, places: Vec::new(), home, leaving: None });
        Ok(Coming { id, fitted, parts, slots })
    }

    fn fit(&mut self, id: TenantId, tenant: &Tenant, parts: &[Part]) -> Result<Fitted> {
        let bind = || startup::bind(&self.config, tenant, None, self.keeper.as_ref());
        let listener = self.sockets.remove(&tenant.name).map_or_else(bind, |it| Ok(Some(it)))?;
        let placement = self.layout.layout().and_then(|layout| layout.find(&tenant.name));
        let placement = placement.context("it has no place on the drive")?;
        if placement.formatting_to_lba_bytes.is_some() {
            let name = &tenant.name;
            let line =
                format!("{name}: a Format was cut short; reads and writes fail until its guest formats it again");
            (self.around.sink)(Level::Warn.of_tenant(name), &line);
        }
        let teller = self.teller.clone();
        fit(Making {
            id,
            tenant,
            placement,
            drive: &self.pollers.drive_facts(),
            pins: self.pollers.pins(),
            policy: self.policy.kind(),
            queues: &parts.iter().map(|part| part.queues.clone()).collect::<Vec<_>>(),
            listener,
            helper: self.helper.clone(),
            drive_mark: &self.drive_mark(),
            around: self.around.clone(),
            on_format: Box::new(move |record| teller.tell(Happening::Format(id, record))),
        })
    }

    /// The mark by which a later daemon recognizes the block devices of this drive's disks as its own.
    ///
    /// It is not the drive's own identifier. If a client handed the drive over while the daemon ran, only the next
    /// start reads that identifier, and the mark must not change.
    fn drive_mark(&self) -> String {
        format!("{}:{}", self.config.runtime_dir.display(), self.config.device.name)
    }

    /// Waits for the places of a tenant's queues, and lets clients connect, or has its range zeroed before.
    fn bring(&mut self, coming: Coming) -> Result<()> {
        let Coming { id, fitted, parts, slots } = coming;
        let Some(live) = self.tenants.get_mut(&id) else { return Ok(()) };
        let mut served_at = Vec::new();
        let mut failed = None;
        for (part, slot) in parts.iter().zip(&slots) {
            match slot.recv_timeout(ADD_LIMIT) {
                Ok(slot) => {
                    live.places.push((part.poller, slot));
                    let sender = self.pollers.sender(part.poller);
                    served_at.extend(sender.map(|sender| (part.queues.clone(), sender, TenantAt { id, slot })));
                }
                Err(_) => failed = Some(anyhow!("tenant {}: a poller has no place for it", live.tenant.name)),
            }
        }
        let name = live.tenant.name.clone();
        let ready = Ready { serve: fitted.serve, served_at };
        let brought = match failed {
            Some(error) => Err(error),
            None => {
                // Its first client finds them there.
                self.settle_namespaces();
                self.zero_or_serve(id, &name, ready)
            }
        };
        if brought.is_err() {
            self.remove(id);
        }
        brought
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
            bail!("{}", nobody(id))
        };
        live.tenant.terms = terms;
        let terms = Terms { pollers: live.places.len() as u16, ..terms };
        for (poller, slot) in &live.places {
            self.pollers.send(*poller, Message::ChangeTerms(TenantAt { id, slot: *slot }, terms));
        }
        let overcommits = live.tenant.overcommit;
        Arc::make_mut(&mut self.foresight).set(id, &live.tenant, overcommits);
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
        let name = &self.config.device.name;
        (self.around.sink)(Level::Info.of_drive(name), &format!("drive {name}: {} decides now", policy.name()));
        self.events.tell(EventKind::PolicyChanged, None, Some(format!("{name}: {}", policy.name())));
        self.policy = policy;
    }

    fn record_format(&mut self, id: TenantId, record: FormatRecord) {
        let Some(Live { tenant, places, .. }) = self.tenants.get(&id) else { return };
        let lba_bytes = record.lba_bytes;
        let namespace = self.namespaces.at(id, record.nsid);
        let name = match namespace {
            Some((_, live)) => &live.namespace.name,
            None => &tenant.name,
        };
        let holders = namespace.map_or(1, |(id, _)| self.namespaces.holders(id));
        let recorded = match record.step {
            _ if namespace.is_none() && record.nsid != front_end::NSID => Err("it was detached meanwhile".to_owned()),
            // Another controller got it while the guest began.
            FormatStep::Begins if holders > 1 => Err("another tenant has it too".to_owned()),
            FormatStep::Begins => self.layout.begin_format(name, lba_bytes).map_err(|it| why(&it)),
            FormatStep::Ends => self.layout.set_lba_bytes(name, lba_bytes).map_err(|it| why(&it)),
        };
        match (&recorded, record.step) {
            (Ok(()), FormatStep::Begins) => {}
            (Ok(()), FormatStep::Ends) => {
                (self.around.sink)(
                    Level::Info.of_tenant(name),
                    &format!("{name}: formatted with LBAs of {lba_bytes} bytes"),
                );
            }
            (Err(error), _) => {
                (self.around.sink)(Level::Warn.of_tenant(name), &format!("{name}: its Format fails: {error}"));
            }
        }
        for (poller, slot) in places {
            let order = front_end::recorded(record, recorded.is_ok());
            self.pollers.send(*poller, Message::Order(TenantAt { id, slot: *slot }, order));
        }
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

fn why(error: &layout::LayoutError) -> String {
    format!("{}; {}", error.what(), error.remedy())
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

pub(crate) fn nobody(id: TenantId) -> String {
    format!("there is no tenant with the identifier {}", id.0)
}

pub(crate) fn answer<T>(to: &Sender<T>, answer: T) {
    // The asking thread may have given up.
    let _ = to.send(answer);
}
