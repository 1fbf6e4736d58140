//! A volume's life, call by call, and what is left when a part of it is killed.

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::path::Path;

use csi::spec::controller_server::Controller;
use csi::spec::identity_server::Identity;
use csi::spec::node_server::Node;
use csi::spec::volume_capability::access_mode::Mode;
use csi::spec::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::spec::volume_content_source::{Type, VolumeSource};
use csi::spec::*;
use csi::{FileSystem, Plugin};
use tonic::{Code, Request, Status};

use crate::daemon::Daemon;
use crate::fake::Fake;

const MIB: i64 = 1 << 20;

pub fn block_on<T>(call: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(call)
}

pub fn class(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn capability(mode: Mode, file_system: Option<&str>) -> VolumeCapability {
    let mount = |fs_type: &str| MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() };
    let access = file_system.map_or(AccessType::Block(BlockVolume {}), |it| AccessType::Mount(mount(it)));
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}

pub fn new_volume(name: &str, parameters: &HashMap<String, String>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 16 * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter, Some("ext4"))],
        parameters: parameters.clone(),
        ..CreateVolumeRequest::default()
    }
}

pub fn create(plugin: &Plugin, request: CreateVolumeRequest) -> Result<Volume, Status> {
    block_on(plugin.create_volume(Request::new(request))).map(|made| made.into_inner().volume.unwrap())
}

fn delete(plugin: &Plugin, id: &str) -> Result<(), Code> {
    let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
    block_on(plugin.delete_volume(Request::new(request))).map(|_| ()).map_err(|status| status.code())
}

/// A volume on a node, at the paths that kubelet would use.
struct OnNode<'p> {
    plugin: &'p Plugin,
    id: &'p str,
    home: &'p Path,
    capability: VolumeCapability,
}

impl OnNode<'_> {
    fn path(&self, name: &str) -> String {
        self.home.join(name).display().to_string()
    }

    fn stage(&self) -> Result<(), Code> {
        self.stage_with(&[])
    }

    fn stage_with(&self, secrets: &[(&str, &str)]) -> Result<(), Code> {
        let request = NodeStageVolumeRequest {
            volume_id: self.id.to_owned(),
            staging_target_path: self.path("staged"),
            volume_capability: Some(self.capability.clone()),
            secrets: class(secrets),
            ..NodeStageVolumeRequest::default()
        };
        block_on(self.plugin.node_stage_volume(Request::new(request))).map(|_| ()).map_err(|status| status.code())
    }

    fn unstage(&self) -> Result<(), Code> {
        let (volume_id, staging_target_path) = (self.id.to_owned(), self.path("staged"));
        let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
        block_on(self.plugin.node_unstage_volume(Request::new(request))).map(|_| ()).map_err(|status| status.code())
    }

    fn publish(&self, pod: &str, readonly: bool) -> Result<(), Code> {
        let request = NodePublishVolumeRequest {
            volume_id: self.id.to_owned(),
            staging_target_path: self.path("staged"),
            target_path: self.path(pod),
            volume_capability: Some(self.capability.clone()),
            readonly,
            volume_context: class(&[("csi.storage.k8s.io/pod.name", pod)]),
            ..NodePublishVolumeRequest::default()
        };
        block_on(self.plugin.node_publish_volume(Request::new(request))).map(|_| ()).map_err(|status| status.code())
    }

    fn unpublish(&self, pod: &str) -> Result<(), Code> {
        let request = NodeUnpublishVolumeRequest { volume_id: self.id.to_owned(), target_path: self.path(pod) };
        block_on(self.plugin.node_unpublish_volume(Request::new(request))).map(|_| ()).map_err(|status| status.code())
    }

    fn stats(&self, pod: &str) -> NodeGetVolumeStatsResponse {
        let (volume_id, volume_path) = (self.id.to_owned(), self.path(pod));
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        block_on(self.plugin.node_get_volume_stats(Request::new(request))).unwrap().into_inner()
    }
}

