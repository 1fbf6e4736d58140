//! What Kubernetes' scheduler is told, against what the daemon then does.

use csi::spec::controller_server::Controller;
use csi::spec::{ControllerModifyVolumeRequest, GetCapacityRequest};
use tonic::{Code, Request};

use crate::calls::{block_on, class, create, new_volume};
use crate::daemon::Daemon;
use crate::fake::Fake;

/// More volumes of 15 µs than the drive of the test can have.
const MANY: usize = 8;

/// Only here: the scheduler sends pods to a node that refuses their volumes, or keeps them from one that has room.
#[test]
fn a_node_has_room_until_a_promise_would_not_hold() {
    let Some(daemon) = Daemon::start() else { return };
    let plugin = daemon.plugin(&Fake::default());
    let gold = class(&[("class", "guaranteed"), ("latencyTarget", "15us")]);
    let room = |parameters| {
        let asked = GetCapacityRequest { parameters, ..GetCapacityRequest::default() };
        block_on(plugin.get_capacity(Request::new(asked))).unwrap().into_inner()
    };
    let bulk = class(&[("class", "best-effort")]);
    assert_eq!(room(bulk.clone()).available_capacity, 3 << 30, "all but the pool");
    assert_eq!(room(class(&[("thin", "true")])).available_capacity, 1 << 30, "the pool");
    assert_eq!(room(class(&[("class", "guaranteed"), ("latencyTarget", "1us")])).available_capacity, 0);
    let mut made = 0;
    loop {
        let told = room(gold.clone());
        assert_eq!(Some(told.available_capacity), told.maximum_volume_size);
        match create(&plugin, new_volume(&format!("pvc-{made}"), &gold)) {
            Ok(_) => assert!(told.available_capacity > 0, "{made} volumes, and no room for the next"),
            Err(refused) => {
                assert_eq!(told.available_capacity, 0, "{made} volumes");
                assert_eq!(refused.code(), Code::ResourceExhausted);
                assert!(refused.message().contains("can't be promised 15us"), "{}", refused.message());
                break;
            }
        }
        made += 1;
        assert!(made < MANY, "each of {made} volumes was admitted");
    }
    assert!(made > 0);
    assert_eq!(daemon.rest().disks().unwrap().len(), made);
}

/// Only here: pods are sent to a node whose kernel has no block devices for them.
#[test]
fn a_node_without_the_driver_has_no_room() {
    let Some(daemon) = Daemon::start() else { return };
    let plugin = daemon.plugin(&Fake::without_devices());
    let told = block_on(plugin.get_capacity(Request::new(GetCapacityRequest::default()))).unwrap().into_inner();
    assert_eq!(told.available_capacity, 0);
    let refused = create(&plugin, new_volume("pvc-a", &class(&[]))).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(daemon.rest().disks().unwrap().is_empty());
}

/// Only here: a change that may fit later is given up, or one that can't ever be is tried for ever.
#[test]
fn a_promise_changes_if_it_fits() {
    let Some(daemon) = Daemon::start() else { return };
    let plugin = daemon.plugin(&Fake::default());
    create(&plugin, new_volume("pvc-a", &class(&[("weight", "3")]))).unwrap();
    let modify = |pairs: &[(&str, &str)]| {
        let mutable_parameters = class(pairs);
        let volume_id = "pvc-a".to_owned();
        let asked = ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
        block_on(plugin.controller_modify_volume(Request::new(asked))).map(|_| ()).map_err(|status| status.code())
    };
    assert_eq!(modify(&[("weight", "7")]), Ok(()));
    assert_eq!(modify(&[("class", "guaranteed"), ("latencyTarget", "500us")]), Ok(()));
    assert_eq!(modify(&[("class", "guaranteed"), ("latencyTarget", "1us")]), Err(Code::Unavailable));
    assert_eq!(modify(&[("weight", "0"), ("class", "best-effort")]), Err(Code::InvalidArgument));
    assert_eq!(modify(&[("drive", "other")]), Err(Code::InvalidArgument));
    let disk = daemon.rest().disk("pvc-a").unwrap();
    assert_eq!((disk.latency_target_us, disk.weight), (Some(500.0), None));
}
