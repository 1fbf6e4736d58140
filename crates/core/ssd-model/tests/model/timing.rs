//! The profiles do in virtual time what their sources say that the drives do.

use std::collections::HashMap;

use fastrand::Rng;
use ssd_model::{Drive, Kind, MAX_QUEUES, Nand, Placement, Profile, Request, UnknownQueue, Writes};

const DRIVE_BYTES: u64 = 400 << 30;

/// The host's part of a latency that a paper prints, which the profiles leave out.
const HOST_NS: f64 = 4_460.0;

fn named(name: &str) -> Profile {
    Profile::by_name(name).expect("a built-in profile")
}

#[derive(Clone, Copy)]
struct Load {
    hwqs: u16,
    depth: u32,
    kind: Kind,
    len_bytes: u64,
}

struct Seen {
    iops: f64,
    mean_ns: f64,
    mean_ns_of_hwq: Vec<f64>,
    /// Queue, tag and finish of everything.
    log: Vec<(u16, u32, u64)>,
}

/// A closed loop at random addresses: each queue keeps `depth` commands in flight until `commands` finished.
fn closed_loop(profile: &Profile, load: Load, commands: u32) -> Seen {
    let mut random = Rng::with_seed(7);
    let mut loads = vec![load; usize::from(load.hwqs)];
    run(profile, &mut loads, commands, &mut random)
}

fn run(profile: &Profile, loads: &mut [Load], commands: u32, random: &mut Rng) -> Seen {
    let mut drive = Drive::new(profile.clone(), loads.len() as u16);
    let mut started = HashMap::new();
    let mut tag = 0;
    let mut start = |drive: &mut Drive, started: &mut HashMap<u32, u64>, now: u64, hwq: u16, load: Load| {
        let offset_bytes = random.u64(..DRIVE_BYTES / load.len_bytes) * load.len_bytes;
        tag += 1;
        assert_eq!(started.insert(tag, now), None);
        let request = Request { tag, kind: load.kind, offset_bytes, len_bytes: load.len_bytes };
        drive.submit(now, hwq, request).expect("the queue exists");
    };
    for (hwq, &load) in loads.iter().enumerate() {
        (0..load.depth).for_each(|_| start(&mut drive, &mut started, 0, hwq as u16, load));
    }
    let (mut log, mut total_ns, mut now) = (Vec::new(), 0, 0);
    let mut of_hwq = vec![(0u64, 0u64); loads.len()];
    while let Some(at) = drive.next_event() {
        now = at.max(now);
        let mut finished = Vec::new();
        drive.poll(now, &mut |hwq, tag, at_ns| finished.push((hwq, tag, at_ns)));
        for (hwq, tag, at_ns) in finished {
            assert!(at_ns <= now, "finished in the future");
            let latency_ns = at_ns - started.remove(&tag).expect("finished once");
            total_ns += latency_ns;
            let sum = &mut of_hwq[usize::from(hwq)];
            *sum = (sum.0 + latency_ns, sum.1 + 1);
            log.push((hwq, tag, at_ns));
            if log.len() + started.len() < commands as usize {
                start(&mut drive, &mut started, now, hwq, loads[usize::from(hwq)]);
            }
        }
    }
    assert!(started.is_empty(), "{} commands were lost", started.len());
    assert!(log.is_sorted_by_key(|&(_, _, at_ns)| at_ns), "handed out of order");
    let count = log.len() as f64;
    let mean_ns_of_hwq = of_hwq.iter().map(|&(sum, count)| sum as f64 / count as f64).collect();
    Seen { iops: count / now as f64 * 1e9, mean_ns: total_ns as f64 / count, mean_ns_of_hwq, log }
}

fn lone(profile: &Profile, kind: Kind) -> f64 {
    closed_loop(profile, Load { hwqs: 1, depth: 1, kind, len_bytes: 4096 }, 10_000).mean_ns
}

fn saturated(profile: &Profile, kind: Kind) -> f64 {
    closed_loop(profile, Load { hwqs: 8, depth: 128, kind, len_bytes: 4096 }, 200_000).iops
}

#[track_caller]
fn about(seen: f64, expected: f64, within: f64) {
    assert!((seen / expected - 1.0).abs() <= within, "{seen:.0}, expected {expected:.0} ± {:.1} %", within * 100.0);
}

#[test]
fn a_lone_command_takes_what_the_papers_print() {
    about(lone(&Profile::p5800x(), Kind::Read), 7_440.0, 0.001);
    about(lone(&Profile::p5800x(), Kind::Write) + HOST_NS, 13_200.0, 0.01);
    about(lone(&Profile::pm1735(), Kind::Read) + HOST_NS, 71_900.0, 0.005);
    about(lone(&Profile::pm1735(), Kind::Write) + HOST_NS, 17_600.0, 0.01);
    about(lone(&Profile::p3520(), Kind::Read) + HOST_NS, 99_940.0, 0.005);
    about(lone(&Profile::p3520(), Kind::Write) + HOST_NS, 14_750.0, 0.01);
    about(lone(&named("P3700"), Kind::Read) + HOST_NS, 78_000.0, 0.005);
}

