//! Which change comes next.

use std::collections::BTreeMap;

use api::Attach;
use fastrand::Rng;

use super::content::Content;
use super::model::{BASES, Change, Declared, Known, POLICIES, SPARES, Shape, State, Terms};

/// Disks at a time, namespaces included.
const MOST: usize = 14;
/// The largest new disk, in MiB.
const MOST_MIB: u64 = 6;

/// A change of what there is; `None`: that kind of change has nothing to change now. `owner`: of a new disk.
pub fn draw(random: &mut Rng, state: &State, owner: u64) -> Option<Change> {
    match random.u32(..32) {
        0..5 => create(random, state, owner),
        5..9 => create_namespace(random, state, owner),
        9..13 => {
            let name = made(random, state)?;
            let mib = state.disks[&name].shape.mib + random.u64(1..=4);
            Some(Change::Grow(name, mib))
        }
        13..16 => {
            let is_tenant = |shape: &Shape| shape.terms.is_some();
            Some(Change::Set(pick(random, state, is_tenant).filter(|it| !is_base(it))?, terms(random)))
        }
        16..20 => Some(Change::Delete(made(random, state)?)),
        20..24 => attach(random, state),
        24..26 => {
            let name = pick(random, state, |shape| !shape.attachments.is_empty())?;
            let tenants: Vec<_> = state.disks[&name].shape.attachments.keys().collect();
            Some(Change::Detach(name.clone(), random.choice(tenants)?.clone()))
        }
        26..28 => {
            let absent: Vec<&str> = SPARES.into_iter().filter(|it| !state.added.contains_key(*it)).collect();
            let name = random.choice(absent)?.to_owned();
            Some(Change::AddDrive(name, random.bool().then(|| policy(random))))
        }
        28..30 => remove_drive(random, state),
        _ => Some(Change::Apply(declared(random, &state.declared))),
    }
}

fn is_base(name: &str) -> bool {
    BASES.iter().any(|(base, _)| *base == name)
}

fn pick(random: &mut Rng, state: &State, is_wanted: impl Fn(&Shape) -> bool) -> Option<String> {
    let wanted = state.disks.iter().filter(|(_, known)| is_wanted(&known.shape)).map(|(name, _)| name);
    random.choice(wanted.collect::<Vec<_>>()).cloned()
}

/// A disk that the API made.
fn made(random: &mut Rng, state: &State) -> Option<String> {
    pick(random, state, |_| true).filter(|name| !is_base(name))
}

/// A name that was free may be another's now.
fn free_name(state: &State) -> Option<String> {
    (state.disks.len() < MOST).then_some(())?;
    (0..2 * MOST).map(|at| format!("d{at}")).find(|name| !state.disks.contains_key(name))
}

fn terms(random: &mut Rng) -> Terms {
    let target_ms = (random.u8(..8) == 0).then(|| random.u64(10..=100));
    let weight = target_ms.is_none().then(|| random.u32(1..=1000));
    let rw_iops = (random.u8(..4) == 0).then(|| random.u64(20_000..=100_000));
    let w_mib = (random.u8(..4) == 0).then(|| random.u64(100..=1000));
    Terms { weight, target_ms, rw_iops, w_mib }
}

fn create(random: &mut Rng, state: &State, owner: u64) -> Option<Change> {
    let name = free_name(state)?;
    let drives: Vec<String> = state.seen().drives.into_keys().collect();
    let drive = if random.bool() { random.choice(drives) } else { None };
    let frontend = if random.u8(..3) == 0 { "vhost-user-blk" } else { "vfio-user" }.to_owned();
    let mib = random.u64(1..=MOST_MIB);
    let shape = Shape { drive, frontend, mib, terms: Some(terms(random)), nsid: None, attachments: BTreeMap::new() };
    Some(Change::Create(name, Known { shape, content: Content::new(owner, mib) }))
}

fn create_namespace(random: &mut Rng, state: &State, owner: u64) -> Option<Change> {
    let name = free_name(state)?;
    let tenant = pick(random, state, |shape| shape.frontend == "vfio-user")?;
    let mib = random.u64(1..=MOST_MIB);
    // That one is asked for once in a while, and taken now and then.
    let nsid = if random.u8(..4) == 0 { random.u32(2..=6) } else { 0 };
    let attachments = BTreeMap::from([(tenant, random.u8(..8) == 0)]);
    let frontend = "namespace".to_owned();
    let shape = Shape { drive: None, frontend, mib, terms: None, nsid: Some(nsid), attachments };
    Some(Change::Create(name, Known { shape, content: Content::new(owner, mib) }))
}

/// Mostly to a controller that can have it.
fn attach(random: &mut Rng, state: &State) -> Option<Change> {
    let name = pick(random, state, |shape| shape.nsid.is_some())?;
    let namespace = &state.disks[&name].shape;
    let any = random.u8(..8) == 0;
    let can = |shape: &Shape| shape.frontend == "vfio-user" && shape.drive == namespace.drive;
    let tenant = pick(random, state, |shape| shape.terms.is_some() && (any || can(shape)))?;
    let is_new = !namespace.attachments.contains_key(&tenant);
    let (read_only, shared) = (random.u8(..3) == 0, random.u8(..3) > 0);
    is_new.then_some(Change::Attach(name, Attach { tenant, read_only, shared }))
}

/// Mostly one that is empty.
fn remove_drive(random: &mut Rng, state: &State) -> Option<Change> {
    let any = random.u8(..6) == 0;
    let has_disks = |drive: &str| state.disks.values().any(|known| known.shape.drive.as_deref() == Some(drive));
    let added = state.added.keys().filter(|drive| any || !has_disks(drive));
    Some(Change::RemoveDrive(random.choice(added.collect::<Vec<_>>())?.clone()))
}

fn policy(random: &mut Rng) -> &'static str {
    POLICIES[random.usize(..POLICIES.len())]
}

fn declared(random: &mut Rng, now: &Declared) -> Declared {
    let mut next = now.clone();
    match random.u8(..4) {
        0 => next.weight = random.u32(1..=1000),
        1 => next.rw_iops = random.u64(20_000..=100_000),
        2 => next.policies[0] = policy(random),
        _ => next.policies[1] = policy(random),
    }
    next
}
