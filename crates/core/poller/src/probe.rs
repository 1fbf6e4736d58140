//! What one tenant experienced at one poller.
//!
//! A tenant whose queues several pollers serve has a probe at each; the [`Board`](crate::Board) adds them up. One
//! poller writes, with plain loads and stores on cache lines of its own; policies, `stats` and other
//! pollers read. Latencies are kept of two intervals of 10 ms: while the poller records into one, readers have the
//! finished one (after LPNS §4.5's two-phase array). Of a tenant that does nothing neither advances.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use io_model::{HwqId, Nanos, Op, Outcome, TenantId};
use policy::{Bound, Class, Percentile, TARGET_STEPS, TenantFigure, TenantReport, target_step};

use crate::Histogram;
use crate::count::{Count, Figures};
use crate::shared::Shared;

#[derive(Debug, Default)]
struct Interval {
    count: Count,
    sum_ns: Count,
}

/// Totals since the tenant was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Commands fetched for the device.
    pub submitted: u64,
    /// Commands completed.
    pub completed: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Bytes of completed reads.
    pub read_bytes: u64,
    /// Bytes of completed writes.
    pub write_bytes: u64,
    /// Commands that the device failed.
    pub errors: u64,
    /// Of these, reads.
    pub read_errors: u64,
    /// Of these, writes.
    pub write_errors: u64,
    /// Completions later than the latency target then in force (doorbell seen to completion posted).
    pub violations: u64,
    /// Of these, those that would have been in time had their poller not stood still.
    pub stalled: u64,
    /// Sum of all latencies, for a mean.
    pub latency_sum_ns: u64,
    /// Of that, the time with the device.
    pub served_sum_ns: u64,
    /// For how long its client had nobody to serve it, before this process went on where another one ended.
    pub outage_ns: u64,
}

impl Counters {
    /// Commands that the device has. Who reads while others count may see a completion before its submission: 0 then.
    pub fn in_flight(&self) -> u64 {
        self.submitted.saturating_sub(self.completed)
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.errors += other.errors;
        self.read_errors += other.read_errors;
        self.write_errors += other.write_errors;
        self.violations += other.violations;
        self.stalled += other.stalled;
        self.latency_sum_ns += other.latency_sum_ns;
        self.served_sum_ns += other.served_sum_ns;
        // All of its pollers see the same one.
        self.outage_ns = self.outage_ns.max(other.outage_ns);
    }
}

/// Where a command's time went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// From its doorbell to its fetch.
    pub(crate) waited: Nanos,
    /// From there to its completion.
    pub(crate) served: Nanos,
    /// Of that, at most: the poller stood still.
    pub(crate) stalled: Nanos,
}

/// What a [`TenantReport`] is made of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recent {
    submitted: u64,
    completed: u64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    write_bytes: u64,
    violations: u64,
    stalled: u64,
    by_target: [u32; TARGET_STEPS],
    count: u64,
    sum_ns: u64,
    busy_pollers: u32,
}

impl AddAssign for Recent {
    fn add_assign(&mut self, other: Self) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.violations += other.violations;
        self.stalled += other.stalled;
        self.by_target.iter_mut().zip(other.by_target).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.busy_pollers += other.busy_pollers;
    }
}

impl Recent {
    /// For the tenant that `probe` is one of; nothing is said of a cap.
    pub(crate) fn report(&self, probe: &Probe) -> TenantReport {
        TenantReport {
            tenant: probe.tenant,
            class: probe.class(),
            submitted: self.submitted,
            completed: self.completed,
            reads: self.reads,
            writes: self.writes,
            read_bytes: self.read_bytes,
            write_bytes: self.write_bytes,
            violations: self.violations,
            stalled: self.stalled,
            by_target: self.by_target,
            mean_latency: Nanos(self.sum_ns.checked_div(self.count).unwrap_or(0)),
            busy_pollers: self.busy_pollers.max(1),
            best_effort_cap: None,
        }
    }
}

/// A class in one word, so that its kind and its numbers are always of the same one.
#[derive(Debug)]
struct ClassWord(AtomicU64);