#[test]
fn a_saturated_drive_reaches_its_rate() {
    about(saturated(&Profile::p5800x(), Kind::Read), 816_000.0, 0.025);
    about(saturated(&Profile::p5800x(), Kind::Write), 816_000.0, 0.025);
    about(saturated(&Profile::pm1735(), Kind::Read), 1_000_000.0, 0.02);
    about(saturated(&Profile::pm1735(), Kind::Write), 200_000.0, 0.02);
    about(saturated(&named("P3700"), Kind::Write), 175_000.0, 0.02);
    about(saturated(&named("SM1715"), Kind::Read), 750_000.0, 0.02);
    about(saturated(&named("SM1715"), Kind::Write), 130_000.0, 0.02);
    about(saturated(&named("PM1725A"), Kind::Read), 1_000_000.0, 0.02);
    about(saturated(&named("PM1725A"), Kind::Write), 180_000.0, 0.02);
}

#[test]
fn large_commands_fill_the_link_and_no_more() {
    for profile in Profile::built_in() {
        let large = |kind| closed_loop(profile, Load { hwqs: 4, depth: 32, kind, len_bytes: 128 << 10 }, 20_000).iops;
        let mb_s = large(Kind::Read) * f64::from(128 << 10) / 1e6;
        let link = f64::from(profile.link_read_mb_s);
        assert!(mb_s <= link * 1.01 && mb_s >= link * 0.9, "{}: {mb_s:.0} of {link} MB/s", profile.name);
        let mb_s = large(Kind::Write) * f64::from(128 << 10) / 1e6;
        let link = f64::from(profile.link_write_mb_s);
        let programmed = |nand: Nand| {
            let page_ns = nand.page_bytes as f64 * 1e3 / f64::from(nand.channel_mb_s) + nand.program_ns as f64;
            f64::from(profile.units) * nand.page_bytes as f64 * 1e3 / page_ns
        };
        let link = match profile.writes {
            Writes::Programmed { nand, .. } => link.min(programmed(nand)),
            _ => link,
        };
        assert!(mb_s <= link * 1.02 && mb_s >= link * 0.8, "{}: {mb_s:.0} of {link} MB/s writes", profile.name);
    }
}

#[test]
fn a_lone_huge_read_is_no_faster_than_the_link() {
    let seen =
        closed_loop(&Profile::pm1735(), Load { hwqs: 1, depth: 1, kind: Kind::Read, len_bytes: 4 << 20 }, 100).mean_ns;
    assert!(seen >= (4 << 20) as f64 * 1e3 / 8_000.0, "{seen} ns for 4 MiB over 8 GB/s");
}

#[test]
fn pooled_units_lose_less_to_a_cap_than_hashed_ones() {
    let capped = |placement| {
        let profile = Profile { placement, ..Profile::p5800x() };
        closed_loop(&profile, Load { hwqs: 1, depth: 32, kind: Kind::Read, len_bytes: 4096 }, 200_000).iops
    };
    let (hashed, pooled) = (capped(Placement::Hashed), capped(Placement::Pooled));
    about(pooled, 833_000.0, 0.03);
    assert!(hashed < 0.97 * pooled && hashed > 0.8 * pooled, "hashed {hashed:.0}, pooled {pooled:.0}");
}

#[test]
fn a_light_queue_suffers_beside_a_heavy_one() {
    let light = Load { hwqs: 1, depth: 1, kind: Kind::Read, len_bytes: 4096 };
    let mut loads = [light, Load { depth: 256, ..light }];
    let seen = run(&Profile::p5800x(), &mut loads, 200_000, &mut Rng::with_seed(3));
    assert!(seen.mean_ns_of_hwq[0] > 20.0 * 7_440.0, "a full drive makes everyone wait: {:?}", seen.mean_ns_of_hwq);
    let narrow = Profile { window: 16, ..Profile::p5800x() };
    let narrow = run(&narrow, &mut loads, 200_000, &mut Rng::with_seed(3)).mean_ns_of_hwq;
    assert!(narrow[0] < 60_000.0, "with a small window the wait is in the other one's queue: {narrow:?}");
    assert!(narrow[1] > 4.0 * narrow[0]);
}

#[test]
fn the_window_bounds_what_is_inside() {
    let profile = Profile { window: 2, units: 64, ..Profile::p5800x() };
    let seen = closed_loop(&profile, Load { hwqs: 1, depth: 32, kind: Kind::Read, len_bytes: 4096 }, 10_000);
    about(seen.iops, 2.0 / 7_440e-9, 0.03);
}

#[test]
fn one_unit_finishes_in_the_order_of_arrival() {
    for kind in [Kind::Read, Kind::Write] {
        let profile = Profile { units: 1, ..Profile::p5800x() };
        let seen = closed_loop(&profile, Load { hwqs: 1, depth: 64, kind, len_bytes: 4096 }, 10_000);
        assert!(seen.log.is_sorted_by_key(|&(_, tag, _)| tag));
    }
}

