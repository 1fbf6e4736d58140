//! A controller whose process dies between any two stores that outlive it, and successors that go on: what the guest
//! sees is held against a model of the disk. Each command completes once, with what it should; a read has what was
//! written; no interrupt is lost, since the guest looks at a queue only when it was told to.
//!
//! `EVENKEEL_SEED=N` replays one seed; `EVENKEEL_CRASHES=N` asks for N deaths in all.

#[path = "../controller/expect.rs"]
mod expect;
#[allow(dead_code)]
#[path = "../controller/host.rs"]
mod host;
mod run;

use nvme_controller::{Swap, swap};

use run::{Deaths, Run};

/// Deaths of the random runs, unless `EVENKEEL_CRASHES` says another number.
const DEATHS: u64 = 20_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Lives of one guest. Returns how often its controller's process died.
fn live(seed: u64, deaths: Deaths, steps: u32) -> u64 {
    let mut run = Run::new(seed, deaths);
    (0..steps).for_each(|_| run.step());
    run.end()
}

#[test]
fn nothing_is_lost_wherever_a_process_dies() {
    let wanted = number("EVENKEEL_CRASHES").unwrap_or(DEATHS);
    let (mut deaths, mut seed) = (0, number("EVENKEEL_SEED").unwrap_or(1));
    while deaths < wanted {
        println!("EVENKEEL_SEED={seed}");
        deaths += live(seed, Deaths::Random, 400);
        if std::env::var_os("EVENKEEL_SEED").is_some() {
            break;
        }
        seed += 1;
    }
    println!("{deaths} deaths");
}

/// Each store of short programs in turn.
#[test]
fn nothing_is_lost_at_any_store_of_a_short_program() {
    for seed in 1..=8 {
        let mut points = 0;
        loop {
            points += 1;
            if live(seed, Deaths::Once(points), 50) == 0 {
                break;
            }
        }
        assert!(points > 50, "a program of {points} points");
        println!("seed {seed}: {points} points");
    }
}

/// Whether the fault is noticed within 200 lives.
fn notices(fault: Swap) -> bool {
    (1..=200).any(|seed| {
        let lived = std::panic::catch_unwind(|| {
            swap(Some(fault));
            live(seed, Deaths::Random, 400)
        });
        swap(None);
        nvme_controller::crash_at(None);
        lived.is_err()
    })
}

#[test]
fn stores_in_the_wrong_order_are_noticed() {
    for fault in [Swap::WordBeforeEntry, Swap::DoneBeforePosted, Swap::PostedBeforeRecorded] {
        assert!(notices(fault), "{fault:?} passes");
    }
}

#[test]
fn nobody_dies() {
    for seed in 1..=20 {
        assert_eq!(live(seed, Deaths::Once(u64::MAX), 400), 0);
    }
}
