//! Gimbal: a drive treated as a congested link ("Gimbal: Enabling Multi-tenant Storage Disaggregation on SmartNIC
//! JBOFs", Min et al., SIGCOMM '21).
//!
//! Tokens come at a rate that follows the latencies of reads and writes, each averaged. Below a least latency the rate
//! rises fast; up to a threshold it rises by what ends; above, it falls by what ends and the threshold moves halfway to
//! the highest latency, else halfway down to the average; above the highest one the rate is what the drive completes,
//! and no tokens are left. A write costs as many tokens as it is thought to be dearer than a read: half a read less
//! after each interval in which writes are fast, half the way back to the dearest otherwise. Tenants share that by
//! weight. Each active tenant has an equal number of slots of 128 KiB with the drive.
//!
//! It knows no targets: a guaranteed tenant is one of weight 1. The published latencies (250 µs and 1500 µs) are those
//! of one flash drive, 3.3 and 20 times what a read takes alone there; here they are as many times the drive's own.
//! Published, reads and writes have a bucket each; here it is one that writes take more from, since what a command is
//! is known only once it is fetched, and so is an overdraft of one command. Shares are by start-time fair queueing
//! instead of deficit round robin, and a slot is a number of bytes, whichever of its commands end first.
//!
//! Left out: credits between hosts, and priorities that a tenant gives its own commands.

use io_model::{HwqId, Nanos, Op};
use policy::parts::{ByFlow, Fair, Flows, Standing, Turns};
use policy::{COST_UNIT, ConfigError, DriveFigures, Next, PollerShape, TenantReport, TenantSlot, Terms};

use crate::bucket::Bucket;

/// The least and the highest latency, in what a command takes alone.
const LATENCIES: (f64, f64) = (3.3, 20.0);
/// What a new latency counts in the average, and how far the threshold moves.
const HALF: f64 = 0.5;
/// How much faster the rate rises while the drive is not used.
const PROBES: f64 = 8.0;
/// What writes get cheaper in an interval, in reads.
const CHEAPER: f64 = 0.5;
/// Tokens that are kept.
const BURST_BYTES: f64 = 262_144.0;
const SLOT_BYTES: u64 = 131_072;
/// Slots of a tenant that is alone.
const SLOTS: u64 = 8;
/// Bytes per second, at least and at most.
const RATES: (f64, f64) = (4e6, 100e9);

/// Settings of [`Gimbal`].
#[derive(Debug, Clone, PartialEq)]
pub struct GimbalConfig {
    /// Latency below which the drive is not used; above 0.
    pub least: Nanos,
    /// Latency above which it is overloaded; above `least`.
    pub highest: Nanos,
    /// What a write costs at most, in reads; 1 or more.
    pub dearest_write: f64,
    /// Bytes per second at the start.
    pub first_rate: f64,
}

impl GimbalConfig {
    /// On a drive.
    pub fn on(drive: &DriveFigures) -> Self {
        let alone_ns = drive.lpns.l_h.0 as f64;
        let cost = |op| f64::from(drive.lpns.cost.of(op, 4096));
        Self {
            least: Nanos((alone_ns * LATENCIES.0) as u64),
            highest: Nanos((alone_ns * LATENCIES.1) as u64),
            dearest_write: (cost(Op::Write) / cost(Op::Read)).max(1.0),
            first_rate: drive.lpns.r_iops * 4096.0,
        }
    }
}

/// Latency of one kind of command.
#[derive(Debug, Clone, Copy)]
struct Delay {
    average_ns: f64,
    threshold_ns: f64,
}

/// How a drive with such latencies is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Overloaded,
    Congested,
    Rising,
    Unused,
}

