//! A stand-in for the FIU *webusers* trace.

use fastrand::Rng;
use io_model::Nanos;

use super::access::Access;
use super::open::{Arrive, MAX_IOPS, OpenJob};
use super::{WorkloadError, seed, within, within_f64};
use crate::Job;

/// A synthetic stand-in for the *webusers* trace of Florida International University, which LPNS replays as its
/// latency-sensitive tenant. **It is not that trace**: say so wherever its figures are shown.
///
/// LPNS (section 5.3) takes two things from the trace, its throughput over time and its proportion of reads and
/// writes, and issues 4 KiB I/Os; so the stand-in needs the same two. I/Os arrive as a Poisson process whose rate
/// wanders smoothly around the mean:
///
/// ```text
/// rate(t) = mean_iops * (1 + swing * (2/3 slow(t) + 1/3 fast(t)))
/// ```
///
/// `slow` and `fast` are random functions within -1 and 1 with mean 0: independent, evenly distributed values, one
/// each period, with a cosine from each to the next. [`ASSUMPTIONS`](Self::ASSUMPTIONS) says what is behind the
/// numbers of [`default`](Self::default).
#[derive(Debug, Clone, PartialEq)]
pub struct Webuser {
    /// Threads; each gets an equal part of the arrivals.
    pub jobs: u32,
    /// The mean rate, in I/Os per second.
    pub mean_iops: f64,
    /// How far the rate leaves the mean, as a part of it: 0 to 1.
    pub swing: f64,
    /// The time between two values of the slow change; above 0.
    pub slow_period: Nanos,
    /// The time between two values of the fast change; above 0.
    pub fast_period: Nanos,
    /// What the I/Os are.
    pub access: Access,
    /// I/Os that each job may have outstanding. An arrival above that waits for a completion.
    pub max_outstanding: u32,
}

impl Default for Webuser {
    fn default() -> Self {
        Self {
            jobs: 4,
            mean_iops: 4000.0,
            swing: 1.0,
            slow_period: Nanos::from_millis(200),
            fast_period: Nanos::from_millis(50),
            access: Access::random_4k(25),
            max_outstanding: 4096,
        }
    }
}

impl Webuser {
    /// What a reader of its figures must know.
    pub const ASSUMPTIONS: [&'static str; 5] = [
        "The FIU webusers trace is not available; a synthetic load stands in for it.",
        "Its mean rate is 4,000 I/Os per second: the throttling rule of LPNS shows its effect on the P5800X only for a \
         tenant below about 4,200.",
        "Three quarters of its I/Os are writes. The block traces that FIU published of its web servers are mostly \
         writes, as most reads end in the page cache above the disk; the exact share of webusers is not known here.",
        "All its I/Os are of 4 KiB and fall evenly on the whole disk: FIU's traces are in pages of 4 KiB, and LPNS \
         took only rates from the trace.",
        "Its rate wanders between nothing and twice the mean over 0.2 s and 0.05 s, where the replayed trace changes \
         over 10 s and more, so that a simulation of a few seconds sees as many changes as the 2,000 s replay. How far \
         it wanders is assumed; the throttle's losses grow with it.",
    ];

    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        within_f64("mean_iops", self.mean_iops, 1e-3, MAX_IOPS / 2.0, "0.001 to 50000000")?;
        within_f64("swing", self.swing, 0.0, 1.0, "0 to 1")?;
        let longest = 1_000_000_000_000;
        within("slow_period", self.slow_period.0, 1..=longest, "1 ns to 1000 s")?;
        within("fast_period", self.fast_period.0, 1..=longest, "1 ns to 1000 s")?;
        within("max_outstanding", self.max_outstanding.into(), 1..=65_536, "1 to 65536")?;
        self.access.validate(self.jobs, disk_bytes)
    }

    pub(super) fn jobs(&self, disk_bytes: u64, seed: u64) -> Vec<Box<dyn Job>> {
        let job = |index: u32| -> Box<dyn Job> {
            let clock = Wandering {
                swing: self.swing,
                slow: Noise { seed, period_ns: self.slow_period.0 as f64 },
                fast: Noise { seed: !seed, period_ns: self.fast_period.0 as f64 },
                gap_ns: 1e9 * f64::from(self.jobs) / (self.mean_iops * (1.0 + self.swing)),
                at_ns: 0.0,
            };
            let picker = self.access.picker(index, self.jobs, disk_bytes);
            let rng = seed::rng(seed, index.into());
            Box::new(OpenJob::new(clock, picker, rng, self.max_outstanding))
        };
        (0..self.jobs).map(job).collect()
    }
}

/// A Poisson process with a changing rate, by thinning one with the highest rate (Lewis and Shedler 1979).
struct Wandering {
    swing: f64,
    slow: Noise,
    fast: Noise,
    /// The mean gap at the highest rate.
    gap_ns: f64,
    at_ns: f64,
}

impl Wandering {
    /// The rate as a part of the mean.
    fn rate(&self) -> f64 {
        let wander = self.slow.at(self.at_ns) * 2.0 / 3.0 + self.fast.at(self.at_ns) / 3.0;
        1.0 + self.swing * wander
    }
}

impl Arrive for Wandering {
    fn next_ns(&mut self, rng: &mut Rng) -> f64 {
        loop {
            self.at_ns += self.gap_ns * seed::exponential(rng);
            if rng.f64() * (1.0 + self.swing) < self.rate() {
                return self.at_ns;
            }
        }
    }
}

/// A smooth random function of time. All jobs of a workload have the same, from the workload's seed.
struct Noise {
    seed: u64,
    period_ns: f64,
}

impl Noise {
    fn at(&self, at_ns: f64) -> f64 {
        let periods = at_ns / self.period_ns;
        let last = periods.floor();
        let ease = (1.0 - ((periods - last) * std::f64::consts::PI).cos()) / 2.0;
        let from = self.knot(last as u64);
        from + (self.knot(last as u64 + 1) - from) * ease
    }

    /// Its value at the start of a period: -1 to 1.
    fn knot(&self, period: u64) -> f64 {
        seed::rng(self.seed, period).f64() * 2.0 - 1.0
    }
}