/// Only here: a volume is formatted twice, stays small after it grew, or leaves a mount, a path or a label behind.
#[test]
fn a_volume_with_a_file_system_serves_pods() {
    let Some(daemon) = Daemon::start() else { return };
    let host = Fake::default();
    let plugin = daemon.plugin(&host);
    let made = create(&plugin, new_volume("pvc-a", &class(&[("csi.storage.k8s.io/pvc/name", "data")]))).unwrap();
    assert_eq!((made.volume_id.as_str(), made.capacity_bytes), ("pvc-a", 16 * MIB));
    let capability = capability(Mode::SingleNodeMultiWriter, Some("xfs"));
    let volume = OnNode { plugin: &plugin, id: "pvc-a", home: daemon.home.path(), capability };
    assert_eq!(volume.publish("pod-1", false), Err(Code::FailedPrecondition), "it is not staged");
    for _ in 0..2 {
        volume.stage().unwrap();
        volume.publish("pod-1", false).unwrap();
        volume.publish("pod-2", true).unwrap();
    }
    assert_eq!(host.mount_count(), 3);
    assert_eq!(host.is_read_only(&daemon.home.path().join("pod-2")), Some(true));
    assert_eq!(volume.publish("pod-2", false), Err(Code::AlreadyExists));
    assert!(!volume.stats("pod-1").volume_condition.unwrap().abnormal);
    let labels = daemon.rest().disk("pvc-a").unwrap().labels;
    assert_eq!((labels["pod"].as_str(), labels["pvc"].as_str()), ("pod-2", "data"));

    let capacity_range = Some(CapacityRange { required_bytes: 32 * MIB, limit_bytes: 0 });
    let larger = ControllerExpandVolumeRequest {
        volume_id: "pvc-a".to_owned(),
        capacity_range,
        ..ControllerExpandVolumeRequest::default()
    };
    block_on(plugin.controller_expand_volume(Request::new(larger))).unwrap();
    for pod in ["pod-1", "pod-2"] {
        volume.unpublish(pod).unwrap();
        volume.unpublish(pod).unwrap();
        assert!(!daemon.home.path().join(pod).exists());
    }
    volume.unstage().unwrap();
    volume.unstage().unwrap();
    assert_eq!(host.mount_count(), 0);
    assert!(!daemon.rest().disk("pvc-a").unwrap().labels.contains_key("pod"));
    volume.stage().unwrap();
    let device = host.device_of("pvc-a");
    assert_eq!((device.formats, device.file_system), (1, Some(FileSystem::Xfs)));
    assert_eq!(device.filled, 32 << 20, "a stage lets it fill the disk");
    volume.unstage().unwrap();
    delete(&plugin, "pvc-a").unwrap();
    delete(&plugin, "pvc-a").unwrap();
}

/// Only here: a raw volume is formatted, or two pods have a volume that one of them has alone.
#[test]
fn a_raw_volume_is_one_pods() {
    let Some(daemon) = Daemon::start() else { return };
    let host = Fake::default();
    let plugin = daemon.plugin(&host);
    create(&plugin, new_volume("pvc-raw", &class(&[]))).unwrap();
    let capability = capability(Mode::SingleNodeSingleWriter, None);
    let volume = OnNode { plugin: &plugin, id: "pvc-raw", home: daemon.home.path(), capability };
    volume.stage().unwrap();
    volume.publish("pod-1", false).unwrap();
    volume.publish("pod-1", false).unwrap();
    assert_eq!(volume.publish("pod-2", false), Err(Code::FailedPrecondition));
    assert_eq!(volume.stats("pod-1").usage[0].total, 16 * MIB);
    assert_eq!(host.device_of("pvc-raw").formats, 0);
    volume.unpublish("pod-1").unwrap();
    volume.publish("pod-2", false).unwrap();
}

/// Only here: pods can't end without the daemon, or a new plugin does not find what the former one mounted.
#[test]
fn a_killed_daemon_and_a_new_plugin_go_on() {
    let Some(mut daemon) = Daemon::start() else { return };
    let host = Fake::default();
    let plugin = daemon.plugin(&host);
    let ready = || block_on(plugin.probe(Request::new(ProbeRequest {}))).unwrap().into_inner().ready;
    create(&plugin, new_volume("pvc-a", &class(&[]))).unwrap();
    assert_eq!(ready(), Some(true));
    let capability = capability(Mode::SingleNodeWriter, Some("ext4"));
    let home = daemon.home.path().to_owned();
    let volume = OnNode { plugin: &plugin, id: "pvc-a", home: &home, capability: capability.clone() };
    volume.stage().unwrap();
    volume.publish("pod-1", false).unwrap();
    daemon.kill();
    assert_eq!(ready(), Some(false));
    assert_eq!(create(&plugin, new_volume("pvc-b", &class(&[]))).unwrap_err().code(), Code::Unavailable);
    assert_eq!(delete(&plugin, "pvc-a"), Err(Code::Unavailable));
    assert_eq!(volume.publish("pod-2", false), Err(Code::Unavailable));
    assert!(volume.stats("pod-1").volume_condition.unwrap().abnormal);
    volume.unpublish("pod-1").unwrap();
    daemon.start_again();
    let next = daemon.plugin(&host);
    let volume = OnNode { plugin: &next, id: "pvc-a", home: &home, capability };
    create(&next, new_volume("pvc-a", &class(&[]))).unwrap();
    volume.stage().unwrap();
    volume.publish("pod-2", false).unwrap();
    assert_eq!((host.mount_count(), host.device_of("pvc-a").formats), (2, 1));
}

