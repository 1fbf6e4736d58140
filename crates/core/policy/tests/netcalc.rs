//! Curves and bounds against brute force on a grid of times, and against queues that are simulated command by command.
//! A seed decides each case, and every failure names it: replay one with
//! `NETCALC_SEED=<seed> cargo test -p policy --test netcalc`.

use io_model::Nanos;
use policy::netcalc::{
    ArrivalCurve, Envelope, NoBound, Segment, Service, ServiceCurve, Unstable, backlog_bound, delay_bound,
};

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// 1 to 3 token buckets of 100 to 500K/s.
    fn envelope(&mut self) -> Envelope {
        let bucket = |random: &mut Self| ArrivalCurve {
            rate_iops: random.between(100_000, 500_000) as f64,
            burst: random.below(60) as f64,
        };
        let buckets: Vec<_> = (0..self.between(1, 4)).map(|_| bucket(self)).collect();
        Envelope::of(&buckets).expect("finite figures")
    }

    /// 1 to 3 rate-latency curves, the fastest of `least` to twice that.
    fn service(&mut self, least_iops: u64) -> Service {
        let curve =
            |rate_iops: u64, latency: u64| ServiceCurve { rate_iops: rate_iops as f64, latency: Nanos(latency) };
        let mut curves = vec![curve(self.between(least_iops, 2 * least_iops), self.below(60_000))];
        for _ in 0..self.below(3) {
            curves.push(curve(self.between(10_000, least_iops), self.below(30_000)));
        }
        Service::of(&curves).expect("finite figures")
    }
}

fn for_seeds(seeds: u64, case: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    if let Some(seed) = std::env::var("NETCALC_SEED").ok().and_then(|seed| seed.parse().ok()) {
        case(&mut Random(seed));
        return;
    }
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| case(&mut Random(seed)));
        assert!(outcome.is_ok(), "replay with NETCALC_SEED={seed}");
    }
}

const STEP_NS: f64 = 500.0;
const GRID: usize = 1_200;

fn grid() -> impl Iterator<Item = f64> {
    (0..GRID).map(|step| step as f64 * STEP_NS)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()))
}

#[test]
fn curves_are_the_least_bucket_and_the_best_server() {
    for_seeds(200, |random| {
        let (one, two) = (random.envelope(), random.envelope());
        let (sum, least) = (one.sum(&two), one.minimum(&two));
        let service = random.service(200_000);
        for time in grid() {
            let bucket = |bucket: ArrivalCurve| bucket.burst + bucket.rate_iops * time / 1e9;
            assert!(close(one.at(time), one.buckets().map(bucket).fold(f64::INFINITY, f64::min)));
            assert!(close(sum.at(time), one.at(time) + two.at(time)));
            assert!(close(least.at(time), one.at(time).min(two.at(time))));
        }
        // Their shapes hold up to the check that outsiders' curves go through.
        assert_eq!(Envelope::from_segments(sum.segments()).as_ref(), Ok(&sum));
        assert_eq!(Envelope::from_segments(least.segments()).as_ref(), Ok(&least));
        assert_eq!(Service::from_segments(service.segments(), true).as_ref(), Ok(&service));
    });
}

#[test]
fn servers_in_a_row_are_the_convolution() {
    for_seeds(60, |random| {
        let (one, two) = (random.service(200_000), random.service(300_000));
        let both = one.then(&two);
        assert!(!both.is_strict());
        assert_eq!(both, two.then(&one));
        for time in grid().step_by(20) {
            let split = |part: f64| one.at(part) + two.at(time - part);
            // Between two points of the grid a split may be better by what the faster server does in that time.
            let brute = grid().take_while(|part| *part <= time).map(split).fold(f64::INFINITY, f64::min);
            let slack = STEP_NS * 600_000.0 / 1e9;
            assert!(both.at(time) <= brute + 1e-6, "{} at {time}: above {brute}", both.at(time));
            assert!(both.at(time) >= brute - slack, "{} at {time}: far below {brute}", both.at(time));
        }
    });
}

