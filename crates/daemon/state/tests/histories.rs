//! Random commands to a drive's state, crashes between any two effects, and a model that knows the content of each MiB:
//! no guest sees another disk's data, and what was recorded is there after a crash.
//!
//! `EVENKEEL_SEED` replays a history.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use api::{Attach, DiskError, DiskPatch, DiskSpec, Reason};
use config::Config;
use fastrand::Rng;
use io_model::TenantId;
use keys::StoredKey;
use layout::{DeviceIdentity, Layout, Sanitize, SanitizeState, WipeMethod, Wiping};
use state::{At, Command, DriveState, Effect, Facts, NamespaceOrder, NewDisk, Phase, Record};

const MIB: u64 = 1 << 20;
const COMMANDS_EACH: u64 = 500;

/// What a MiB of the drive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Zeros,
    /// What was there before, or a pass of a wipe.
    Unknown,
    /// A disk's data, by the number of its creation.
    Data(u32),
}

/// A disk as its owner knows it: it was created, and is not deleted.
#[derive(Debug, Clone)]
struct Owned {
    number: u32,
    /// The guest has written to all of these.
    seen_mib: u64,
    mib: u64,
}

/// A range that is being zeroed: the disk, what is left of it, and the bytes from its start that need no zeroing.
#[derive(Debug, Clone)]
struct ZeroJob {
    id: TenantId,
    places: VecDeque<u64>,
    zeroed_bytes: u64,
    is_stopped: bool,
}

struct World {
    random: Rng,
    file: Config,
    state: DriveState,
    recorded: Layout,
    drive: Vec<Holds>,
    owned: BTreeMap<String, Owned>,
    /// Not carried out yet.
    effects: VecDeque<Effect>,
    leaving: Vec<TenantId>,
    detaching: Vec<At>,
    zeroing: Vec<ZeroJob>,
    wiping: Option<Wiping>,
    /// Where guests may write until pollers have let go, by controller and namespace: 1 is a tenant's own disk.
    writers: BTreeMap<At, (u32, Vec<u64>)>,
    next: u32,
    can_zero: bool,
    counts: BTreeMap<&'static str, u64>,
}

