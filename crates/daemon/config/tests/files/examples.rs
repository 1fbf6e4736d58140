//! The example files in the repository are good, and mean what their comments say.

use std::path::{Path, PathBuf};

use config::{Backend, BuiltIn, Config, Drives, Profile, Serves};
use io_model::Nanos;
use io_model::units::Size;
use layout::DeviceIdentity;
use policy::{Class, Settings};

fn example(name: &str) -> Config {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples").join(name);
    let config = Drives::load(&path).and_then(|drives| drives.one(None)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.warnings, [], "an example has nothing to warn about");
    config
}

#[test]
fn two_tenants() {
    let config = example("two-tenants.toml");
    let path = PathBuf::from("/srv/evenkeel/drive.img");
    assert_eq!(config.device.backend, Backend::File { path, create: true });
    assert_eq!(config.device.size, Some(Size(64 << 30)));
    assert_eq!(config.tenants[0].terms.class, Class::guaranteed(Some(Nanos(50_000))));
    assert_eq!((config.tenants[1].lba_bytes, config.tenants[1].queues), (4096, 8));
    let pollers: Vec<_> = config.poller_plan().into_iter().map(|poller| poller.serves).collect();
    assert_eq!(pollers, [[Serves { tenant: 0, queues: 0..64 }], [Serves { tenant: 1, queues: 0..8 }]]);
    assert_eq!(config.reached_at(&config.tenants[0]), Path::new("/run/evenkeel/db/cntrl"));
}

#[test]
fn two_drives() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples/two-drives.toml");
    let drives = Drives::load(&path).unwrap_or_else(|e| panic!("{e}"));
    let each = drives.each.iter().map(|it| (it.device.name.as_str(), it.policy.name(), it.tenants[0].name.as_str()));
    assert_eq!(each.collect::<Vec<_>>(), [("fast", "evenkeel", "db"), ("big", "fair", "archive")]);
    assert_eq!(drives.unplaced.names, ["scratch"]);
    assert!(drives.each.iter().all(|config| config.warnings.is_empty()), "an example has nothing to warn about");
}

#[test]
fn both_front_ends() {
    let config = example("both-front-ends.toml");
    let sockets: Vec<_> = config.tenants.iter().map(|tenant| config.reached_at(tenant)).collect();
    let expected = ["/run/evenkeel/db/cntrl", "/run/evenkeel/web/vhost.sock", "/run/evenkeel/batch/vhost.sock"];
    assert_eq!(sockets, expected.map(PathBuf::from));
    let pollers: Vec<_> = config.poller_plan().into_iter().map(|poller| poller.serves).collect();
    let serves = |tenant, queues| [Serves { tenant, queues }];
    let of_web = (0..4).map(|queue| serves(1, queue..queue + 1));
    let expected: Vec<_> = [serves(0, 0..64), serves(2, 0..4)].into_iter().chain(of_web).collect();
    assert_eq!(pollers, expected);
}

#[test]
fn model() {
    let config = example("model.toml");
    assert_eq!(config.device.profile, Profile::BuiltIn(BuiltIn::Pm1735));
    assert_eq!(config.policy, Settings::Evenkeel(()));
    let device = DeviceIdentity { path: "model".into(), size_bytes: 2 << 30, ..Default::default() };
    let (layout, _) = config.plan_layout(&device, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(layout.free_bytes(), 512 << 20);
}

#[test]
fn classes() {
    let config = example("classes.toml");
    let Settings::Drr(drr) = &config.policy else { panic!("not drr") };
    assert_eq!((drr.high_weight, drr.medium_weight, drr.low_weight, drr.max_in_flight), (128, 64, 32, None));
    let priorities: Vec<&str> = config.tenants.iter().map(|tenant| tenant.terms.priority.name()).collect();
    assert_eq!(priorities, ["high", "medium", "low"]);
    let demands: Vec<String> =
        config.tenants.iter().map(|tenant| tenant.demand.as_ref().expect("declared").to_string()).collect();
    let expected =
        ["reads, 4KiB, 4 in flight", "70 % reads, 4KiB/80 16KiB/20, 20k a second", "reads, 64KiB, 32 in flight"];
    assert_eq!(demands, expected);
    assert!(config.device.profile_named);
    assert_eq!(config.poller_plan().len(), 1, "the policy sees all of them");
}

/// A fresh installation serves nobody's drive.
#[test]
fn as_installed_by_the_package() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/config.toml");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let config = Config::parse(&path, &text).unwrap_or_else(|e| panic!("{e}"));
    let image = PathBuf::from("/var/lib/evenkeel/drive.img");
    assert_eq!(config.device.backend, Backend::File { path: image, create: true });
    assert_eq!((config.tenants.len(), config.namespaces.len(), config.warnings.len()), (0, 0, 0));
    assert_eq!(config.daemon.user.expect("not root").name, "evenkeel");
}