#[test]
fn delay_and_backlog_are_the_distances_of_the_curves() {
    for_seeds(60, |random| {
        let (arrivals, service) = (random.envelope(), random.service(500_000));
        let delay = arrivals.delay_at(&service).expect("stable").0 as f64;
        let backlog = arrivals.backlog_at(&service).expect("stable");
        let times = || (1..4_000).map(|step| f64::from(step) * 200.0);
        let vertical = times().map(|time| arrivals.at(time) - service.at(time)).fold(arrivals.at(0.0), f64::max);
        assert!(backlog >= vertical - 1e-6 && backlog <= vertical + 0.5, "{backlog}, on the grid {vertical}");
        let mut served = 0.0;
        let mut horizontal = 0.0_f64;
        for time in times() {
            while service.at(served) < arrivals.at(time) {
                served += 200.0;
            }
            horizontal = horizontal.max(served - time);
        }
        assert!((delay - horizontal).abs() <= 600.0, "{delay}, on the grid {horizontal}");
    });
}

#[test]
fn one_bucket_at_one_server_is_the_closed_form() {
    for_seeds(200, |random| {
        let arrival =
            ArrivalCurve { rate_iops: random.between(1, 900_000) as f64, burst: random.between(1, 200) as f64 };
        let server =
            ServiceCurve { rate_iops: random.between(1, 900_000) as f64, latency: Nanos(random.below(90_000)) };
        let envelope = Envelope::of(&[arrival]).expect("finite");
        let service = Service::of(&[server]).expect("finite");
        match delay_bound(&arrival, &server) {
            Ok(delay) => {
                let general = envelope.delay_at(&service).expect("as stable");
                assert!(general.0.abs_diff(delay.0) <= 1, "{general:?} {delay:?}");
                let backlog = backlog_bound(&arrival, &server).expect("as stable");
                assert!(close(envelope.backlog_at(&service).expect("as stable"), backlog));
                // Behind the server: the same rate, b + v·T at once.
                let behind: Vec<_> = envelope.after(&service).expect("as stable").buckets().collect();
                assert_eq!(behind.len(), 1);
                assert!(close(behind[0].burst, backlog) && behind[0].rate_iops == arrival.rate_iops);
            }
            Err(unstable) => {
                assert_eq!(envelope.delay_at(&service), Err(unstable.into()));
                assert_eq!(envelope.backlog_at(&service), Err(unstable.into()));
                assert_eq!(envelope.after(&service), Err(unstable.into()));
            }
        }
    });
}

/// When a source that sends as early as each of its buckets lets it, but for random silences, sends its commands, ns.
fn arrivals(random: &mut Random, envelope: &Envelope, commands: usize, greedy: bool) -> Vec<f64> {
    let mut sent: Vec<f64> = Vec::new();
    let mut now = 0.0_f64;
    // Tokens of each bucket, and when they were counted.
    let mut buckets: Vec<_> = envelope.buckets().map(|bucket| (bucket, bucket.burst, 0.0)).collect();
    while sent.len() < commands {
        if !greedy && random.below(20) == 0 {
            now += random.below(200_000) as f64;
        }
        let refill = |(bucket, tokens, at): &(ArrivalCurve, f64, f64), now: f64| {
            (tokens + bucket.rate_iops * (now - at) / 1e9).min(bucket.burst.max(1.0))
        };
        for entry in &buckets {
            let missing = 1.0 - refill(entry, now);
            if missing > 0.0 {
                now += missing / entry.0.rate_iops * 1e9;
            }
        }
        for entry in &mut buckets {
            (entry.1, entry.2) = (refill(entry, now) - 1.0, now);
        }
        sent.push(now);
    }
    sent
}

/// When each command leaves a first-in first-out server that does just what its curve says in every busy period.
fn departures(service: &Service, arrivals: &[f64]) -> Vec<f64> {
    let mut left: Vec<f64> = Vec::new();
    let (mut start, mut served) = (0.0, 0.0);
    for arrived in arrivals {
        if left.last().is_none_or(|last| last < arrived) {
            (start, served) = (*arrived, 0.0);
        }
        served += 1.0;
        left.push(start + time_to_serve(service, served));
    }
    left
}

/// By bisection, so that nothing of what is tested is used to test it.
fn time_to_serve(service: &Service, commands: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e12);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if service.at(middle) < commands { low = middle } else { high = middle }
    }
    high
}