fn file(mib: u64) -> Config {
    let text = format!("[device]\nbackend = \"null\"\nsize = \"{mib}MiB\"\n[policy]\nname = \"passthrough\"\n");
    Config::parse(Path::new("ek.toml"), &text).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mib = random.u64(12..40);
        let device = DeviceIdentity { path: "/d".into(), size_bytes: mib * MIB, ..Default::default() };
        let (mut recorded, _) = Layout::plan(&[], None, &device, None).unwrap();
        // A drive that can't be zeroed is new memory.
        let can_zero = random.u32(..8) > 0;
        let is_blank = !can_zero || random.bool();
        if is_blank {
            recorded.is_all_zeros();
        }
        let facts = Facts { block_bytes: 512, can_zero };
        Self {
            state: DriveState::new(file(mib), Some(recorded.clone()), facts),
            file: file(mib),
            recorded,
            drive: vec![if is_blank { Holds::Zeros } else { Holds::Unknown }; mib as usize],
            owned: BTreeMap::new(),
            effects: VecDeque::new(),
            leaving: Vec::new(),
            detaching: Vec::new(),
            zeroing: Vec::new(),
            wiping: None,
            writers: BTreeMap::new(),
            next: 0,
            can_zero,
            random,
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Applies a command and records its layout. `Err`: it was refused. `Ok(false)`: a crash came before the record.
    fn apply(&mut self, command: Command) -> Result<bool, DiskError> {
        let may_record = self.state.may_record(&command);
        let effects = self.state.apply(command)?;
        assert!(may_record || effects.record.is_none(), "an unexpected record");
        if let Some(record) = effects.record {
            if self.random.u32(..200) == 0 {
                self.count("crashes before a record");
                self.crash();
                return Ok(false);
            }
            self.count(if matches!(record, Record::Keep(_)) { "records" } else { "withdrawals" });
            let (Record::Keep(layout) | Record::Withdraw(layout)) = record;
            self.recorded = layout;
        }
        self.effects.extend(effects.then);
        Ok(true)
    }

    fn news(&mut self, command: Command) -> bool {
        self.apply(command).unwrap_or_else(|refused| panic!("news are refused: {refused:?}"))
    }

    fn new_id(&mut self) -> TenantId {
        self.next += 1;
        TenantId(self.next)
    }

    fn tenant_name(&mut self) -> String {
        format!("t{}", self.random.u32(..5))
    }

    fn namespace_name(&mut self) -> String {
        format!("n{}", self.random.u32(..4))
    }

    /// Any name.
    fn name(&mut self) -> String {
        if self.random.bool() { self.tenant_name() } else { self.namespace_name() }
    }

    fn size(&mut self) -> (u64, String) {
        let mib = self.random.u64(1..9);
        (mib, format!("{mib}MiB"))
    }

    fn own(&mut self, name: String, id: TenantId, mib: u64) {
        self.owned.insert(name, Owned { number: id.0, seen_mib: 0, mib });
    }

    fn create(&mut self) -> Result<(), DiskError> {
        let (name, (mib, size)) = (self.tenant_name(), self.size());
        let frontend = self.random.bool().then(|| "vhost-user-blk".to_owned());
        let spec = DiskSpec { name: name.clone(), size, frontend, queues: Some(1), ..DiskSpec::default() };
        self.state.refuse_too_large(&name, &spec.size, false)?;
        let section = spec.to_section().unwrap();
        if self.state.has_disk(&name) {
            return self.state.same_disk(&name, &section).map(drop);
        }
        let proposal = self.state.propose(&name, section.clone())?;
        let id = self.new_id();
        let mut disk = NewDisk::from(&proposal.tenant);
        disk.key = self.random.bool().then_some(StoredKey::Tenant { check: None });
        if !self.apply(Command::Create { id, disk, section: Some(section) })? {
            return Ok(());
        }
        if self.random.u32(..10) == 0 {
            return self.apply(Command::Withdraw(id)).map(drop);
        }
        self.own(name, id, mib);
        self.count("created");
        self.news(Command::Placed(id));
        self.news(Command::Take(Box::new(proposal.config)));
        Ok(())
    }

    fn create_namespace(&mut self) -> Result<(), DiskError> {
        let (name, tenant, (mib, size)) = (self.namespace_name(), self.tenant_name(), self.size());
        let spec = DiskSpec { name: name.clone(), size, attach: Some(tenant.clone()), ..DiskSpec::default() };
        let Ok(change) = self.state.propose_namespace(&spec, &tenant)? else { return Ok(()) };
        let id = self.new_id();
        let disk = (&change.namespace).into();
        if self.apply(Command::Create { id, disk, section: Some(change.section) })? {
            self.own(name, id, mib);
            self.count("namespaces");
            self.news(Command::Take(Box::new(change.config)));
        }
        Ok(())
    }

    fn attach(&mut self) -> Result<(), DiskError> {
        let (name, tenant, read_only) = (self.namespace_name(), self.tenant_name(), self.random.bool());
        let attach = Attach { tenant, read_only, shared: self.random.bool() };
        let change = self.state.propose_attachment(&name, &attach)?.1;
        self.change_namespace(&name, change, "attached")
    }

    fn detach(&mut self) -> Result<(), DiskError> {
        let (name, tenant) = (self.namespace_name(), self.tenant_name());
        let change = self.state.propose_detachment(&name, &tenant)?.1;
        self.change_namespace(&name, change, "detached")
    }

    fn change_namespace(
        &mut self,
        name: &str,
        change: Option<state::NamespaceChange>,
        what: &'static str,
    ) -> Result<(), DiskError> {
        let Some(change) = change else { return Ok(()) };
        let size_bytes = change.namespace.size.0;
        let section = Some(change.section);
        if self.apply(Command::Change { name: name.to_owned(), section, size_bytes })? {
            self.owned.get_mut(name).unwrap().mib = size_bytes / MIB;
            self.news(Command::Take(Box::new(change.config)));
            self.count(what);
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<(), DiskError> {
        let (name, (_, size)) = (self.name(), self.size());
        let patch = DiskPatch::of(&DiskSpec { name: name.clone(), size, ..DiskSpec::default() });
        if self.state.disks().find_namespace(&name).is_some() {
            let change = self.state.propose_growth(&name, &patch)?.1;
            return self.change_namespace(&name, change, "namespaces grown");
        }
        let (proposal, _) = self.state.propose_change(&name, &patch)?;
        let size_bytes = proposal.tenant.size.0;
        let section = Some(proposal.section);
        if self.apply(Command::Change { name: name.clone(), section, size_bytes })? {
            self.owned.get_mut(&name).unwrap().mib = size_bytes / MIB;
            self.news(Command::Take(Box::new(proposal.config)));
            self.count("grown");
        }
        Ok(())
    }

    fn delete(&mut self) -> Result<(), DiskError> {
        let name = self.name();
        let is_leaving = self.state.disks().find(&name).is_some_and(|id| self.state.jobs().is_held(id));
        if is_leaving || !self.state.has_disk(&name) {
            return Ok(());
        }
        let config = self.state.config_without(&name)?;
        let wipe = [None, None, Some(WipeMethod::Zeros), Some(WipeMethod::ThreePasses)][self.random.usize(..4)];
        if self.apply(Command::Delete { name: name.clone(), wipe })? {
            self.owned.remove(&name);
            self.news(Command::Take(Box::new(config)));
            self.count("deleted");
        }
        Ok(())
    }

    fn format(&mut self) -> Result<(), DiskError> {
        let ids: Vec<TenantId> = self.state.disks().iter().map(|(id, _)| id).collect();
        let Some(id) = self.random.choice(ids) else { return Ok(()) };
        let (nsid, lba_bytes) = (self.random.u32(1..4), if self.random.bool() { 512 } else { 4096 });
        let has_ended = self.random.bool();
        if self.random.u8(..4) == 0 {
            let state = if has_ended { SanitizeState::Completed } else { SanitizeState::Running };
            let (sanitize, nsids) = (Sanitize { state, dword_10: 4, pattern: 0 }, if has_ended { 0 } else { nsid });
            self.apply(Command::Sanitize { id, sanitize, nsids })?;
            self.count("sanitized");
            return Ok(());
        }
        self.apply(Command::Format { id, nsid, lba_bytes, has_ended })?;
        self.count("formats");
        Ok(())
    }

    fn erase(&mut self) -> Result<(), DiskError> {
        let name = self.name();
        let key = StoredKey::Tenant { check: None };
        if self.apply(Command::ReplaceKeys(vec![(name.clone(), key)]))? {
            // Its guest finds noise.
            self.owned.get_mut(&name).into_iter().for_each(|owned| owned.seen_mib = 0);
            self.count("erased");
        }
        Ok(())
    }

    /// A guest gets a disk: its own, or a namespace of its controller.
    fn guest_sees(&mut self, at: At, id: TenantId) {
        self.guest_looks(id);
        let Some(disk) = self.state.disks().get(id) else { return };
        let Some(owned) = self.owned.get(&disk.name) else { return };
        let Some(placement) = self.state.placement(&disk.name) else { return };
        let extents = placement.to_look_up();
        let places = (0..owned.seen_mib).map(|mib| extents.locate(mib * MIB).unwrap().0);
        self.writers.insert(at, (owned.number, places.collect()));
    }

    /// A write that was in flight arrives.
    fn write_late(&mut self, at: At) {
        if let Some((number, places)) = self.writers.get(&at) {
            places.iter().for_each(|place| self.drive[(place / MIB) as usize] = Holds::Data(*number));
        }
    }

    /// The guest looks at all of its disk, and writes to all of it.
    fn guest_looks(&mut self, id: TenantId) {
        let Some(disk) = self.state.disks().get(id) else { return };
        let Some(owned) = self.owned.get_mut(&disk.name) else { return };
        let Some(placement) = self.state.placement(&disk.name) else { return };
        let extents = placement.to_look_up();
        for mib in 0..placement.served_bytes() / MIB {
            let (place, _) = extents.locate(mib * MIB).unwrap();
            let holds = &mut self.drive[(place / MIB) as usize];
            let is_its = *holds == Holds::Data(owned.number);
            // Under its own key, what was there is noise.
            let is_clean = *holds == Holds::Zeros || placement.key.is_some();
            assert!(
                if mib < owned.seen_mib { is_its } else { is_its || is_clean },
                "{} sees {holds:?} at MiB {mib} of {owned:?}",
                disk.name
            );
            *holds = Holds::Data(owned.number);
        }
        owned.seen_mib = owned.seen_mib.max(placement.served_bytes() / MIB);
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::RemoveMaps(maps) => assert!(maps.is_empty(), "no disk is thin here"),
            Effect::Connect(id) | Effect::ShowSize(id) => self.guest_sees((id, 1), id),
            Effect::Order(controller, NamespaceOrder::Attach { nsid, namespace, .. })
            | Effect::Order(controller, NamespaceOrder::Grow(nsid, namespace)) => {
                self.guest_sees((controller, nsid), namespace);
            }
            Effect::Order(controller, NamespaceOrder::Detach(nsid)) => self.detaching.push((controller, nsid)),
            Effect::Zero(id) => self.begin_zeroing(id),
            Effect::StopZeroing(id) => {
                self.zeroing.iter_mut().filter(|job| job.id == id).for_each(|job| job.is_stopped = true);
            }
            Effect::Leave(id) => self.leaving.push(id),
            Effect::Order(_, NamespaceOrder::Elsewhere(..))
            | Effect::TellDetached(_)
            | Effect::TellZeroed(_)
            | Effect::TellNotZeroed(..)
            | Effect::Wipe
            | Effect::ExtendPool(_) => {}
        }
    }

    fn begin_zeroing(&mut self, id: TenantId) {
        let placement = self.state.disks().get(id).and_then(|disk| self.state.placement(&disk.name));
        let places = placement.and_then(|placement| {
            let zeroed_bytes = placement.zeroed_bytes?;
            let extents = placement.to_look_up();
            let mibs = zeroed_bytes / MIB..placement.size_bytes() / MIB;
            Some((zeroed_bytes, mibs.map(|mib| extents.locate(mib * MIB).unwrap().0).collect()))
        });
        let (zeroed_bytes, places) = places.unwrap_or_default();
        // One job for a disk: a longer range goes on where the first one is.
        self.zeroing.retain(|job| job.id != id);
        self.zeroing.push(ZeroJob { id, places, zeroed_bytes, is_stopped: false });
    }

    fn zero_further(&mut self) {
        if self.zeroing.is_empty() {
            return;
        }
        let at = self.random.usize(..self.zeroing.len());
        let job = &mut self.zeroing[at];
        let id = job.id;
        if job.is_stopped && self.random.u32(..8) > 0 {
            return;
        }
        if let Some(place) = job.places.pop_front() {
            // A stopped job may still have a write in flight.
            self.drive[(place / MIB) as usize] = Holds::Zeros;
            job.zeroed_bytes += MIB;
        }
        let (bytes, is_over) = (job.zeroed_bytes, job.places.is_empty() || job.is_stopped);
        let is_failed = self.random.u32(..40) == 0;
        if is_over || is_failed {
            self.zeroing.remove(at);
        }
        self.count("zeroing steps");
        let result = if is_failed { Err("the drive failed a command".to_owned()) } else { Ok(bytes) };
        self.news(Command::Zeroed { id, result, is_over: is_over || is_failed });
    }

    fn wipe_further(&mut self) {
        let Some(mut range) = self.wiping.take().or_else(|| self.state.next_wipe().cloned()) else { return };
        let is_last = range.passes + 1 >= range.method.passes();
        if self.random.u32(..60) == 0 {
            self.count("failed wipes");
            let result = Err("the drive failed a command".to_owned());
            self.news(Command::Wiped { offset_bytes: range.offset_bytes, result });
            return;
        }
        if range.wiped_bytes < range.size_bytes {
            let at = ((range.offset_bytes + range.wiped_bytes) / MIB) as usize;
            self.drive[at] = if is_last { Holds::Zeros } else { Holds::Unknown };
            range.wiped_bytes += MIB;
        } else {
            (range.passes, range.wiped_bytes) = (range.passes + 1, 0);
        }
        let is_over = range.passes >= range.method.passes();
        let result = Ok((range.passes, range.wiped_bytes));
        let offset_bytes = range.offset_bytes;
        self.wiping = (!is_over).then_some(range);
        self.count(if is_over { "wiped" } else { "wiping steps" });
        self.news(Command::Wiped { offset_bytes, result });
    }

    /// The daemon is killed and starts again: only the file and the recorded layout are left.
    fn crash(&mut self) {
        self.count("crashes");
        let made: Vec<&str> = self.recorded.settings().map(|(_, section)| section).collect();
        let config = self.file.with_disks(made).unwrap_or_else(|e| panic!("{e} after {:?}", self.recorded));
        let facts = Facts { block_bytes: 512, can_zero: self.can_zero };
        self.state = DriveState::new(config.clone(), Some(self.recorded.clone()), facts);
        self.effects.clear();
        self.leaving.clear();
        self.detaching.clear();
        self.zeroing.clear();
        self.wiping = None;
        self.writers.clear();
        let there: Vec<&str> = self.recorded.placements().iter().map(|it| it.name.as_str()).collect();
        // A disk whose creation was recorded and not told may be there, too.
        assert!(self.owned.keys().all(|name| there.contains(&name.as_str())), "{:?} lost: {there:?}", self.owned);
        let new: Vec<&str> = there.into_iter().filter(|name| !self.owned.contains_key(*name)).collect();
        let new: Vec<(String, u64)> =
            new.iter().map(|name| ((*name).to_owned(), self.recorded.find(name).unwrap().size_bytes() / MIB)).collect();
        for (name, mib) in new {
            let id = self.new_id();
            self.own(name, id, mib);
        }
        let tenants: Vec<_> = config.tenants.iter().map(|tenant| (tenant.into(), true)).collect();
        let namespaces = config.namespaces.iter().map(|namespace| (namespace.into(), false));
        for (disk, is_tenant) in tenants.into_iter().chain(namespaces) {
            let id = self.new_id();
            self.news(Command::Create { id, disk, section: None });
            if is_tenant {
                self.news(Command::Placed(id));
            }
        }
    }

    /// One thing happens.
    fn step(&mut self) {
        let tried = match self.random.u32(..100) {
            0..6 => self.create(),
            6..10 => self.create_namespace(),
            10..14 => self.attach(),
            14..17 => self.detach(),
            17..21 => self.grow(),
            21..26 => self.delete(),
            26..27 => self.format(),
            27..28 => self.erase(),
            28..60 => {
                if let Some(effect) = self.effects.pop_front() {
                    self.carry_out(effect);
                }
                Ok(())
            }
            60..65 => {
                if let Some(id) = self.leaving.pop() {
                    let its: Vec<At> = self.writers.keys().filter(|(of, _)| *of == id).copied().collect();
                    for at in its {
                        self.write_late(at);
                        self.writers.remove(&at);
                    }
                    self.news(Command::Left(id));
                }
                Ok(())
            }
            65..70 => {
                if let Some(at) = self.detaching.pop() {
                    self.write_late(at);
                    self.writers.remove(&at);
                    self.news(Command::Detached(at));
                }
                Ok(())
            }
            70..84 => {
                self.zero_further();
                Ok(())
            }
            84..99 => {
                self.wipe_further();
                Ok(())
            }
            _ => {
                self.crash();
                Ok(())
            }
        };
        if let Err(refused) = tried {
            assert_ne!(refused.reason, Reason::Failed, "{refused:?}");
            self.count("refused");
        }
        self.check();
    }

    /// Each guest's data are as it wrote them.
    fn check(&self) {
        for (name, owned) in &self.owned {
            let placement = self.state.placement(name).unwrap_or_else(|| panic!("{name} has no place"));
            assert_eq!(placement.size_bytes(), owned.mib * MIB, "{name}");
            let extents = placement.to_look_up();
            for mib in 0..owned.seen_mib {
                let (place, _) = extents.locate(mib * MIB).unwrap();
                assert_eq!(self.drive[(place / MIB) as usize], Holds::Data(owned.number), "{name} at MiB {mib}");
            }
        }
    }

    /// Once all jobs are done, every byte without a disk is free.
    fn end(&mut self) {
        self.crash();
        while let Some(effect) = self.effects.pop_front() {
            self.carry_out(effect);
        }
        for _ in 0..10_000 {
            self.zero_further();
            self.wipe_further();
            while let Some(effect) = self.effects.pop_front() {
                self.carry_out(effect);
            }
            // What the drive failed is tried again at the next start.
            if self.random.u32(..50) == 0 {
                self.crash();
            }
        }
        let owned: u64 = self.owned.values().map(|owned| owned.mib * MIB).sum();
        let layout = self.state.layout().unwrap();
        assert_eq!(layout.free_bytes() + owned, layout.device().size_bytes, "{layout:?}");
        let phases = self.state.disks().iter().map(|(_, disk)| disk.phase);
        assert!(phases.into_iter().all(|phase| matches!(phase, Phase::Served | Phase::Failed)), "{:?}", self.owned);
    }
}

fn history(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut world = World::new(seed);
    for _ in 0..COMMANDS_EACH {
        world.step();
    }
    if seed.is_multiple_of(16) {
        world.end();
    }
    world.counts
}

fn histories(commands: u64) {
    let seeds = match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..commands.div_ceil(COMMANDS_EACH)).collect::<Vec<u64>>(),
    };
    let is_replay = seeds.len() == 1;
    let mut sum: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| history(seed));
        let Ok(counts) = run else { panic!("replay with EVENKEEL_SEED={seed}") };
        counts.into_iter().for_each(|(what, count)| *sum.entry(what).or_default() += count);
    }
    println!("{sum:?}");
    assert!(is_replay || (sum.len() >= 16 && sum.values().all(|count| *count >= 10)), "too little happened: {sum:?}");
}

#[test]
fn disks_keep_their_data_to_themselves_over_crashes() {
    histories(100_000);
}

/// As above, for the full suite.
#[test]
fn a_million_commands_with_crashes() {
    histories(1_000_000);
}
