//! Namespaces: disks without a socket that come to controllers, grow and go while their guests do I/O.

use std::fs;
use std::process::Output;

use nvme_driver::{Data, Namespace, Status};
use nvme_spec::Sqe;
use nvme_spec::feature::async_event;
use nvme_spec::identify::{IDENTIFY_BYTES, cns};
use nvme_spec::log::lid;
use nvme_spec::namespace::{IdentifyNamespace, nmic, nsattr};
use nvme_spec::opcode::{admin, nvm};
use serde_json::{Value, json};

use crate::disks::{done, is_served, refused};
use crate::guest::{Guest, pattern};
use crate::harness::{Home, errors, evenkeel, wait_for};

const MIB: u64 = 1 << 20;
const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\n\
                      [[tenant]]\nname = \"reader\"\nsize = \"4MiB\"\n\
                      [[tenant]]\nname = \"vm\"\nsize = \"4MiB\"\nfrontend = \"vhost-user-blk\"\n";

/// Waits until a guest's controller has these namespaces.
pub fn wait_for_namespaces(guest: &mut Guest, wanted: &[u32]) {
    let mut active = || guest.controller.admin().active_namespaces().unwrap();
    wait_for("the namespaces of a controller", || (active() == wanted).then_some(()));
}

/// Has a guest's commands go to one of its namespaces, once that is as long.
pub fn go_to(guest: &mut Guest, nsid: u32, size_mib: u64) {
    let mut look = || guest.controller.admin().identify_namespace(nsid).unwrap();
    guest.ns = wait_for("a namespace of that size", || {
        let found: Namespace = look();
        (found.size_bytes() == size_mib * MIB).then_some(found)
    });
}

/// Identify Namespace.
fn identify(guest: &mut Guest, nsid: u32) -> Box<IdentifyNamespace> {
    let data = Data { iova: guest.data.iova(), len_bytes: IDENTIFY_BYTES as u64 };
    let sqe = Sqe { opc: admin::IDENTIFY, nsid, cdw10: cns::NAMESPACE.into(), ..Sqe::default() };
    guest.controller.admin().run("Identify", sqe, Some(data)).unwrap();
    let mut raw = [0; IDENTIFY_BYTES];
    guest.data.read(0, &mut raw).unwrap();
    Box::new(bytemuck::pod_read_unaligned(&raw))
}

/// The Changed Namespace List, which is empty then.
fn changed(guest: &mut Guest) -> Vec<u32> {
    let list: Box<[u32; 1024]> = guest.controller.admin().log_page(lid::CHANGED_NAMESPACES).unwrap();
    list.iter().copied().take_while(|nsid| *nsid > 0).collect()
}

fn content(at_mib: u64) -> Vec<u8> {
    pattern(0x10c5 + at_mib, MIB as usize)
}

fn lba(guest: &Guest, at_mib: u64) -> u64 {
    at_mib * MIB / u64::from(guest.ns.block_bytes)
}

fn fill(guest: &mut Guest, from_mib: u64, to_mib: u64) {
    for at in from_mib..to_mib {
        guest.write(lba(guest, at), &content(at)).unwrap();
    }
}

fn check(guest: &mut Guest, to_mib: u64) {
    for at in 0..to_mib {
        let count = MIB as u32 / guest.ns.block_bytes;
        assert!(guest.read(lba(guest, at), count).unwrap() == content(at), "MiB {at}");
    }
}

fn format(guest: &mut Guest) -> Option<Status> {
    match guest.format(1) {
        Err(nvme_driver::Error::Command { status, .. }) => Some(status.code()),
        other => other.map(|_| None).unwrap(),
    }
}

fn attachments(disk: &Value) -> &Value {
    &disk["attachments"]
}