#[test]
fn no_command_of_a_simulated_queue_takes_longer_than_the_bound() {
    for_seeds(150, |random| {
        let buckets: Vec<_> =
            random.envelope().buckets().map(|bucket| ArrivalCurve { burst: bucket.burst.max(1.0), ..bucket }).collect();
        let envelope = Envelope::of(&buckets).expect("finite");
        let service = random.service(500_000);
        let greedy = random.below(2) == 0;
        let sent = arrivals(random, &envelope, 2_000, greedy);
        let left = departures(&service, &sent);
        let delay = envelope.delay_at(&service).expect("stable").0 as f64;
        let worst = sent.iter().zip(&left).map(|(sent, left)| left - sent).fold(0.0, f64::max);
        assert!(worst <= delay + 1.0, "{worst} ns, the bound is {delay}");
        if greedy {
            // The bound is met by a whole command's time at the slowest rate, no less.
            assert!(worst >= delay - 1e9 / 10_000.0 - 60_000.0, "{worst} ns, the bound of {delay} is not tight");
        }
        let backlog = envelope.backlog_at(&service).expect("stable");
        let waiting = sent.iter().enumerate().map(|(at, now)| at + 1 - left.partition_point(|left| left <= now));
        let most = waiting.max().unwrap_or(0) as f64;
        // One more: a command counts until the last of it is served.
        assert!(most <= backlog + 1.0 + 1e-6, "{most} commands, the bound is {backlog}");
        let behind = envelope.after(&service).expect("stable");
        for (at, first) in left.iter().enumerate().step_by(37) {
            for (more, last) in left[at..].iter().enumerate().step_by(11) {
                let allowed = behind.at(last - first) + 1.0 + 1e-6;
                assert!((more + 1) as f64 <= allowed, "{} left in {} ns", more + 1, last - first);
            }
        }
    });
}

/// Serves fluid in steps: `flows` arrive by their curves at once; those earlier in the list first, or all in order. The last
/// flow's longest delay, ns.
fn worst_delay(service: &Service, flows: &[&Envelope], in_order: bool) -> f64 {
    const STEP: f64 = 250.0;
    let arrived = |flow: usize, time: f64| flows[flow].at(time);
    let all = |time: f64| (0..flows.len()).map(|flow| arrived(flow, time)).sum::<f64>();
    let (mut worst, mut age) = (0.0_f64, 0.0);
    for step in 1..6_000 {
        let now = f64::from(step) * STEP;
        // Everything starts at 0 and the queue never runs empty before it is over, so β counts from 0.
        let served = service.at(now).min(all(now));
        while age < now {
            let ours = arrived(flows.len() - 1, age);
            let before = if in_order { all(age) } else { all(now) - arrived(flows.len() - 1, now) + ours };
            if before > served + 1e-9 {
                break;
            }
            age += STEP;
        }
        worst = worst.max(now - age);
    }
    worst
}

#[test]
fn what_others_leave_over_keeps_its_promise() {
    for_seeds(40, |random| {
        let (ours, others) = (random.envelope(), random.envelope());
        let service = random.service(1_050_000);
        let blind = service.left_over(&others).expect("strict and stable");
        let in_order = service.left_over_fifo(&others).expect("stable");
        for (left, fifo) in [(&blind, false), (&in_order, true)] {
            assert_eq!(Service::from_segments(left.segments(), false).as_ref(), Ok(left), "a convex curve");
            let bound = ours.delay_at(left).expect("stable").0 as f64;
            let worst = worst_delay(&service, &[&others, &ours], fifo);
            assert!(worst <= bound + 2.0 * 250.0, "{worst} ns, the bound is {bound}, in order: {fifo}");
        }
        for time in grid() {
            let blindly = (service.at(time) - others.at(time)).max(0.0);
            assert!(close(blind.at(time), blindly), "{} at {time}, not {blindly}", blind.at(time));
        }
        let together = ours.sum(&others).delay_at(&service).expect("stable");
        let apart = ours.delay_at(&blind).expect("stable");
        assert!(together <= apart + Nanos(1), "order can't make it worse: {together:?} {apart:?}");
    });
}