#[test]
fn the_same_input_gives_the_same_output() {
    for profile in Profile::built_in() {
        let mut logs = (0..2).map(|_| {
            let kinds = [Kind::Read, Kind::Write, Kind::Control, Kind::Read];
            let mut loads: Vec<Load> = kinds
                .iter()
                .zip([1, 9, 2, 33])
                .map(|(&kind, depth)| Load { hwqs: 4, depth, kind, len_bytes: 12 << 10 })
                .collect();
            run(profile, &mut loads, 20_000, &mut Rng::with_seed(5)).log
        });
        assert_eq!(logs.next(), logs.next(), "{}", profile.name);
    }
}

#[test]
fn polling_rarely_changes_no_finish() {
    let submit_all = |profile: &Profile, poll_every: u64| {
        let mut drive = Drive::new(profile.clone(), 2);
        let (mut random, mut log) = (Rng::with_seed(11), Vec::new());
        for tag in 0..5_000u32 {
            let now = u64::from(tag) * 1_500;
            let kind = if random.u8(..3) == 0 { Kind::Write } else { Kind::Read };
            let request = Request { tag, kind, offset_bytes: random.u64(..DRIVE_BYTES), len_bytes: 4096 };
            drive.submit(now, (tag % 2) as u16, request).unwrap();
            if u64::from(tag) % poll_every == 0 {
                drive.poll(now, &mut |hwq, tag, at_ns| log.push((hwq, tag, at_ns)));
            }
        }
        drive.poll(u64::MAX, &mut |hwq, tag, at_ns| log.push((hwq, tag, at_ns)));
        assert_eq!(drive.next_event(), None);
        log
    };
    for profile in Profile::built_in() {
        let log = submit_all(profile, 1);
        assert_eq!(log.len(), 5_000, "{}", profile.name);
        assert_eq!(log, submit_all(profile, 97), "{}", profile.name);
        assert_eq!(log, submit_all(profile, 10_000), "{}", profile.name);
    }
}

#[test]
fn nothing_finishes_before_the_next_finish() {
    for profile in Profile::built_in() {
        let mut drive = Drive::new(profile.clone(), 2);
        let (mut random, mut now, mut finished) = (Rng::with_seed(13), 0, 0);
        for tag in 0..3_000u32 {
            let kind = [Kind::Read, Kind::Write, Kind::Control][random.usize(..3)];
            let len_bytes = 512 << random.u32(..10);
            let request = Request { tag, kind, offset_bytes: random.u64(..DRIVE_BYTES), len_bytes };
            drive.submit(now, (tag % 2) as u16, request).unwrap();
            let until = now + random.u64(..20_000);
            while let Some(at) = drive.next_finish().filter(|&at| at <= until) {
                if at > now {
                    drive.poll(at - 1, &mut |_, tag, at_ns| panic!("{}: {tag} at {at_ns} before {at}", profile.name));
                }
                drive.poll(at, &mut |_, _, _| finished += 1);
                now = at;
            }
            now = until;
        }
        drive.poll(u64::MAX, &mut |_, _, _| finished += 1);
        assert_eq!((finished, drive.next_finish(), drive.next_event()), (3_000, None, None), "{}", profile.name);
    }
}

#[test]
fn a_full_write_buffer_holds_writes_back_and_an_empty_one_does_not() {
    let Writes::Buffered { ack_ns, buffer_bytes, .. } = Profile::pm1735().writes else { panic!("buffered") };
    let mut drive = Drive::new(Profile::pm1735(), 1);
    let fits = buffer_bytes / 4096;
    for tag in 0..fits as u32 * 2 {
        let request = Request { tag, kind: Kind::Write, offset_bytes: 0, len_bytes: 4096 };
        drive.submit(0, 0, request).unwrap();
    }
    let mut at = Vec::new();
    drive.poll(u64::MAX, &mut |_, _, at_ns| at.push(at_ns));
    let gap_ns = |from: usize, to: usize| (at[to] - at[from]) as f64 / (to - from) as f64;
    about(at[0] as f64, 1_000.0 + 1_078.0 + ack_ns as f64, 0.001);
    about(gap_ns(10, 400), 1_078.0, 0.01);
    about(gap_ns(fits as usize + 200, fits as usize * 2 - 1), 5_000.0, 0.01);
}

#[test]
fn queues_that_do_not_exist_are_refused() {
    let request = Request { tag: 1, kind: Kind::Read, offset_bytes: 0, len_bytes: 4096 };
    assert_eq!(Drive::new(Profile::p5800x(), 4).submit(0, 4, request), Err(UnknownQueue));
    assert_eq!(Drive::new(Profile::p5800x(), u16::MAX).hwqs(), MAX_QUEUES);
    let mut extreme = Drive::new(Profile::p5800x(), 1);
    extreme.submit(5, 0, Request { offset_bytes: u64::MAX - 4096, len_bytes: u64::MAX, ..request }).unwrap();
    let mut finished = 0;
    extreme.poll(u64::MAX, &mut |_, _, _| finished += 1);
    assert_eq!(finished, 1);
}