#[test]
fn a_namespace_comes_to_a_live_controller_grows_is_shared_and_goes() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let (mut db, mut reader) = (home.attach("db"), home.attach("reader"));
    let wants_notices = |guest: &mut Guest| {
        let config = nvme_spec::feature::fid::ASYNC_EVENT_CONFIG;
        guest.controller.admin().set_feature(config, async_event::NAMESPACE_ATTRIBUTE).unwrap();
    };
    wants_notices(&mut db);
    db.write(0, &pattern(1, 4096)).unwrap();
    assert!(changed(&mut db).is_empty());

    let made = done(&home, "create logs --size 2MiB --attach db");
    assert_eq!(attachments(&made), &json!([{ "tenant": "db", "read_only": false }]));
    let told = ["nsid", "frontend", "socket", "attached", "declared"].map(|key| made[key].clone());
    assert_eq!(told, [json!(2), json!("namespace"), Value::Null, json!(true), json!(false)]);
    wait_for_namespaces(&mut db, &[1, 2]);
    assert_eq!(changed(&mut db), [2]);
    // As good as the first time, and the other one has the lowest that is free.
    assert_eq!(done(&home, "create logs --size 2MiB --attach db"), made);
    assert_eq!(done(&home, "create between --size 4MiB --attach db")["nsid"], 3);
    go_to(&mut db, 2, 2);
    fill(&mut db, 0, 2);
    let mut had = 2;
    for size in [5, 8, 17] {
        assert_eq!(db.read(lba(&db, had), 1), Err(Status::LBA_OUT_OF_RANGE));
        done(&home, &format!("grow logs --size {size}MiB"));
        go_to(&mut db, 2, size);
        assert!(db.read(lba(&db, had), 2048).unwrap().iter().all(|byte| *byte == 0));
        check(&mut db, had);
        fill(&mut db, had, size);
        had = size;
    }

    // A second one only reads it, and it is the same disk.
    let shared = done(&home, "attach logs --to reader --read-only");
    assert_eq!(attachments(&shared)[1], json!({ "tenant": "reader", "read_only": true }));
    assert_eq!(done(&home, "attach logs --to reader --read-only"), shared);
    wait_for_namespaces(&mut reader, &[1, 2]);
    go_to(&mut reader, 2, 17);
    check(&mut reader, 17);
    let (of_db, of_reader) = (identify(&mut db, 2), identify(&mut reader, 2));
    assert_eq!((of_db.nguid, of_db.nmic, of_db.nsattr), (of_reader.nguid, nmic::SHARED, 0));
    assert_eq!((of_reader.nmic, of_reader.nsattr), (nmic::SHARED, nsattr::WRITE_PROTECTED));
    assert_ne!(identify(&mut db, 1).nguid, of_db.nguid);
    let protected = Err(Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(reader.write(0, &pattern(9, 4096)), protected);
    assert_eq!(reader.deallocate(0, 8), protected);
    let zeroes = reader.command(nvm::WRITE_ZEROES, 0, 8);
    assert_eq!(reader.run(zeroes, 0), protected);
    assert_eq!(format(&mut reader), Some(Status::NAMESPACE_WRITE_PROTECTED));
    assert_eq!(format(&mut db), Some(Status::OPERATION_DENIED), "it is not db's alone");
    done(&home, "grow logs --size 18MiB");
    go_to(&mut db, 2, 18);
    go_to(&mut reader, 2, 18);
    fill(&mut db, 17, 18);
    check(&mut reader, 18);

    // It leaves one, and the other one has it.
    assert_eq!(attachments(&done(&home, "detach logs --from db")).as_array().map(Vec::len), Some(1));
    assert_eq!(db.controller.admin().active_namespaces().unwrap(), [1, 3]);
    assert_eq!(db.read(0, 8), Err(Status::INVALID_FIELD), "an inactive namespace");
    check(&mut reader, 18);
    go_to(&mut db, 1, 4);
    assert_eq!(db.read(0, 8).unwrap(), pattern(1, 4096));
    // SIGKILL.
    drop(daemon);
    drop((db, reader));
    let daemon = home.serve();
    let mut reader = home.attach("reader");
    assert_eq!(reader.controller.admin().active_namespaces().unwrap(), [1, 2], "before its first command");
    go_to(&mut reader, 2, 18);
    check(&mut reader, 18);
    let told = refused(&home, "delete logs --yes");
    assert!(told.contains("\"logs\" is attached to reader"), "{told}");
    done(&home, "detach logs --from reader");
    assert_eq!(reader.controller.admin().active_namespaces().unwrap(), [1]);
    done(&home, "delete logs --yes --wait");
    let image = fs::read(home.path("drive.img")).unwrap();
    let secret = content(3);
    assert!(!image.windows(512).any(|found| found == &secret[..512]));
    assert!(refused(&home, "show logs").contains("there is no disk \"logs\""));
    // The other one goes with its guest at work.
    let mut db = home.attach("db");
    go_to(&mut db, 3, 4);
    db.write(0, &pattern(7, 4096)).unwrap();
    done(&home, "delete between --yes --force --wait");
    wait_for_namespaces(&mut db, &[1]);
    daemon.stop();
}

