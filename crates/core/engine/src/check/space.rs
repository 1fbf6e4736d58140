//! Each byte of the drive is one disk's, at its place in that disk, and no other disk's before it was overwritten.
//!
//! A record of its own, unit by unit, beside the layout that gives ranges out: it believes only what commands did.

use std::collections::BTreeMap;

use io_model::{Command, Op};

use super::Rule;

/// Ranges are multiples of this.
const UNIT_BYTES: u64 = crate::disks::DISK_STEP_BYTES;

/// The owner of a unit of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Nobody's, and it reads as zeros: never given out, or …
    Clean,
    /// … overwritten since.
    Wiped,
    Tenant(u16),
    /// Nobody's, with what a deleted tenant wrote.
    Left(u16),
}

#[derive(Debug, Clone, Copy)]
struct Unit {
    owner: Owner,
    /// Commands with the drive that touch it.
    in_flight: u32,
}

type Wrong = Option<(Rule, String)>;

/// The whole drive.
#[derive(Debug)]
pub(super) struct Space {
    units: Vec<Unit>,
    /// Each tenant's units, in its disk's order.
    disks: BTreeMap<u16, Vec<usize>>,
    wiper: u16,
    pub(super) reused_bytes: u64,
}

impl Space {
    pub(super) fn new(drive_bytes: u64, wiper: u16) -> Self {
        let units = vec![Unit { owner: Owner::Clean, in_flight: 0 }; (drive_bytes / UNIT_BYTES) as usize];
        Self { units, disks: BTreeMap::new(), wiper, reused_bytes: 0 }
    }

    /// A tenant's disk is these ranges of the drive now, each a start and a length.
    pub(super) fn give(&mut self, tenant: u16, extents: impl Iterator<Item = (u64, u64)>) -> Wrong {
        let units =
            extents.flat_map(|(start, len)| (start / UNIT_BYTES) as usize..((start + len) / UNIT_BYTES) as usize);
        let units: Vec<usize> = units.collect();
        let before = self.disks.remove(&tenant).unwrap_or_default();
        let mut wrong = None;
        if !units.starts_with(&before) {
            wrong = Some((Rule::Space, format!("tenant {tenant}: what its disk had lies elsewhere since it grew")));
        }
        for at in units.iter().skip(before.len()).copied() {
            let Some(Unit { owner, in_flight }) = self.units.get_mut(at) else {
                wrong = Some((Rule::Space, format!("tenant {tenant} got unit {at}, which is beyond the drive's end")));
                continue;
            };
            if !matches!(owner, Owner::Clean | Owner::Wiped) || *in_flight > 0 {
                let what = format!("tenant {tenant} got unit {at}: {owner:?}, {in_flight} commands there");
                wrong = wrong.or(Some((Rule::Space, what)));
            }
            self.reused_bytes += if *owner == Owner::Wiped { UNIT_BYTES } else { 0 };
            *owner = Owner::Tenant(tenant);
        }
        self.disks.insert(tenant, units);
        wrong
    }

    /// A deleted tenant's disk is the wiper's from now on.
    pub(super) fn release(&mut self, tenant: u16) -> Wrong {
        let mut wrong = None;
        for at in self.disks.remove(&tenant).unwrap_or_default() {
            let Some(unit) = self.units.get_mut(at) else { continue };
            unit.owner = Owner::Left(tenant);
            if unit.in_flight > 0 {
                wrong = Some((Rule::Space, format!("tenant {tenant} left with commands at unit {at}")));
            }
        }
        wrong
    }

    /// A command reaches the drive.
    pub(super) fn submitted(&mut self, tenant: u16, command: &Command) -> Wrong {
        let mut wrong = None;
        for (at, place) in touched(command) {
            let expected = if tenant == self.wiper {
                let left = self.units.get(place).is_some_and(|unit| matches!(unit.owner, Owner::Left(_)));
                left.then_some(at)
            } else {
                self.disks.get(&tenant).and_then(|disk| disk.get(at)).copied()
            };
            let aligned = (command.offset_bytes ^ command.tenant_offset_bytes).is_multiple_of(UNIT_BYTES);
            if expected != Some(place) || !aligned {
                let owner = self.units.get(place).map(|unit| unit.owner);
                let what = format!(
                    "tenant {tenant}: {command:?}: unit {at} of its disk is at {expected:?}, {place} is {owner:?}"
                );
                wrong = wrong.or(Some((Rule::InBounds, what)));
            }
            if let Some(unit) = self.units.get_mut(place) {
                unit.in_flight += 1;
            }
        }
        wrong
    }