impl ClassWord {
    /// Set: guaranteed. Then commands of a million that may be late, and the target in ns.
    const GUARANTEED: u64 = 1 << 63;
    const TARGET_BITS: u32 = 43;
    /// In the place of a target: none was named.
    const UNNAMED: u64 = (1 << Self::TARGET_BITS) - 1;

    fn set(&self, class: Class) {
        let word = match class {
            Class::Guaranteed { latency_target, percentile } => {
                // No target is as long as two hours.
                let target = latency_target.map_or(Self::UNNAMED, |target| target.0.min(Self::UNNAMED - 1));
                Self::GUARANTEED | u64::from(percentile.late_ppm()) << Self::TARGET_BITS | target
            }
            Class::BestEffort { weight } => weight.into(),
        };
        self.0.store(word, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> Class {
        let word = self.0.load(Ordering::Relaxed);
        if word & Self::GUARANTEED == 0 {
            return Class::BestEffort { weight: word as u32 };
        }
        let target = Some(Nanos(word & Self::UNNAMED)).filter(|target| target.0 < Self::UNNAMED);
        let late_ppm = (word & !Self::GUARANTEED) >> Self::TARGET_BITS;
        Class::Guaranteed { latency_target: target, percentile: Percentile::from_late_ppm(late_ppm as u32) }
    }
}

/// One tenant's measurements at one poller; aligned so that two pollers never write one cache line.
#[derive(Debug)]
#[repr(align(128))]
pub struct Probe {
    tenant: TenantId,
    class: ClassWord,
    submitted: Count,
    completed: Count,
    reads: Count,
    writes: Count,
    read_bytes: Count,
    write_bytes: Count,
    errors: Count,
    read_errors: Count,
    write_errors: Count,
    violations: Count,
    stalled: Count,
    by_target: [AtomicU32; TARGET_STEPS],
    latency_sum_ns: Count,
    /// Of all intervals before the current one: summed once per interval, not per command.
    served_sum_ns: Count,
    outage_ns: Count,
    histogram: Histogram,
    intervals: [Interval; 2],
    /// Number of the current interval: even ones are counted in the first of `intervals`.
    interval: AtomicU32,
    /// Of its poller, once it has one.
    shared: OnceLock<Arc<Shared>>,
    /// Written once per interval at most, and only if nobody reads it just then: the poller never waits.
    bound: Mutex<Shown>,
    hwqs_in_use: AtomicU64,
    /// Commands that it had here, waiting and with the drive, in the mean of some intervals: in parts of
    /// [`ASKED_UNIT`]. Of a tenant of several pollers alone.
    asked: Count,
    /// What follows is for operators alone, and once per period.
    poller: Count,
    waiting: Count,
    figures: Figures<{ TenantFigure::COUNT }>,
    /// By queue.
    hwq_of: Box<[AtomicU16]>,
}

/// Where the bound of a tenant is.
#[derive(Debug, Clone, Copy)]
enum Shown {
    /// It does nothing, and has the one that its poller shows for all such.
    Idle,
    Own(Option<Bound>),
}

/// VQs that a tenant has at most.
const QUEUES: usize = 128;

/// Parts of a command.
const ASKED_UNIT: u64 = 1 << 20;
/// The weight of the last interval in the average: one part in this many.
const ASKED_OVER: u64 = 4;

/// A queue that sends over no HWQ that its policy would name.
const NO_HWQ: u16 = u16::MAX;

impl Probe {
    /// A probe with nothing recorded.
    pub fn new(tenant: TenantId, class: Class) -> Self {
        let word = ClassWord(AtomicU64::new(0));
        word.set(class);
        Self {
            tenant,
            class: word,
            submitted: Count::default(),
            completed: Count::default(),
            reads: Count::default(),
            writes: Count::default(),
            read_bytes: Count::default(),
            write_bytes: Count::default(),
            errors: Count::default(),
            read_errors: Count::default(),
            write_errors: Count::default(),
            violations: Count::default(),
            stalled: Count::default(),
            by_target: [const { AtomicU32::new(0) }; TARGET_STEPS],
            latency_sum_ns: Count::default(),
            served_sum_ns: Count::default(),
            outage_ns: Count::default(),
            histogram: Histogram::default(),
            intervals: Default::default(),
            interval: AtomicU32::new(0),
            shared: OnceLock::new(),
            bound: Mutex::new(Shown::Idle),
            hwqs_in_use: AtomicU64::new(0),
            asked: Count::default(),
            poller: Count::default(),
            waiting: Count::default(),
            figures: Figures::default(),
            hwq_of: (0..QUEUES).map(|_| AtomicU16::new(NO_HWQ)).collect(),
        }
    }

    /// The tenant of this probe.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The promise or weight in force at this poller. One that changes meanwhile is read as it was or as it is, never
    /// as a mixture; what is counted beside it ([`violations`](Counters::violations)) may be of the one before for a
    /// moment.
    pub fn class(&self) -> Class {
        self.class.get()
    }

    /// The poller's part: what it tells its policy too.
    pub(crate) fn set_class(&self, class: Class) {
        self.class.set(class);
    }

    #[inline]
    pub(crate) fn submitted(&self) {
        self.submitted.add(1);
    }

    /// What waits in its queues has waited so long for this process to go on where another one ended.
    pub(crate) fn went_on(&self, waited: Nanos) {
        self.outage_ns.add(waited.0);
    }

    /// The poller that has it from now on; the first one stays.
    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) {
        self.shared.get_or_init(|| Arc::clone(shared));
    }

    fn cell(&self, interval: u32) -> &Interval {
        &self.intervals[interval as usize % 2]
    }

    /// Records one completion.
    #[inline]
    pub(crate) fn completed(&self, op: Op, len_bytes: u64, outcome: Outcome, times: Times) {
        let Times { waited, served, stalled } = times;
        let latency_ns = (waited + served).0;
        self.completed.add(1);
        match op {
            Op::Read => {
                self.reads.add(1);
                self.read_bytes.add(len_bytes);
            }
            Op::Write => {
                self.writes.add(1);
                self.write_bytes.add(len_bytes);
            }
            Op::Flush | Op::WriteZeroes | Op::Discard => {}
        }
        if outcome.is_err() {
            self.failed(op);
        }
        self.latency_sum_ns.add(latency_ns);
        self.histogram.record(latency_ns);
        if let Some(target) = self.class().latency_target() {
            if latency_ns > target.0 {
                self.violations.add(1);
                self.stalled.add(u64::from(latency_ns.saturating_sub(stalled.0) <= target.0));
            }
            let count = &self.by_target[target_step(Nanos(latency_ns), target)];
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        let cell = self.cell(self.interval.load(Ordering::Relaxed));
        cell.count.add(1);
        cell.sum_ns.add(served.0);
    }

    #[cold]
    fn failed(&self, op: Op) {
        self.errors.add(1);
        match op {
            Op::Read => self.read_errors.add(1),
            Op::Write => self.write_errors.add(1),
            Op::Flush | Op::WriteZeroes | Op::Discard => {}
        }
    }

    /// Ends the current interval and clears the cell of the next one.
    pub(crate) fn next_interval(&self) {
        let current = self.interval.load(Ordering::Relaxed);
        let next = current.wrapping_add(1);
        let cell = self.cell(next);
        cell.count.set(0);
        cell.sum_ns.set(0);
        self.interval.store(next, Ordering::Release);
        // After the interval: a reader in between misses it for a moment and never counts it twice.
        self.served_sum_ns.add(self.cell(current).sum_ns.get());
    }

    /// Whether nothing ended in the last interval. With nothing in flight, further ones would change nothing that
    /// anybody reads.
    pub(crate) fn was_calm(&self) -> bool {
        self.cell(self.interval.load(Ordering::Relaxed).wrapping_sub(1)).count.get() == 0
    }

    /// What a policy needs to know: totals, and latencies of the last finished interval.
    pub fn report(&self) -> TenantReport {
        self.recent().report(self)
    }

    /// The figures as sums, which add up over the probes of one tenant.
    pub(crate) fn recent(&self) -> Recent {
        let now = self.interval.load(Ordering::Acquire);
        let last = self.cell(now.wrapping_sub(1));
        let (submitted, completed, count) = (self.submitted.get(), self.completed.get(), last.count.get());
        Recent {
            submitted,
            completed,
            reads: self.reads.get(),
            writes: self.writes.get(),
            read_bytes: self.read_bytes.get(),
            write_bytes: self.write_bytes.get(),
            violations: self.violations.get(),
            stalled: self.stalled.get(),
            by_target: self.by_target.each_ref().map(|count| count.load(Ordering::Relaxed)),
            count,
            sum_ns: last.sum_ns.get(),
            busy_pollers: u32::from(count > 0 || submitted > completed),
        }
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        let current = self.interval.load(Ordering::Acquire);
        Counters {
            submitted: self.submitted.get(),
            completed: self.completed.get(),
            reads: self.reads.get(),
            writes: self.writes.get(),
            read_bytes: self.read_bytes.get(),
            write_bytes: self.write_bytes.get(),
            errors: self.errors.get(),
            read_errors: self.read_errors.get(),
            write_errors: self.write_errors.get(),
            violations: self.violations.get(),
            stalled: self.stalled.get(),
            latency_sum_ns: self.latency_sum_ns.get(),
            served_sum_ns: self.served_sum_ns.get() + self.cell(current).sum_ns.get(),
            outage_ns: self.outage_ns.get(),
        }
    }

    /// Latencies since the start, doorbell seen to completion posted.
    pub fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// Publishes the bound that the policy promises now. `false`: a reader is reading it, so it is unchanged.
    pub(crate) fn publish_bound(&self, bound: Option<Bound>) -> bool {
        self.show(Shown::Own(bound))
    }

    /// Records at the end of an interval how many commands it has here, waiting and in flight.
    pub(crate) fn asks(&self, commands: u64) {
        let before = self.asked.get();
        self.asked.set(before - before / ASKED_OVER + commands * ASKED_UNIT / ASKED_OVER);
    }

    /// That, in the mean of some intervals.
    pub(crate) fn asked(&self) -> f64 {
        self.asked.get() as f64
    }

    /// From now on the tenant does nothing, and has what its poller promises all such. `false`: as above.
    pub(crate) fn rest(&self) -> bool {
        self.hwqs_in_use.store(0, Ordering::Relaxed);
        self.asked.set(0);
        self.show(Shown::Idle)
    }

    fn show(&self, shown: Shown) -> bool {
        let free = self.bound.try_lock();
        let is_free = free.is_ok();
        if let Ok(mut published) = free {
            *published = shown;
        }
        is_free
    }

    /// Publishes over which HWQs (one bit each) the tenant sends.
    pub(crate) fn publish_hwqs(&self, in_use: u64) {
        self.hwqs_in_use.store(in_use, Ordering::Relaxed);
    }

    /// The poller of that number serves the tenant here.
    pub fn served_by(&self, poller: usize) {
        self.poller.set(poller as u64);
    }

    /// That number.
    pub fn poller(&self) -> usize {
        self.poller.get() as usize
    }

    /// Publishes how many commands wait in the tenant's queues, and what the policy tells of the tenant.
    pub(crate) fn publish_inside(&self, waiting: u64, tell_all: impl FnOnce(&mut dyn FnMut(TenantFigure, f64))) {
        self.waiting.set(waiting);
        let mut told = [None; TenantFigure::COUNT];
        tell_all(&mut |figure, value| told[figure as usize] = Some(value));
        self.figures.set(told);
    }

    /// Publishes the HWQ that a queue's next command goes to; `None`: nobody knows, or there is no such queue.
    pub(crate) fn publish_hwq(&self, queue: u16, hwq: Option<HwqId>) {
        if let Some(place) = self.hwq_of.get(usize::from(queue)) {
            place.store(hwq.map_or(NO_HWQ, |hwq| hwq.0), Ordering::Relaxed);
        }
    }

    /// Commands that waited in the tenant's queues at this poller, as of the last period in which that was awake.
    pub fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// A figure of the policy's about the tenant, as of that period; `None`: the policy in force has no such thing.
    pub fn figure(&self, figure: TenantFigure) -> Option<f64> {
        self.figures.get(figure as usize)
    }

    /// Queues, and the HWQ that the next command of each goes to, as of that period.
    pub fn hwqs(&self) -> impl Iterator<Item = (u16, u16)> {
        let told = (0..).zip(self.hwq_of.iter().map(|hwq| hwq.load(Ordering::Relaxed)));
        told.filter(|(_, hwq)| *hwq != NO_HWQ)
    }

    /// The policy's latency bound with what it rests on, if it gives a guaranteed tenant one.
    pub fn bound(&self) -> Option<Bound> {
        if !self.class().is_guaranteed() {
            return None;
        }
        let shown = *self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        match shown {
            Shown::Own(bound) => bound,
            Shown::Idle => self.shared.get()?.idle_bound(),
        }
    }

    /// The HWQs used in the last interval, one bit each (the 64th stands for all above).
    pub fn hwqs_in_use(&self) -> u64 {
        self.hwqs_in_use.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A nanosecond in the queue, and then with the drive for so long.
    fn took(served: Nanos) -> Times {
        Times { waited: Nanos(1), served, stalled: Nanos(0) }
    }

    #[test]
    fn what_is_read_is_of_the_finished_interval() {
        let probe = Probe::new(TenantId(1), Class::guaranteed(Some(Nanos(50))));
        for interval in 0..20 {
            probe.submitted();
            probe.completed(Op::Read, 4096, Ok(()), took(Nanos(interval + 40)));
            probe.next_interval();
        }
        assert_eq!(probe.report().mean_latency, Nanos(59));
        assert!(!probe.was_calm());
        // With the one nanosecond in the queue, 50 to 59 are over the target of 50.
        assert_eq!(probe.counters().violations, 10);
        assert_eq!(probe.counters().read_bytes, 20 * 4096);
        // All but the nanosecond that each waited; the interval that goes on counts too.
        probe.completed(Op::Read, 4096, Ok(()), took(Nanos(5)));
        let counters = probe.counters();
        assert_eq!(counters.served_sum_ns, counters.latency_sum_ns - counters.completed);
    }

    #[test]
    fn who_would_have_been_in_time_had_the_poller_not_stood_still() {
        let probe = Probe::new(TenantId(1), Class::guaranteed(Some(Nanos(50))));
        for stalled in [0, 10, 11, 1_000] {
            probe.completed(Op::Read, 4096, Ok(()), Times { stalled: Nanos(stalled), ..took(Nanos(60)) });
        }
        probe.completed(Op::Read, 4096, Ok(()), Times { stalled: Nanos(40), ..took(Nanos(45)) });
        assert_eq!((probe.report().violations, probe.report().stalled), (4, 2));
    }

    #[test]
    fn a_class_is_read_as_it_was_set() {
        let probe = Probe::new(TenantId(u32::MAX), Class::BestEffort { weight: 10_000 });
        let promised = |ns: u64, percent| Class::Guaranteed {
            latency_target: Some(Nanos(ns)),
            percentile: Percentile::new(percent).expect("a percentile"),
        };
        let unnamed = Class::guaranteed(None);
        let targets = [promised(0, 50.0), promised(50_000, 99.0), promised(1 << 40, 99.9)];
        for class in targets.into_iter().chain([unnamed, Class::BestEffort { weight: u32::MAX }]) {
            probe.set_class(class);
            assert_eq!(probe.class(), class);
        }
    }

    #[test]
    fn an_idle_tenant_reports_zero_latency() {
        let probe = Probe::new(TenantId(1), Class::BestEffort { weight: 1 });
        probe.completed(Op::Read, 4096, Ok(()), took(Nanos(40)));
        probe.next_interval();
        assert_eq!((probe.report().mean_latency, probe.was_calm()), (Nanos(40), false));
        probe.next_interval();
        assert_eq!((probe.report().mean_latency, probe.was_calm()), (Nanos(0), true));
    }
}