#[test]
fn a_format_of_a_namespace_is_remembered_for_it() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create logs --size 4MiB --attach db");
    let mut db = home.attach("db");
    wait_for_namespaces(&mut db, &[1, 2]);
    go_to(&mut db, 2, 4);
    fill(&mut db, 0, 4);
    db.format(1).unwrap();
    go_to(&mut db, 2, 4);
    assert_eq!(db.ns.block_bytes, 4096);
    assert!(db.read(0, 256).unwrap().iter().all(|byte| *byte == 0));
    fill(&mut db, 0, 4);
    drop(daemon);
    drop(db);
    let daemon = home.serve();
    assert_eq!(done(&home, "show logs")["lba_bytes"], 4096);
    assert_eq!(done(&home, "show db")["lba_bytes"], 512);
    done(&home, "attach logs --to reader --read-only");
    let mut reader = home.attach("reader");
    wait_for_namespaces(&mut reader, &[1, 2]);
    go_to(&mut reader, 2, 4);
    assert_eq!(reader.ns.block_bytes, 4096);
    check(&mut reader, 4);
    daemon.stop();
}

#[test]
fn what_can_t_be_attached_is_refused_and_changes_nothing() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create logs --size 2MiB --attach db");
    done(&home, "create more --size 2MiB --attach reader --nsid 3");
    done(&home, "create other --size 2MiB --attach reader --nsid 2");
    let layout = || fs::read_to_string(home.path("drive.img.layout.toml")).unwrap();
    let before = layout();
    for (arguments, wanted) in [
        ("create x --size 2MiB --attach nobody", "there is no tenant \"nobody\""),
        ("create x --size 2MiB --attach vm", "has no NVMe controller, and only those have namespaces"),
        ("create x --size 2MiB --attach logs", "there is no tenant \"logs\""),
        ("create x --size 2MiB --attach db --nsid 1", "1 is a tenant's own disk"),
        ("create x --size 2MiB --attach db --nsid 33", "expected a whole number from 2 to 32"),
        ("create x --size 2MiB --attach db --nsid 2", "tenant \"db\" has namespace \"logs\" as its nsid 2 already"),
        ("create x --size 2MiB --attach db --weight 2", "has no promise and no limits"),
        ("create x --size 1GiB --attach db", "no room for \"x\" of 1GiB: drive \"device\" has "),
        ("create logs --size 4MiB --attach db", "another disk \"logs\" already"),
        ("create logs --size 2MiB", "another disk \"logs\" already"),
        ("create db --size 2MiB --attach db", "another disk \"db\" already"),
        ("attach nothing --to db", "there is no disk \"nothing\""),
        ("attach db --to reader", "is a tenant's own disk"),
        ("attach logs --to nobody", "there is no tenant \"nobody\""),
        ("attach logs --to vm", "has no NVMe controller, and only those have namespaces"),
        ("attach logs --to db --read-only", "\"logs\" is attached to db read-write; detach it there first"),
        ("attach logs --to reader --read-only", "tenant \"reader\" has \"other\" as its nsid 2 already"),
        ("attach more --to db", "reader may write to \"more\" already"),
        ("detach logs --from nobody", "there is no tenant \"nobody\""),
        ("set logs --weight 3", "has no promise and no limits"),
        ("grow logs --size 1MiB", "a disk can't shrink"),
        ("delete logs --yes", "\"logs\" is attached to db"),
    ] {
        let told = refused(&home, arguments);
        assert!(told.contains(wanted), "disk {arguments}: {told}");
        assert_eq!(layout(), before, "disk {arguments}");
    }
    // Detaching a tenant that is not attached succeeds.
    done(&home, "detach logs --from reader");
    assert_eq!(layout(), before);
    // Several writers, if that is what is wanted.
    assert_eq!(attachments(&done(&home, "attach more --to db --shared")).as_array().map(Vec::len), Some(2));
    daemon.stop();
}