#[test]
fn conditions_are_checked_and_named() {
    let bucket = |rate_iops, burst| ArrivalCurve { rate_iops, burst };
    let server = |rate_iops, latency| ServiceCurve { rate_iops, latency: Nanos(latency) };
    let fast = Envelope::of(&[bucket(900_000.0, 4.0)]).expect("finite");
    let drive = Service::of(&[server(800_000.0, 11_050)]).expect("finite");
    let unstable = NoBound::from(Unstable { arriving_iops: 900_000.0, served_iops: 800_000.0 });
    assert_eq!(fast.delay_at(&drive), Err(unstable));
    assert_eq!(fast.backlog_at(&drive), Err(unstable));
    assert_eq!(drive.left_over(&fast), Err(unstable));
    assert_eq!(drive.left_over_fifo(&fast), Err(unstable));
    assert_eq!(drive.then(&drive).left_over(&fast), Err(NoBound::NotStrict));

    assert_eq!(Envelope::of(&[]), Err(NoBound::NotFinite));
    assert_eq!(Envelope::of(&[bucket(f64::NAN, 1.0)]), Err(NoBound::NotFinite));
    assert_eq!(Envelope::of(&[bucket(1.0, -1.0)]), Err(NoBound::NotFinite));
    assert_eq!(Service::of(&[server(f64::INFINITY, 0)]), Err(NoBound::NotFinite));

    let segment = |start_ns, value, rate_iops| Segment { start_ns, value, rate_iops };
    let speeding_up = [segment(0.0, 0.0, 1e6), segment(1e6, 1e3, 2e6)];
    assert_eq!(Envelope::from_segments(&speeding_up), Err(NoBound::NotConcave { at_ns: 1e6 }));
    let slowing_down = [segment(0.0, 0.0, 2e6), segment(1e6, 2e3, 1e6)];
    assert_eq!(Service::from_segments(&slowing_down, true), Err(NoBound::NotConvex { at_ns: 1e6 }));
    let jump = [segment(0.0, 0.0, 1e6), segment(1e6, 1.5e3, 1e6)];
    assert_eq!(Envelope::from_segments(&jump), Err(NoBound::NotConcave { at_ns: 1e6 }));
    let free_lunch = [segment(0.0, 1.0, 1e6)];
    assert_eq!(Service::from_segments(&free_lunch, true), Err(NoBound::NotConvex { at_ns: 0.0 }));
    assert_eq!(Service::from_segments(&[], true), Err(NoBound::NotFinite));
}

#[test]
fn a_drive_shared_by_two_flows() {
    // 800K/s after 11 µs; a neighbour with 300K/s and 40 at once; we send 100K/s and 2 at once.
    let drive = Service::of(&[ServiceCurve { rate_iops: 800_000.0, latency: Nanos(11_000) }]).expect("finite");
    let neighbour = Envelope::of(&[ArrivalCurve { rate_iops: 300_000.0, burst: 40.0 }]).expect("finite");
    let ours = Envelope::of(&[ArrivalCurve { rate_iops: 100_000.0, burst: 2.0 }]).expect("finite");
    // All in order, as one flow: 42/0.8 + 11.
    assert_eq!(ours.sum(&neighbour).delay_at(&drive), Ok(Nanos(63_500)));
    // Ours in order: what is left is 500K/s after 11 + 40/0.8 = 61 µs, and 2/0.5 more.
    assert_eq!(ours.delay_at(&drive.left_over_fifo(&neighbour).expect("stable")), Ok(Nanos(65_000)));
    // The neighbour first: 500K/s after (40 + 800K·11µs)/500K = 97.6 µs.
    assert_eq!(ours.delay_at(&drive.left_over(&neighbour).expect("stable")), Ok(Nanos(101_600)));
    // Nobody sends, nobody waits.
    let silence = Envelope::of(&[ArrivalCurve { rate_iops: 0.0, burst: 0.0 }]).expect("finite");
    assert_eq!(silence.delay_at(&drive), Ok(Nanos(0)));
    assert_eq!(silence.backlog_at(&drive), Ok(0.0));
    // A trickle without burst still waits for the server's latency.
    let trickle = Envelope::of(&[ArrivalCurve { rate_iops: 1.0, burst: 0.0 }]).expect("finite");
    assert_eq!(trickle.delay_at(&drive), Ok(Nanos(11_000)));
}
