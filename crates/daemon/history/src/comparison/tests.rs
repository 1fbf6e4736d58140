use super::*;

/// `reads` of 4 KiB over ten seconds, each of `mean_us`, of which it was with the drive for `served_us`.
fn tenant(name: &str, reads: u32, mean_us: u64, served_us: u64) -> Summary {
    Summary {
        name: name.to_owned(),
        reads,
        read_bytes: u64::from(reads) * 4096,
        latency_sum_ns: u64::from(reads) * mean_us * 1_000,
        served_sum_ns: u64::from(reads) * served_us * 1_000,
        p99_ns: 3 * mean_us * 1_000,
        max_ns: 9 * mean_us * 1_000,
        ..Summary::default()
    }
}

/// One with commands of 128 KiB instead.
fn large(name: &str, reads: u32) -> Summary {
    Summary { read_bytes: u64::from(reads) << 17, ..tenant(name, reads, 1_000, 900) }
}

/// Intervals one after the other from 0 on.
fn intervals(each: impl IntoIterator<Item = Vec<Summary>>) -> Vec<Interval> {
    let interval = |(at, tenants): (u64, _)| Interval {
        at_unix_ms: at * 10_000,
        span_ms: 10_000,
        drive: "fast".into(),
        policy: "passthrough".into(),
        tenants,
        ..Interval::default()
    };
    (0..).zip(each).map(interval).collect()
}

/// Calm for a minute, then `what` for twenty seconds, and calm again.
fn incident(what: &[Summary]) -> Vec<Interval> {
    let calm = || vec![tenant("db", 10_000, 100, 90), large("steady", 5_000), tenant("web", 2_000, 100, 90)];
    intervals((0..9).map(|at| if (6..8).contains(&at) { what.to_vec() } else { calm() }))
}

fn compare(intervals: &[Interval], window: Range<u64>) -> Comparison {
    Comparison::of(intervals, "db", window).expect("something to compare")
}

#[test]
fn a_spell_is_the_slow_part_and_the_rest_is_usual() {
    // The heaviest one does what it always did.
    let past = incident(&[
        tenant("db", 4_000, 400, 380),
        large("steady", 5_000),
        large("batch", 4_000),
        tenant("web", 2_000, 400, 390),
    ]);
    let found = compare(&past, 0..90_000);
    let Spell { from_unix_ms, to_unix_ms, intervals, of, is_slow, usual, .. } = found.spell;
    assert_eq!((from_unix_ms, to_unix_ms, intervals, of, is_slow, usual), (60_000, 80_000, 2, 9, Some(true), 7));
    let names: Vec<&str> = found.neighbours.iter().map(|it| it.name.as_str()).collect();
    assert_eq!((names, found.spell.usual_ms), (vec!["batch", "steady", "web"], 70_000));
    let usual = found.usual.expect("known");
    assert_eq!((found.then.iops, usual.iops), (400.0, 1_000.0));
    assert_eq!((found.then.mean_ns, found.then.waited_ns(), usual.mean_ns), (400_000.0, 20_000.0, 100_000.0));
    // Asked for the incident alone, the time before is what is usual; what came after is not.
    let found = compare(&past, 60_000..80_000);
    assert_eq!((found.spell.intervals, found.spell.of, found.spell.usual), (2, 2, 6));
}

#[test]
fn late_commands_and_those_of_a_poller_that_stood_still_are_parts_of_all() {
    let promise = Promise::Target { ns: 200_000, late_ppm: 1_000 };
    let db = |mean_us: u64, stalled: u32| Summary {
        promise,
        late: 2 * stalled,
        stalled,
        at_percentile_ns: 7 * mean_us * 1_000,
        ..tenant("db", 4_000, mean_us, 90)
    };
    let past = |stalled: u32| {
        intervals((0..9).map(|at| vec![if at == 7 { db(140, stalled) } else { db(100, 0) }, large("steady", 5_000)]))
    };
    let found = compare(&past(40), 0..90_000);
    assert_eq!((found.then.late_part, found.then.stalled), (0.02, 0.01));
    let percentiles = [Some(found.then), found.usual].map(|did| did.map(|did| (did.p99_ns, did.at_percentile_ns)));
    assert_eq!(percentiles, [Some((420_000, 980_000)), Some((300_000, 700_000))]);
}