    /// It came back.
    pub(super) fn ended(&mut self, tenant: u16, command: &Command, is_done: bool) {
        let wipes = tenant == self.wiper && is_done && command.op == Op::Write;
        for (_, place) in touched(command) {
            let Some(unit) = self.units.get_mut(place) else { continue };
            unit.in_flight = unit.in_flight.saturating_sub(1);
            if wipes && matches!(unit.owner, Owner::Left(_)) {
                unit.owner = Owner::Wiped;
            }
        }
    }
}

/// The units of its tenant's disk that a command touches, each with the unit of the drive.
fn touched(command: &Command) -> impl Iterator<Item = (usize, usize)> {
    let Command { offset_bytes, tenant_offset_bytes, len_bytes, .. } = *command;
    let units = |at: u64| at / UNIT_BYTES..at.saturating_add(len_bytes).div_ceil(UNIT_BYTES);
    let some = len_bytes > 0;
    let (of_disk, of_drive) = (units(tenant_offset_bytes), units(offset_bytes));
    of_disk.zip(of_drive).filter(move |_| some).map(|(disk, drive)| (disk as usize, drive as usize))
}

#[cfg(test)]
mod tests {
    use io_model::{Place, TenantId};

    use super::*;

    const WIPER: u16 = 9;

    fn command(tenant: u16, op: Op, offset_bytes: u64, tenant_offset_bytes: u64, len_bytes: u64) -> Command {
        let place = Place { tenant: TenantId(tenant.into()), disk: 0, base_bytes: 0 };
        Command { offset_bytes, ..place.command(op, tenant_offset_bytes, len_bytes) }
    }

    fn rule(wrong: Wrong) -> Option<Rule> {
        wrong.map(|(rule, _)| rule)
    }

    #[test]
    fn a_disk_in_two_pieces() {
        let mut space = Space::new(1 << 20, WIPER);
        assert_eq!(rule(space.give(1, [(8192, 4096)].into_iter())), None);
        assert_eq!(rule(space.give(1, [(8192, 4096), (65536, 8192)].into_iter())), None);
        let mut at = |offset, of_disk, len| rule(space.submitted(1, &command(1, Op::Read, offset, of_disk, len)));
        assert_eq!((at(8704, 512, 3584), at(65536, 4096, 8192)), (None, None));
        let wrong = [at(12288, 4096, 4096), at(65536, 8192, 4096), at(65536, 4096, 12288), at(66048, 4096, 512)];
        assert_eq!(wrong, [Some(Rule::InBounds); 4]);
        assert_eq!(rule(space.give(1, [(65536, 8192)].into_iter())), Some(Rule::Space), "it moved");
    }

    #[test]
    fn nobody_gets_what_was_not_overwritten() {
        let mut space = Space::new(1 << 20, WIPER);
        let disk = || [(0, 8192)].into_iter();
        assert_eq!(rule(space.give(1, disk())), None);
        assert_eq!(rule(space.give(2, disk())), Some(Rule::Space), "it is another's");
        let write = command(1, Op::Write, 0, 0, 4096);
        space.submitted(1, &write);
        assert_eq!(rule(space.release(1)), Some(Rule::Space), "a command is there");
        space.ended(1, &write, true);
        assert_eq!(rule(space.give(3, disk())), Some(Rule::Space), "not overwritten");

        let mut space = Space::new(1 << 20, WIPER);
        space.give(1, disk());
        assert_eq!(rule(space.release(1)), None);
        let wipe = |at| command(WIPER, Op::Write, at, at, 4096);
        assert_eq!(rule(space.submitted(WIPER, &wipe(8192))), Some(Rule::InBounds), "nobody left that");
        for (at, is_done) in [(0, true), (4096, false), (4096, true)] {
            assert_eq!(rule(space.submitted(WIPER, &wipe(at))), None);
            space.ended(WIPER, &wipe(at), is_done);
        }
        assert_eq!(rule(space.give(2, disk())), None);
        assert_eq!(space.reused_bytes, 8192);
    }
}
