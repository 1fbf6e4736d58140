//! The example scenarios in the repository are good, and mean what their comments say.

use std::path::{Path, PathBuf};

use config::Profile;
use io_model::Nanos;
use policy::Class;
use rivals::LabSettings;
use scenario::Scenario;
use sim::FaultKind;
use sim::workload::{Arrivals, Pattern, Workload};

fn scenario(name: &str) -> Scenario {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples/scenarios").join(name);
    let scenario = Scenario::load(&path).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(scenario.warnings, [], "an example has nothing to warn about");
    scenario
}

#[test]
fn six_noisy_neighbours() {
    let scenario = scenario("six-noisy-neighbours.toml");
    let names: Vec<&str> = scenario.policies.iter().map(LabSettings::name).collect();
    assert_eq!(names, ["passthrough", "evenkeel", "lpns", "fair", "k2", "mqfq", "d2fq", "caps"]);
    let tenants: Vec<&str> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(tenants, ["db", "noisy-1", "noisy-2", "noisy-3", "noisy-4", "noisy-5", "noisy-6"]);
    assert_eq!(scenario.tenants[0].terms.class, Class::guaranteed(Some(Nanos(50_000))));
    let Workload::Fio(noise) = &scenario.tenants[6].workload else { panic!("not fio") };
    assert_eq!(
        (noise.jobs, noise.iodepth, noise.access.read_percent, noise.access.pattern),
        (4, 32, 0, Pattern::Random)
    );
    assert_eq!(scenario.tenants[6].terms.limits.rw_mbytes_per_sec, 300);
}

#[test]
fn mixed_tenants_and_faults() {
    let mixed = scenario("mixed-tenants.toml");
    let Workload::Fio(batch) = &mixed.tenants[2].workload else { panic!("not fio") };
    let sizes: Vec<(u32, u32)> = batch.access.block_sizes.iter().map(|size| (size.bytes, size.weight)).collect();
    assert_eq!((sizes, batch.access.read_percent), (vec![(4096, 60), (65_536, 40)], 30));
    let Workload::Open(bursts) = &mixed.tenants[3].workload else { panic!("not open") };
    let Arrivals::Bursts { on, off, .. } = bursts.arrivals else { panic!("not in bursts") };
    assert_eq!((on, off), (Nanos(50_000_000), Nanos(150_000_000)));

    let scenario = scenario("faults.toml");
    let (faults, span) = (scenario.faults, scenario.run.warmup + scenario.run.duration);
    assert!(matches!(faults[0].kind, FaultKind::Errors { ppm: 100, lasts } if lasts >= span), "to the end");
    assert_eq!(faults[4].kind, FaultKind::Leave { tenant: 3 }, "by the name of a copy");
}

#[test]
fn trace_beside_noise() {
    let scenario = scenario("trace-beside-noise.toml");
    assert!(scenario.tenants[0].terms.class.is_guaranteed() && scenario.tenants.len() == 4);
    let Some(trace) = &scenario.tenants[0].trace else { panic!("no trace") };
    assert!(trace.path.is_file(), "{}", trace.path.display());
}

#[test]
fn paths_begin_at_the_scenarios_directory() {
    let text = "[drive]\nprofile = \"drives/mine.toml\"\n[[tenant]]\nname = \"a\"\n\
                [tenant.workload]\nkind = \"trace\"\npath = \"web.csv\"\n";
    let scenario = Scenario::parse(Path::new("/srv/what-if/a.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(scenario.drive.profile, Profile::File("/srv/what-if/drives/mine.toml".into()));
    let Some(trace) = &scenario.tenants[0].trace else { panic!("no trace") };
    assert_eq!((trace.path.as_path(), trace.looping), (Path::new("/srv/what-if/web.csv"), None));
}