#[test]
fn the_wait_of_pollers_is_weighed_by_time() {
    let mut past = incident(&[tenant("db", 4_000, 400, 390)]);
    past.iter_mut().filter(|it| (60_000..80_000).contains(&it.at_unix_ms)).for_each(|it| it.starved_ppm = 300_000);
    let found = compare(&past, 0..90_000);
    assert_eq!((found.starved, found.usual_starved), (0.3, Some(0.0)));
}

#[test]
fn a_time_like_any_other_is_not_slow() {
    let past = incident(&[tenant("db", 10_000, 110, 90), large("steady", 5_000)]);
    let found = compare(&past, 60_000..80_000);
    assert_eq!((found.spell.is_slow, found.spell.intervals, found.spell.usual), (Some(false), 2, 6));
    // The first interval of all has nothing beside it.
    assert_eq!(compare(&past[..1], 0..10_000).spell.is_slow, None);
}

#[test]
fn a_target_that_is_missed_is_slow_however_usual_that_is() {
    let mut past = incident(&[tenant("db", 10_000, 110, 90)]);
    for own in past.iter_mut().flat_map(|it| &mut it.tenants).filter(|it| it.name == "db") {
        own.promise = Promise::Target { ns: 200_000, late_ppm: 10_000 };
        own.late = own.reads / 50;
    }
    let found = compare(&past, 60_000..80_000);
    assert_eq!((found.spell.is_slow, found.usual), (Some(true), None));
    assert_eq!(found.promise, Promise::Target { ns: 200_000, late_ppm: 10_000 });
}

#[test]
fn there_may_be_nothing_to_compare() {
    let past = incident(&[large("steady", 5_000)]);
    let of = |name, window| Comparison::of(&past, name, window).expect_err("nothing");
    assert_eq!(of("db", 900_000..910_000), NoComparison::NoSummaries);
    assert_eq!(of("db", 60_000..70_000), NoComparison::Idle);
    assert_eq!(of("nobody", 0..90_000), NoComparison::Idle);
}

#[test]
fn tenants_of_other_drives_are_no_neighbours() {
    let mut past = incident(&[tenant("db", 4_000, 400, 390)]);
    let elsewhere =
        past.clone().into_iter().map(|it| Interval { drive: "slow".into(), tenants: vec![large("far", 9)], ..it });
    past.extend(elsewhere);
    past.sort_by_key(|it| it.at_unix_ms);
    assert!(compare(&past, 0..90_000).neighbours.is_empty());
}

#[test]
fn of_several_slow_spells_it_is_the_one_that_cost_most() {
    let slow = [tenant("db", 4_000, 400, 390), large("steady", 5_000), large("batch", 4_000)];
    let mut past = incident(&slow);
    // A slow moment in which little was asked for, and nobody else did more.
    past[2].tenants = vec![tenant("db", 50, 2_000, 1_900), large("steady", 5_000)];
    let found = compare(&past, 0..90_000);
    let Spell { from_unix_ms, to_unix_ms, usual, others, .. } = found.spell;
    assert_eq!((from_unix_ms, to_unix_ms, usual, others), (60_000, 80_000, 6, 1));
}

#[test]
fn a_neighbour_that_was_idle_did_zero_and_not_minus_zero() {
    let found = compare(&incident(&[tenant("db", 4_000, 400, 380), large("new", 4_000)]), 0..90_000);
    let new = found.neighbours.iter().find(|it| it.name == "new").and_then(|it| it.usual.as_ref());
    let Some(Did { iops, bytes_s, mean_ns, served_ns, .. }) = new else { panic!("{found:?}") };
    for figure in [iops, bytes_s, mean_ns, served_ns] {
        assert!(*figure == 0.0 && figure.is_sign_positive(), "{figure}");
    }
}
