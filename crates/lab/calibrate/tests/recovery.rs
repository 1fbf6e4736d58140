//! A calibration of the drive model recovers the profile that the model was built from.

mod common;

use calibrate::{Effort, Facts, Source, Stage, fit, judge};
use common::{WRITABLE, calibrate, drive, facts, session};
use ssd_model::{Placement, Profile, Writes};

/// Recovered over true, less 1.
const TOLERANCE: f64 = 0.05;

/// What no load shows while nothing collects garbage.
const UNSEEN: [&str; 2] = ["nand.pages_per_block", "nand.erase_ns"];

/// Every parameter that the profile has must come back: words as they are, numbers within the tolerance.
fn assert_recovered(truth: &Profile, found: &Profile) {
    let found_parameters = found.parameters();
    for (name, value) in truth.parameters() {
        if name.starts_with("gc.") || UNSEEN.contains(&name) {
            continue;
        }
        let found = found_parameters.iter().find(|(found, _)| *found == name).map(|(_, found)| found.as_str());
        let found = found.unwrap_or_else(|| panic!("{}: {name} was not recovered", truth.name));
        match (value.parse::<f64>(), found.parse::<f64>()) {
            (Ok(value), Ok(found)) => {
                let off = (found - value).abs();
                assert!(off <= (value * TOLERANCE).max(1.0), "{}: {name} is {value}, found {found}", truth.name);
            }
            _ => assert_eq!(value, found, "{}: {name}", truth.name),
        }
    }
}

/// Throughput and mean latency of every load within the tolerance: opcode × size × depth.
fn assert_behaves(truth: &Profile, found: &Profile) {
    let mut session = session(&drive(truth), facts(WRITABLE));
    for stage in [Stage::ReadCells, Stage::WriteCells] {
        session.run(stage).expect("measured");
    }
    let compared = judge(found, facts(WRITABLE), Effort::QUICK, &session.seen);
    assert!(compared.len() >= 55, "{}: {} loads", truth.name, compared.len());
    for load in compared {
        let off = load.iops_off().abs().max(load.mean_off().abs());
        assert!(off <= TOLERANCE, "{}: {load:?}", truth.name);
    }
}

#[test]
fn every_built_in_profile_is_recovered() {
    for truth in Profile::built_in() {
        let found = calibrate(truth, WRITABLE).profile;
        assert_recovered(truth, &found);
        assert_behaves(truth, &found);
    }
}

#[test]
fn so_are_drives_of_other_kinds() {
    let pooled = |profile: Profile| Profile { placement: Placement::Pooled, ..profile };
    let mut suspending = Profile::by_name("970pro").expect("built in");
    if let Writes::Programmed { nand, .. } = &mut suspending.writes {
        nand.reads_wait_for_programs = false;
    }
    let bursts = arbitration::Arbitration::RoundRobin { burst: 4 };
    let drives = [
        ("pooled in place", pooled(Profile::p5800x())),
        ("pooled and buffered", pooled(Profile::p3520())),
        ("pooled, more units than the controller feeds", pooled(Profile::pm1735())),
        ("reads suspend programs", suspending),
        ("an odd stripe", Profile { stripe_bytes: 12 << 10, units: 9, ..Profile::p5800x() }),
        ("turns of four", Profile { arbitration: bursts, ..Profile::p3520() }),
    ];
    for (kind, truth) in drives {
        let truth = Profile { name: kind.into(), ..truth };
        let found = calibrate(&truth, WRITABLE).profile;
        let mut expected = truth.clone();
        if truth.placement == Placement::Pooled {
            // Any unit serves the next command: no measurement shows which queue it came from.
            expected.arbitration = found.arbitration;
        }
        assert_recovered(&expected, &found);
        assert_behaves(&truth, &found);
    }
}

#[test]
fn without_a_range_to_overwrite_writes_are_assumed() {
    let truth = Profile::pm1735();
    let found = calibrate(&truth, None);
    let reads = Profile { writes: found.profile.writes, link_write_mb_s: found.profile.link_write_mb_s, ..truth };
    assert_recovered(&reads, &found.profile);
    for parameter in &found.parameters {
        let is_assumed = matches!(parameter.source, Source::Assumed(_));
        let of_writes = parameter.name.starts_with("writes.") || parameter.name == "link_write_mb_s";
        assert_eq!(is_assumed, of_writes || parameter.name == "arbitration", "{parameter:?}");
    }
    let Writes::InPlace { write_ns, .. } = found.profile.writes else { panic!("{:?}", found.profile.writes) };
    assert!(write_ns > found.profile.read_ns, "on the safe side");
}

#[test]
fn a_drive_of_4096_byte_blocks_is_recovered_as_far_as_it_shows() {
    let facts = Facts { block_bytes: 4096, ..facts(WRITABLE) };
    for truth in [Profile::p5800x(), Profile::pm1735()] {
        let mut session = session(&drive(&truth), facts);
        session.run_all().expect("measured");
        let found = fit(&session.seen, facts, "found", "").expect("seen").profile;
        assert_recovered(&truth, &found);
    }
}

#[test]
fn a_fitted_profile_says_where_each_parameter_comes_from() {
    let fitted = calibrate(&Profile::p3520(), WRITABLE);
    let text = fitted.profile.to_toml("Measured.");
    let read = Profile::from_toml(&text).expect("a profile");
    assert_eq!(read.parameters(), fitted.profile.parameters());
    for (name, _) in read.parameters() {
        let basis = read.basis(name).unwrap_or_else(|| panic!("{name} has no basis"));
        assert!(basis.starts_with("[M] ") || basis.starts_with("[F] assumed: "), "{name}: {basis}");
    }
    assert_eq!(read.basis("read_ns"), Some("[M] measured, 95 % confidence interval 85000..85000 ns"));
}