#[test]
fn a_namespace_outlives_its_tenants() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create made --size 4MiB");
    wait_for("the disk", || is_served(&home, "made"));
    done(&home, "create logs --size 2MiB --attach made");
    done(&home, "attach logs --to reader --read-only");
    let mut made = home.attach("made");
    wait_for_namespaces(&mut made, &[1, 2]);
    go_to(&mut made, 2, 2);
    fill(&mut made, 0, 2);
    let told = refused(&home, "delete made --yes");
    assert!(told.contains("\"made\" is attached to a client"), "{told}");
    done(&home, "delete made --yes --force --wait");
    assert_eq!(attachments(&done(&home, "show logs")), &json!([{ "tenant": "reader", "read_only": true }]));
    let mut reader = home.attach("reader");
    go_to(&mut reader, 2, 2);
    check(&mut reader, 2);
    drop(reader);
    daemon.stop();
    // And one that leaves the file while no daemon runs.
    let left = CONFIG.replace("[[tenant]]\nname = \"reader\"\nsize = \"4MiB\"\n", "");
    home.configure(&left);
    let daemon = home.serve();
    daemon.wait_log("namespace \"logs\" is detached from tenants that the configuration does not name", 1);
    assert_eq!(done(&home, "show logs").get("attachments"), None);
    done(&home, "attach logs --to db");
    let mut db = home.attach("db");
    go_to(&mut db, 2, 2);
    check(&mut db, 2);
    daemon.stop();
}