impl Delay {
    fn hear(&mut self, latency: Nanos, config: &GimbalConfig) -> State {
        let (least_ns, highest_ns) = (config.least.0 as f64, config.highest.0 as f64);
        self.average_ns += (latency.0 as f64 - self.average_ns) * HALF;
        if self.average_ns > highest_ns {
            self.threshold_ns = highest_ns;
            State::Overloaded
        } else if self.average_ns > self.threshold_ns {
            self.threshold_ns = f64::midpoint(self.threshold_ns, highest_ns);
            State::Congested
        } else {
            self.threshold_ns -= (self.threshold_ns - self.average_ns) * HALF;
            self.threshold_ns = self.threshold_ns.max(least_ns);
            if self.average_ns > least_ns { State::Rising } else { State::Unused }
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    is_active: bool,
    is_ready: bool,
    /// All of its slots are with the drive.
    held: bool,
    in_flight: u64,
}

/// The flows that could send, by weight.
#[derive(Debug)]
pub struct Order {
    waiting: Fair,
    tenants: Vec<Tenant>,
    active: u64,
}

impl Order {
    /// Bytes that a tenant may have with the drive.
    fn slots_bytes(&self) -> u64 {
        (SLOTS / self.active.max(1)).max(1) * SLOT_BYTES
    }

    fn charge(&mut self, tenant: u16, tokens: u32, len_bytes: u64) {
        self.waiting.charge(tenant, tokens);
        let most = self.slots_bytes();
        let it = &mut self.tenants[usize::from(tenant)];
        it.in_flight += len_bytes;
        if it.in_flight >= most && !std::mem::replace(&mut it.held, true) && it.is_ready {
            self.waiting.remove(tenant);
        }
    }

    fn release(&mut self, tenant: u16, len_bytes: u64) {
        let most = self.slots_bytes();
        let Some(it) = self.tenants.get_mut(usize::from(tenant)) else { return };
        it.in_flight = it.in_flight.saturating_sub(len_bytes);
        if it.in_flight < most && std::mem::take(&mut it.held) && it.is_ready {
            self.waiting.insert(tenant);
        }
    }
}

impl Turns for Order {
    fn attach(&mut self, tenant: u16, terms: &Terms) {
        let len = usize::from(tenant) + 1;
        if self.tenants.len() < len {
            self.tenants.resize(len, Tenant::default());
            self.waiting.grow(len);
        }
        self.waiting.set_weight(tenant, terms.class.weight_or(1));
    }

    fn forget(&mut self, tenant: u16) {
        self.waiting.forget(tenant);
        if let Some(it) = self.tenants.get_mut(usize::from(tenant)) {
            self.active -= u64::from(it.is_active);
            *it = Tenant::default();
        }
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        let it = &mut self.tenants[usize::from(tenant)];
        it.is_ready = to == Standing::Ready;
        let (held, was_active) = (it.held, std::mem::replace(&mut it.is_active, to != Standing::Idle));
        self.active = self.active + u64::from(to != Standing::Idle) - u64::from(was_active);
        if !held && from == Standing::Ready {
            self.waiting.remove(tenant);
        }
        if !held && to == Standing::Ready {
            self.waiting.insert(tenant);
        }
    }

    fn holds(&self, tenant: u16) -> bool {
        self.tenants[usize::from(tenant)].held
    }
}

/// The policy of one poller.
#[derive(Debug)]
pub struct Gimbal {
    config: GimbalConfig,
    reads: Delay,
    writes: Delay,
    /// Bytes per second, and what a write costs in reads.
    rate: f64,
    write_cost: f64,
    /// What ended since the last interval, and when that was.
    ended_bytes: f64,
    since: Nanos,
    completes: f64,
    tokens: Bucket,
    flows: Flows<Order>,
}

impl Gimbal {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range, or a shape without HWQs or depth.
    pub fn new(config: GimbalConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        let are_ordered = config.least > Nanos(0) && config.highest > config.least;
        ConfigError::check(are_ordered, "highest", "must be above the least latency")?;
        ConfigError::check(config.dearest_write >= 1.0, "dearest_write", "must be at least 1")?;
        let order = Order { waiting: Fair::default(), tenants: Vec::new(), active: 0 };
        let delay = Delay { average_ns: 0.0, threshold_ns: config.highest.0 as f64 };
        let rate = config.first_rate.clamp(RATES.0, RATES.1);
        Ok(Self {
            reads: delay,
            writes: delay,
            rate,
            write_cost: config.dearest_write,
            ended_bytes: 0.0,
            since: Nanos(0),
            completes: rate,
            tokens: Bucket::new(rate, BURST_BYTES),
            flows: Flows::new(order, shape.hwqs, shape.hwq_depth),
            config,
        })
    }

    fn tokens_of(&self, op: Op, len_bytes: u64) -> f64 {
        let cost = if op == Op::Read { 1.0 } else { self.write_cost };
        len_bytes.max(4096) as f64 * cost
    }
}

impl ByFlow for Gimbal {
    type Turns = Order;

    fn flows(&self) -> &Flows<Order> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Order> {
        &mut self.flows
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        self.tokens.fill(now);
        let is_open = self.tokens.is_open();
        let next = self.flows.next_by(|order| if is_open { order.waiting.front() } else { None });
        match next {
            Next::WaitUntil(_) if !is_open => Next::WaitUntil(self.tokens.opens_at(now)),
            next => next,
        }
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        let tokens = self.tokens_of(op, len_bytes);
        self.tokens.take(tokens);
        let cost = tokens / 4096.0 * f64::from(COST_UNIT);
        self.flows.turns.charge(tenant, cost as u32, len_bytes);
    }

    fn refusing(&mut self, tenant: u16, consumed: bool) {
        if consumed {
            self.flows.turns.waiting.charge(tenant, COST_UNIT);
        }
    }

    #[inline]
    fn took(&mut self, op: Op, len_bytes: u64, latency: Nanos) {
        let bytes = len_bytes as f64;
        self.ended_bytes += bytes;
        let delay = if op == Op::Read { &mut self.reads } else { &mut self.writes };
        match delay.hear(latency, &self.config) {
            State::Overloaded => {
                self.tokens.empty();
                self.rate = self.completes;
            }
            State::Congested => self.rate -= bytes,
            State::Rising => self.rate += bytes,
            State::Unused => self.rate += bytes * PROBES,
        }
        self.rate = self.rate.clamp(RATES.0, RATES.1);
        self.tokens.set_rate(self.rate, BURST_BYTES);
    }

    #[inline]
    fn completing(&mut self, _: HwqId, tenant: TenantSlot, _: Op, len_bytes: u64, _: Nanos) {
        self.flows.turns.release(tenant.0, len_bytes);
    }

    fn end_interval(&mut self, _: &[TenantReport], now: Nanos) {
        let passed_ns = now.0.saturating_sub(self.since.0);
        if passed_ns > 0 && self.ended_bytes > 0.0 {
            self.completes = self.ended_bytes * 1e9 / passed_ns as f64;
        }
        (self.since, self.ended_bytes) = (now, 0.0);
        let dearest = self.config.dearest_write;
        let is_fast = self.writes.average_ns < self.config.least.0 as f64;
        self.write_cost =
            if is_fast { (self.write_cost - CHEAPER).max(1.0) } else { f64::midpoint(self.write_cost, dearest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> GimbalConfig {
        let (least, highest) = (Nanos::from_micros(250), Nanos::from_micros(1_500));
        GimbalConfig { least, highest, dearest_write: 9.0, first_rate: 1e9 }
    }

    #[test]
    fn a_threshold_follows_the_average_down_and_leaps_up() {
        let mut delay = Delay { average_ns: 0.0, threshold_ns: 1.5e6 };
        let hear = |delay: &mut Delay, us| (0..20).map(|_| delay.hear(Nanos::from_micros(us), &config())).last();
        assert_eq!(hear(&mut delay, 100), Some(State::Unused));
        assert_eq!(delay.threshold_ns, 250_000.0, "no lower than the least latency");
        assert_eq!(delay.hear(Nanos::from_micros(900), &config()), State::Congested);
        assert!(delay.threshold_ns > 800_000.0);
        assert_eq!(hear(&mut delay, 2_000), Some(State::Overloaded));
    }

    #[test]
    fn writes_are_as_dear_as_they_are_slow() {
        let shape = PollerShape { hwqs: 1, hwq_depth: 64, guaranteed_vqs: 0, weighted: false };
        let mut policy = Gimbal::new(config(), &shape).unwrap();
        for interval in 1..=20 {
            policy.took(Op::Write, 4096, Nanos::from_micros(20));
            policy.end_interval(&[], Nanos::from_millis(10 * interval));
        }
        assert_eq!(policy.write_cost, 1.0);
        (0..20).for_each(|_| policy.took(Op::Write, 4096, Nanos::from_micros(800)));
        policy.end_interval(&[], Nanos::from_millis(210));
        assert_eq!(policy.write_cost, 5.0);
    }
}
