//! Failed flushes: which tenants must learn of each.
//!
//! All tenants' commands go through one open file description, and the kernel tells a description of a write-back
//! error once: whichever tenant's flush comes first takes it, and the next one's succeeds although writes of its tenant
//! may be lost too. So each failure starts a new *epoch*, and a tenant's flush fails if a write of the tenant that no
//! flush has covered is of an earlier one.
//!
//! A tenant's queues may be with several pollers. What they share is one number for each tenant; a write reads it, and
//! changes it only if it is the first since a flush. Flushes take a lock: they are rare, and cost the drive far more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_model::{Command, DeviceError, Op, Outcome, TenantId};

/// No write is uncovered.
const NONE: u64 = u64::MAX;

/// Of a drive, for all of its queues.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    epoch: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// An entry outlives its tenant, whose identifier is never given again.
    tenants: HashMap<TenantId, Arc<Uncovered>>,
    in_flight: u32,
}

/// The epoch of a tenant's first write that no flush has covered.
#[derive(Debug)]
struct Uncovered(AtomicU64);

impl Uncovered {
    #[inline]
    fn add(&self, epoch: u64) {
        // Only the first write since a flush changes what the tenant's other pollers read.
        if epoch < self.0.load(Ordering::Relaxed) {
            self.0.fetch_min(epoch, Ordering::Relaxed);
        }
    }
}

impl Flushes {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, tenant: TenantId) -> Arc<Uncovered> {
        let mut table = self.table();
        Arc::clone(table.tenants.entry(tenant).or_insert_with(|| Arc::new(Uncovered(AtomicU64::new(NONE)))))
    }

    /// The drive failed to make acknowledged writes durable. Each tenant that wrote to it will learn of that.
    pub fn failed(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    fn begin(&self, uncovered: &Uncovered) -> u64 {
        self.table().in_flight += 1;
        uncovered.0.swap(NONE, Ordering::Relaxed)
    }

    /// A flush ended that covers writes since the epoch `covers`; what its tenant is told.
    fn end(&self, uncovered: &Uncovered, covers: u64, outcome: Outcome) -> Outcome {
        let mut table = self.table();
        table.in_flight = table.in_flight.saturating_sub(1);
        if outcome.is_err() {
            self.failed();
            return outcome;
        }
        if covers < self.epoch.load(Ordering::Relaxed) {
            return Err(DeviceError::Medium);
        }
        if table.in_flight > 0 {
            // One of those may have taken the error that is ours too, and not have told yet.
            uncovered.add(covers);
        }
        Ok(())
    }
}

/// What one queue knows of the tenants that wrote through it.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// A few: the poller's tenants.
    known: Vec<(TenantId, Arc<Uncovered>)>,
    last: usize,
}

impl Writers {
    #[inline]
    fn of(&mut self, tenant: TenantId, flushes: &Flushes) -> &Uncovered {
        if self.known.get(self.last).is_none_or(|(last, _)| *last != tenant) {
            let at = self.known.iter().position(|(known, _)| *known == tenant);
            self.last = at.unwrap_or(self.known.len());
            if at.is_none() {
                self.known.push((tenant, flushes.of(tenant)));
            }
        }
        &self.known[self.last].1
    }

    /// A command starts. The epoch is to be kept until it ends.
    #[inline]
    pub fn start(&mut self, command: &Command, flushes: &Flushes) -> u64 {
        match command.op {
            Op::Flush => flushes.begin(self.of(command.tenant, flushes)),
            _ => flushes.epoch.load(Ordering::Relaxed),
        }
    }