fn ask(home: &Home, arguments: &[&str]) -> Output {
    evenkeel().args(arguments).env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", errors(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn namespaces_of_a_file_are_applied_and_exported() {
    let home = Home::new();
    let namespace = |name: &str, keys: &str| format!("[[namespace]]\nname = \"{name}\"\n{keys}\n");
    let first = [
        CONFIG,
        &namespace("logs", "size = \"2MiB\"\nnsid = 2\ntenants = [\"db\"]"),
        &namespace("gone", "size = \"2MiB\"\nnsid = 3\ntenants = [\"db\"]"),
    ];
    home.configure(&first.concat());
    let daemon = home.serve();
    let mut db = home.attach("db");
    assert_eq!(db.controller.admin().active_namespaces().unwrap(), [1, 2, 3]);
    go_to(&mut db, 2, 2);
    fill(&mut db, 0, 2);
    for change in ["grow logs --size 4MiB", "attach logs --to reader", "detach logs --from db", "delete logs --yes"] {
        let told = refused(&home, change);
        assert!(told.contains("\"logs\" is declared in") && told.contains("evenkeel apply"), "{told}");
    }
    done(&home, "create made --size 2MiB --attach db --nsid 9");
    let next = [
        CONFIG,
        "[[tenant]]\nname = \"new\"\nsize = \"4MiB\"\n",
        &namespace("logs", "size = \"4MiB\"\nnsid = 2\ntenants = [\"new\"]\nread_only = [\"db\"]"),
        &namespace("late", "size = \"2MiB\"\nnsid = 3\ntenants = [\"db\"]"),
    ];
    let file = home.configure(&next.concat());
    let apply = |flags: &[&str]| ask(&home, &[&["apply", file.to_str().unwrap()], flags].concat());
    let told = errors(&apply(&["--yes"]));
    assert!(told.contains("\"gone\" was removed from the file and is attached to a client"), "{told}");
    drop(db);
    let shown = wait_for("the client is gone", || {
        let output = apply(&["--dry-run"]);
        output.status.success().then(|| text(&output))
    });
    assert_eq!(
        shown,
        "delete  gone: 2MiB and all data on it\ncreate new: size 4MiB\n\
         change logs: size 2MiB → 4MiB, tenants [\"db\"] → [\"new\"], read_only [] → [\"db\"]\n\
         create late: nsid 3, size 2MiB, tenants [\"db\"]\n"
    );
    text(&apply(&["--yes"]));
    assert_eq!(text(&apply(&["--yes"])), "nothing to do\n");
    let mut db = home.attach("db");
    wait_for_namespaces(&mut db, &[1, 2, 3, 9]);
    go_to(&mut db, 2, 4);
    assert_eq!(db.write(0, &pattern(1, 512)), Err(Status::NAMESPACE_WRITE_PROTECTED));
    let mut new = home.attach("new");
    go_to(&mut new, 2, 4);
    check(&mut new, 2);
    drop((db, new));
    // All of it, as one file that is as good.
    let exported = text(&ask(&home, &["export"]));
    for part in
        ["nsid = 2\ntenants = [\"new\"]\nread_only = [\"db\"]\n", "name = \"made\"\nsize = \"2MiB\"\nnsid = 9\n"]
    {
        assert!(exported.contains(part), "{exported}");
    }
    // A tenant goes, and what the API made is detached from it.
    let last = CONFIG.replace("[[tenant]]\nname = \"db\"\nsize = \"4MiB\"\n", "");
    home.configure(&[last.as_str(), &namespace("logs", "size = \"4MiB\"\nnsid = 2")].concat());
    let applied = wait_for("the clients are gone", || {
        let output = apply(&["--yes"]);
        output.status.success().then(|| text(&output))
    });
    assert!(applied.contains("delete  db: 4MiB"), "{applied}");
    for name in ["made", "logs"] {
        assert_eq!(done(&home, &format!("show {name}")).get("attachments"), None, "{name}");
    }
    daemon.stop();
    let daemon = home.serve();
    assert_eq!(text(&apply(&["--yes"])), "nothing to do\n");
    daemon.stop();
}

#[test]
fn a_namespace_is_on_the_drive_of_its_tenants() {
    let home = Home::new();
    let logs = "[[namespace]]\nname = \"logs\"\nsize = \"2MiB\"\nnsid = 2\ntenants = [\"db\"]\n";
    home.configure(&[CONFIG, logs].concat());
    let daemon = home.serve();
    let image = home.path("spare.img");
    let add = ["drive", "add", "spare", "--backend", "file", "--path", image.to_str().unwrap()];
    text(&ask(&home, &[&add[..], &["--size", "16MiB", "--create"]].concat()));
    done(&home, "create far --size 4MiB --drive spare");
    let made = done(&home, "create made --size 2MiB --attach far");
    assert_eq!((&made["drive"], &made["nsid"]), (&json!("spare"), &json!(2)));
    for (arguments, wanted) in [
        ("create x --size 2MiB --attach far --drive device", "tenant \"far\" is on drive \"spare\", not on \"device\""),
        ("attach made --to db --read-only", "\"made\" is on drive \"spare\", and tenant \"db\" on \"device\""),
        ("create made --size 2MiB --attach db", "another disk \"made\" already"),
    ] {
        let told = refused(&home, arguments);
        assert!(told.contains(wanted), "disk {arguments}: {told}");
    }
    let exported = text(&ask(&home, &["export"]));
    assert!(exported.contains("name = \"logs\"\nsize = \"2MiB\"\ndrive = \"device\"\nnsid = 2\n"), "{exported}");
    assert!(exported.contains("name = \"made\"\nsize = \"2MiB\"\ndrive = \"spare\"\nnsid = 2\n"), "{exported}");
    // SIGKILL. The file has a namespace and a tenant that name no drive, and there are two now.
    drop(daemon);
    let daemon = home.serve();
    for tenant in ["db", "far"] {
        assert_eq!(home.attach(tenant).controller.admin().active_namespaces().unwrap(), [1, 2], "{tenant}");
    }
    daemon.stop();
}
