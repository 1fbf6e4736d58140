//! The flash model does what its parameters say.

use ssd_model::{Drive, Gc, Kind, Nand, Profile, Request, Writes};

fn pro() -> Profile {
    Profile::by_name("970pro").expect("a built-in profile")
}

fn nand(profile: &mut Profile) -> &mut Nand {
    match &mut profile.writes {
        Writes::Programmed { nand, .. } => nand,
        _ => panic!("programmed"),
    }
}

/// A closed loop of queue 0's `depth` commands at random addresses; and the same of others. Mean latency in ns and
/// rate in commands per second of each.
fn run(profile: &Profile, loads: &[(Kind, u32, u64)], until_ns: u64) -> Vec<(f64, f64)> {
    let mut drive = Drive::new(profile.clone(), loads.len() as u16);
    let mut random = fastrand::Rng::with_seed(5);
    let mut started: Vec<Vec<u64>> = loads.iter().map(|load| vec![0; load.1 as usize]).collect();
    let mut send = |drive: &mut Drive, now: u64, hwq: usize, tag: u32| {
        let (kind, _, len_bytes) = loads[hwq];
        let offset_bytes = random.u64(..1 << 31) * len_bytes;
        drive.submit(now, hwq as u16, Request { tag, kind, offset_bytes, len_bytes }).expect("the queue exists");
    };
    for (hwq, load) in loads.iter().enumerate() {
        (0..load.1).for_each(|tag| send(&mut drive, 0, hwq, tag));
    }
    let mut sums = vec![(0u64, 0u64); loads.len()];
    let mut now = 0;
    while now < until_ns {
        now = drive.next_finish().expect("commands are in flight");
        let mut finished = Vec::new();
        drive.poll(now, &mut |hwq, tag, at_ns| finished.push((usize::from(hwq), tag, at_ns)));
        for (hwq, tag, at_ns) in finished {
            let start = &mut started[hwq][tag as usize];
            sums[hwq] = (sums[hwq].0 + at_ns - *start, sums[hwq].1 + 1);
            *start = now;
            send(&mut drive, now, hwq, tag);
        }
    }
    sums.iter().map(|&(sum, count)| (sum as f64 / count as f64, count as f64 / now as f64 * 1e9)).collect()
}

#[track_caller]
fn about(seen: f64, expected: f64, within: f64) {
    assert!((seen / expected - 1.0).abs() <= within, "{seen:.0}, expected {expected:.0} ± {:.1} %", within * 100.0);
}

#[test]
fn lone_commands_take_the_sum_of_their_steps() {
    let read = run(&pro(), &[(Kind::Read, 1, 4096)], 50_000_000)[0].0;
    // Firmware, sensing, channel; the link streams while the channel does.
    about(read, 21_500.0 + 35_760.0 + 5_120.0, 0.001);
    let write = run(&pro(), &[(Kind::Write, 1, 4096)], 50_000_000)[0].0;
    about(write, 1_219.0 + 4_460.0, 0.001);
}

#[test]
fn dies_limit_reads_and_programs_limit_writes() {
    let reads = run(&pro(), &[(Kind::Read, 512, 4096)], 200_000_000)[0].1;
    // A die holds a page until it is transferred.
    about(reads, 16.0 / 40_880e-9, 0.03);
    let writes = run(&pro(), &[(Kind::Write, 256, 4096)], 200_000_000)[0].1;
    about(writes, 16.0 * 8.0 / (185_000e-9 + 40_960e-9), 0.03);
    let large = run(&pro(), &[(Kind::Write, 64, 128 << 10)], 200_000_000)[0].1;
    about(large * 131_072.0 / 1e6, 2_320.0, 0.03);
}

#[test]
fn channels_limit_where_dies_do_not() {
    let mut profile = pro();
    profile.units = 64;
    nand(&mut profile).channel_mb_s = 100;
    let reads = run(&profile, &[(Kind::Read, 1_000, 4096)], 200_000_000)[0].1;
    about(reads, 8.0 * 100e6 / 4096.0, 0.03);
}

#[test]
fn reads_wait_for_programs_or_suspend_them() {
    let loads = [(Kind::Read, 1, 4096), (Kind::Write, 64, 32 << 10)];
    let waiting = run(&pro(), &loads, 500_000_000);
    let mut profile = pro();
    nand(&mut profile).reads_wait_for_programs = false;
    let suspending = run(&profile, &loads, 500_000_000);
    assert!(waiting[0].0 > 150_000.0, "programs are in the way: {waiting:?}");
    assert!(suspending[0].0 < 100_000.0, "only transfers are in the way: {suspending:?}");
    assert!(suspending[1].1 > 0.95 * waiting[1].1, "a suspended program goes on: {suspending:?}, {waiting:?}");
}

#[test]
fn reads_can_not_starve_programs() {
    let mut profile = pro();
    nand(&mut profile).reads_wait_for_programs = false;
    let seen = run(&profile, &[(Kind::Read, 512, 4096), (Kind::Write, 64, 32 << 10)], 500_000_000);
    // A program passes after eight reads at most: 8 × 40.9 µs and itself for each page.
    let least = 16.0 / (9.0 * 40_880e-9 + 226_000e-9);
    assert!(seen[1].1 > 0.9 * least, "{seen:?}, at least {least}");
}

#[test]
fn garbage_collection_takes_its_part_of_the_rate() {
    let mut profile = pro();
    let gc = Gc { enabled: true, over_provisioning_percent: 28, utilization_percent: 100 };
    profile.gc = Some(gc);
    let amplification = gc.write_amplification();
    assert!((2.0..3.0).contains(&amplification), "{amplification}");
    let load = [(Kind::Write, 256, 4096)];
    let (with, without) = (run(&profile, &load, 2_000_000_000)[0].1, run(&pro(), &load, 1_000_000_000)[0].1);
    let page_ns = 185_000.0 + 40_960.0;
    let copy_ns = page_ns + 36_012.0 + 40_960.0;
    let expected = page_ns / (page_ns + (amplification - 1.0) * copy_ns + amplification * 3_000_000.0 / 256.0);
    about(with / without, expected, 0.05);
    let mut half_full = profile.clone();
    half_full.gc = Some(Gc { utilization_percent: 50, ..gc });
    assert!(run(&half_full, &load, 1_000_000_000)[0].1 > with);
}

#[test]
fn garbage_collection_slows_the_drain_of_a_plain_buffer() {
    let rate = |enabled| {
        let mut profile = Profile::p3520();
        profile.gc = profile.gc.map(|gc| Gc { enabled, ..gc });
        run(&profile, &[(Kind::Write, 256, 4096)], 1_000_000_000)[0].1
    };
    let amplification = Profile::p3520().gc.unwrap().write_amplification();
    about(rate(true), 1e9 / 3_356.0 / amplification, 0.02);
    assert!(rate(false) > 280_000.0);
}