    /// It ended; what its tenant is told.
    #[inline]
    pub fn end(&mut self, command: &Command, epoch: u64, outcome: Outcome, flushes: &Flushes) -> Outcome {
        match command.op {
            Op::Flush => return flushes.end(self.of(command.tenant, flushes), epoch, outcome),
            // A part may have been written. What is durable by itself may still take an error that is others' too; but
            // for want of room, which one tenant could cause on purpose.
            Op::Write | Op::WriteZeroes if command.fua => {
                if matches!(outcome, Err(DeviceError::Medium | DeviceError::Gone)) {
                    flushes.failed();
                }
            }
            Op::Write | Op::WriteZeroes => self.of(command.tenant, flushes).add(epoch),
            Op::Read | Op::Discard => {}
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use io_model::Place;

    use super::*;

    /// Tenants on pollers of their own.
    struct World {
        flushes: Flushes,
        writers: Vec<Writers>,
    }

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn flush(tenant: TenantId) -> Command {
        Place::whole_drive(tenant).flush()
    }

    fn write(tenant: TenantId) -> Command {
        Place::whole_drive(tenant).command(Op::Write, 0, 4096)
    }

    impl World {
        fn new() -> Self {
            Self { flushes: Flushes::default(), writers: (0..2).map(|_| Writers::default()).collect() }
        }

        fn start(&mut self, poller: usize, command: &Command) -> u64 {
            self.writers[poller].start(command, &self.flushes)
        }

        fn end(&mut self, poller: usize, command: &Command, epoch: u64, outcome: Outcome) -> Outcome {
            self.writers[poller].end(command, epoch, outcome, &self.flushes)
        }

        fn run(&mut self, poller: usize, command: &Command, outcome: Outcome) -> Outcome {
            let epoch = self.start(poller, command);
            self.end(poller, command, epoch, outcome)
        }

        fn succeed(&mut self, poller: usize, command: &Command) {
            assert_eq!(self.run(poller, command, Ok(())), Ok(()));
        }
    }

    const LOST: Outcome = Err(DeviceError::Medium);

    #[test]
    fn a_failed_flush_is_told_once_to_each_tenant_that_wrote_before() {
        let mut world = World::new();
        for (poller, tenant) in [(0, A), (1, B), (0, TenantId(3))] {
            assert_eq!(world.run(poller, &write(tenant), Ok(())), Ok(()));
        }
        assert_eq!(world.run(0, &flush(TenantId(3)), Ok(())), Ok(()), "its writes are safe");
        assert_eq!(world.run(0, &flush(A), LOST), LOST);
        assert_eq!(world.run(0, &flush(A), Ok(())), Ok(()), "it was told");
        // From whichever poller it flushes; and a write since then changes nothing.
        world.succeed(1, &write(B));
        assert_eq!(world.run(0, &flush(B), Ok(())), LOST);
        assert_eq!(world.run(1, &flush(B), Ok(())), Ok(()));
        assert_eq!(world.run(1, &flush(TenantId(3)), Ok(())), Ok(()), "it had nothing to lose");
        world.succeed(0, &write(TenantId(4)));
        assert_eq!(world.run(0, &flush(TenantId(4)), Ok(())), Ok(()), "it came after the error");
    }

    #[test]
    fn a_write_in_flight_is_covered_by_no_flush_that_began_before_it_ended() {
        let mut world = World::new();
        let written = world.start(0, &write(A));
        assert_eq!(world.run(0, &flush(A), Ok(())), Ok(()));
        assert_eq!(world.run(1, &flush(B), LOST), LOST);
        assert_eq!(world.end(0, &write(A), written, Ok(())), Ok(()));
        assert_eq!(world.run(0, &flush(A), Ok(())), LOST);
    }

    #[test]
    fn a_flush_beside_one_that_fails_is_told_by_the_next() {
        let mut world = World::new();
        world.succeed(0, &write(A));
        world.succeed(1, &write(B));
        let (a, b) = (world.start(0, &flush(A)), world.start(1, &flush(B)));
        // The kernel told A's flush, whose poller has not seen that yet.
        assert_eq!(world.end(1, &flush(B), b, Ok(())), Ok(()));
        assert_eq!(world.end(0, &flush(A), a, LOST), LOST);
        assert_eq!(world.run(1, &flush(B), Ok(())), LOST);
        assert_eq!(world.run(1, &flush(B), Ok(())), Ok(()));
    }

    #[test]
    fn a_durable_write_that_fails_is_told_too_unless_there_was_no_room() {
        for (error, told) in
            [(DeviceError::Medium, LOST), (DeviceError::NoSpace, Ok(())), (DeviceError::Memory, Ok(()))]
        {
            let mut world = World::new();
            world.succeed(1, &write(B));
            assert_eq!(world.run(0, &write(A).with_fua(true), Err(error)), Err(error));
            assert_eq!(world.run(1, &flush(B), Ok(())), told);
            assert_eq!(world.run(0, &flush(A), Ok(())), Ok(()), "its only write was answered with the error");
        }
    }
}
