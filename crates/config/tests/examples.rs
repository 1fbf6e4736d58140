//! The example files in the repository are good, and mean what their comments say.

use std::path::{Path, PathBuf};

use config::{Backend, Class, Config, DeviceIdentity, Layout, Policy, Profile, Size, TimeSpan};

fn example(name: &str) -> Config {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let config = Config::load(&path).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.warnings, [], "an example has nothing to warn about");
    config
}

#[test]
fn two_tenants() {
    let config = example("two-tenants.toml");
    let path = PathBuf::from("/srv/evenkeel/drive.img");
    assert_eq!(config.device.backend, Backend::File { path, create: true });
    assert_eq!(config.device.size, Some(Size(64 << 30)));
    assert_eq!(config.tenants[0].class, Class::Guaranteed { latency_target: TimeSpan(50_000) });
    assert_eq!((config.tenants[1].lba_bytes, config.tenants[1].queues), (4096, 8));
    let pollers: Vec<_> = config.poller_plan().into_iter().map(|poller| poller.tenants).collect();
    assert_eq!(pollers, [[0], [1]]);
    assert_eq!(config.socket_path("db"), Path::new("/run/evenkeel/db/cntrl"));
}

#[test]
fn model() {
    let config = example("model.toml");
    assert_eq!(config.device.profile, Profile::Pm1735);
    let Policy::Lpns(lpns) = config.policy else { panic!("not lpns") };
    assert_eq!((lpns.omega, lpns.rate_iops), (100, Profile::Pm1735.rate_iops()));
    let device = DeviceIdentity { path: "model".into(), id: None, size_bytes: 2 << 30 };
    let (layout, _) = Layout::plan(&config, &device, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(layout.free_bytes(), 512 << 20);
}