/// Only here: a tenant's volume is served without its key, or the key is in a message that is logged.
#[test]
fn a_secret_opens_an_encrypted_volume() {
    let Some(mut daemon) = Daemon::start() else { return };
    let plugin = daemon.plugin(&Fake::default());
    create(&plugin, new_volume("pvc-a", &class(&[("encryption", "tenant")]))).unwrap();
    let capability = capability(Mode::SingleNodeWriter, Some("ext4"));
    let home = daemon.home.path().to_owned();
    let volume = OnNode { plugin: &plugin, id: "pvc-a", home: &home, capability };
    let key = "0123456789abcdef".repeat(4) + &"fedcba9876543210".repeat(4);
    let other = key.replace('f', "e");
    assert_eq!(volume.stage(), Err(Code::FailedPrecondition), "no key");
    assert_eq!(volume.stage_with(&[("key", "short")]), Err(Code::FailedPrecondition));
    volume.stage_with(&[("key", &key)]).unwrap();
    volume.unstage().unwrap();
    daemon.kill();
    daemon.start_again();
    let request = NodeStageVolumeRequest {
        volume_id: "pvc-a".to_owned(),
        staging_target_path: home.join("staged").display().to_string(),
        volume_capability: Some(volume.capability.clone()),
        secrets: class(&[("key", &other)]),
        ..NodeStageVolumeRequest::default()
    };
    let refused = block_on(plugin.node_stage_volume(Request::new(request))).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(!refused.message().contains(&other), "{}", refused.message());
    volume.stage_with(&[("key", &key)]).unwrap();
}

/// Only here: a disk that Kubernetes did not make is deleted, a snapshot goes with its volume, or stays after a clone.
#[test]
fn nothing_goes_that_is_still_needed() {
    let Some(daemon) = Daemon::start() else { return };
    let plugin = daemon.plugin(&Fake::default());
    let (name, size) = ("mine".to_owned(), "16MiB".to_owned());
    daemon.rest().create(&api::DiskSpec { name, size, ..Default::default() }).unwrap();
    assert_eq!(delete(&plugin, "mine"), Ok(()));
    assert!(daemon.rest().disk("mine").is_ok());
    assert_eq!(create(&plugin, new_volume("mine", &class(&[]))).unwrap_err().code(), Code::AlreadyExists);

    let thin = class(&[("thin", "true")]);
    create(&plugin, new_volume("pvc-a", &thin)).unwrap();
    let name = "x".repeat(128);
    let snapshot = CreateSnapshotRequest { source_volume_id: "pvc-a".to_owned(), name, ..Default::default() };
    let snapshot = block_on(plugin.create_snapshot(Request::new(snapshot))).unwrap().into_inner().snapshot.unwrap();
    assert_eq!(delete(&plugin, "pvc-a"), Err(Code::FailedPrecondition));
    let source = VolumeSource { volume_id: "pvc-a".to_owned() };
    let clone = CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(Type::Volume(source)) }),
        ..new_volume("pvc-b", &thin)
    };
    for _ in 0..2 {
        create(&plugin, clone.clone()).unwrap();
    }
    assert_eq!(create(&plugin, new_volume("pvc-b", &thin)).unwrap_err().code(), Code::AlreadyExists);
    let request = DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() };
    block_on(plugin.delete_snapshot(Request::new(request))).unwrap();
    assert!(daemon.rest().disk("pvc-a").unwrap().snapshots.is_empty());
    assert_eq!(delete(&plugin, "pvc-a"), Ok(()));
    assert!(daemon.rest().disk("pvc-b").is_ok());
}

/// Only here: a call's path of another place is taken, or a caller's mistake counts as the plugin's.
#[test]
fn calls_that_are_wrong_are_the_callers_fault() {
    let Some(daemon) = Daemon::start() else { return };
    let plugin = daemon.plugin(&Fake::default());
    let code = |request| create(&plugin, request).unwrap_err().code();
    assert_eq!(code(new_volume("pvc-a", &class(&[("latencytarget", "1ms")]))), Code::InvalidArgument);
    assert_eq!(code(new_volume("pvc-a", &class(&[("latencyTarget", "soon")]))), Code::InvalidArgument);
    assert_eq!(code(new_volume("pvc-a", &class(&[("drive", "gone")]))), Code::ResourceExhausted);
    let shared = vec![capability(Mode::MultiNodeMultiWriter, None)];
    assert_eq!(
        code(CreateVolumeRequest { volume_capabilities: shared, ..new_volume("pvc-a", &class(&[])) }),
        Code::InvalidArgument
    );
    assert!(daemon.rest().disks().unwrap().is_empty());
    fs::write(daemon.home.path().join("file"), "kept").unwrap();
    let capability = capability(Mode::SingleNodeWriter, Some("btrfs"));
    let volume = OnNode { plugin: &plugin, id: "../api", home: Path::new("relative"), capability };
    assert_eq!(volume.stage(), Err(Code::InvalidArgument));
    assert_eq!(volume.unpublish("pod"), Err(Code::InvalidArgument));
}
