//! The users that may use a tenant's socket.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{Gid, Uid};

use crate::harness::{Home, errors, evenkeel};

const CONFIG: &str = "[device]\nbackend = \"memory\"\nsize = \"16MiB\"\n[policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"alice\"\nsize = \"4MiB\"\nsocket_user = \"4001\"\n\
                      [[tenant]]\nname = \"group\"\nsize = \"4MiB\"\nsocket_group = \"4242\"\n\
                      frontend = \"vhost-user-blk\"\n\
                      [[tenant]]\nname = \"own\"\nsize = \"4MiB\"\n";
const ALICE: u32 = 4001;
const MALLORY: u32 = 4002;
const GROUP: u32 = 4242;

/// Does something as another user, on a thread of its own: credentials are a thread's.
fn as_user<T: Send>(user: u32, groups: &[u32], does: impl FnOnce() -> T + Send) -> T {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let become_it = || {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        rustix::thread::set_thread_groups(&groups).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        does()
    };
    std::thread::scope(|scope| scope.spawn(become_it).join().unwrap())
}

/// Connects as another user. `None`: may not. Else whether the
/// daemon keeps the connection.
fn connect(path: &Path, user: u32, groups: &[u32]) -> Option<bool> {
    as_user(user, groups, || {
        let mut stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        // Nobody says anything before the client does: the end, or a wait.
        Some(stream.read(&mut [0]).is_err())
    })
}

#[test]
fn a_socket_is_for_whom_the_configuration_says() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    let home = Home::new();
    // Others reach the sockets through it.
    for dir in [home.config().parent().unwrap(), home.path("").as_path()] {
        fs::set_permissions(dir, Permissions::from_mode(0o711)).unwrap();
    }
    home.configure(CONFIG);
    let [alice, group, own] = ["alice/cntrl", "group/vhost.sock", "own/cntrl"].map(|at| home.runtime_dir().join(at));
    // Over a restart after a kill, too.
    for _ in 0..2 {
        let daemon = home.serve();
        let facts = |path: &Path| {
            let (found, dir) = (fs::metadata(path).unwrap(), fs::metadata(path.parent().unwrap()).unwrap());
            (found.uid(), found.gid(), found.mode() & 0o777, dir.mode() & 0o777)
        };
        assert_eq!(facts(&alice), (ALICE, 0, 0o600, 0o711));
        assert_eq!(facts(&group), (0, GROUP, 0o660, 0o711));
        assert_eq!(facts(&own), (0, 0, 0o600, 0o700));
        assert_eq!(connect(&alice, ALICE, &[]), Some(true));
        assert_eq!(connect(&group, MALLORY, &[7, GROUP]), Some(true));
        for (path, user, groups) in [(&alice, MALLORY, [GROUP]), (&group, ALICE, [7]), (&own, ALICE, [GROUP])] {
            assert_eq!(connect(path, user, &groups), None, "{path:?} for {user}");
        }

        // An operator opens a closed directory: the daemon still checks each client.
        fs::set_permissions(own.parent().unwrap(), Permissions::from_mode(0o711)).unwrap();
        for path in [&alice, &own, &group] {
            fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
            assert_eq!(connect(path, MALLORY, &[7]), Some(false), "{path:?}");
        }
        daemon.wait_log("client refused: process ", 3);
        daemon.wait_log(&format!("of user {MALLORY} may not use this socket"), 3);
        assert_eq!(connect(&home.runtime_dir().join("api.sock"), MALLORY, &[]), None);
        fs::set_permissions(own.parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
        drop(daemon);
    }
}

/// Asks the API as another user.
fn ask(path: &Path, user: u32, groups: &[u32], request: &str) -> String {
    let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    as_user(user, groups, || {
        let Ok(mut stream) = UnixStream::connect(path) else { return "may not connect".to_owned() };
        let body = "{\"weight\":2}";
        let head = "content-type: application/json\r\ncontent-length: ";
        std::io::Write::write_all(&mut stream, format!("{request}{head}{}\r\n\r\n{body}", body.len()).as_bytes())
            .unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    })
}

#[test]
fn the_api_is_for_whom_the_configuration_says() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    const VIEWERS: u32 = 4343;
    let home = Home::new();
    for dir in [home.config().parent().unwrap(), home.path("").as_path()] {
        fs::set_permissions(dir, Permissions::from_mode(0o711)).unwrap();
    }
    let api = home.runtime_dir().join("api.sock");
    // Without the section, for root alone.
    home.configure(CONFIG);
    let daemon = home.serve();
    assert_eq!(ask(&api, ALICE, &[], "GET /v1/disks"), "may not connect");
    daemon.stop();
    home.configure(&format!("{CONFIG}[api]\noperators = \"4242\"\nviewers = \"4343\"\ntenants = true\n"));
    let daemon = home.serve();
    let patch = "PATCH /v1/disks/own";
    // An operator does what the file lets anybody do.
    let told = ask(&api, MALLORY, &[GROUP], patch);
    assert!(told.starts_with("HTTP/1.1 409") && told.contains("is declared in"), "{told}");
    assert!(ask(&api, MALLORY, &[GROUP], "GET /v1/export").starts_with("HTTP/1.1 200"));
    let stats = "GET /v1/stats?span_ms=0";
    for group in [GROUP, VIEWERS] {
        let told = ask(&api, MALLORY, &[group], stats);
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("\"own\""), "{told}");
    }
    // A viewer looks.
    let told = ask(&api, MALLORY, &[VIEWERS], "GET /v1/disks");
    assert!(told.starts_with("HTTP/1.1 200") && told.contains("\"own\"") && told.contains("\"alice\""), "{told}");
    let told = ask(&api, MALLORY, &[VIEWERS], patch);
    assert!(told.starts_with("HTTP/1.1 403") && told.contains("application/problem+json"), "{told}");
    assert!(told.contains("you may only look, not change") && told.contains("`operators` under [api]"), "{told}");
    // A tenant's user sees that tenant.
    let told = ask(&api, ALICE, &[], "GET /v1/disks");
    assert!(told.contains("\"alice\"") && !told.contains("\"own\""), "{told}");
    assert!(ask(&api, ALICE, &[], "GET /v1/disks/alice").starts_with("HTTP/1.1 200"));
    assert!(ask(&api, ALICE, &[], "GET /v1/disks/own").starts_with("HTTP/1.1 404"));
    let told = ask(&api, ALICE, &[], "GET /v1/events");
    assert!(told.starts_with("HTTP/1.1 200") && !told.contains("started"), "{told}");
    let why = "GET /v1/why/alice?from_unix_ms=1&to_unix_ms=2";
    let trace = "POST /v1/disks/alice/trace?seconds=1";
    assert!(ask(&api, MALLORY, &[VIEWERS], trace).starts_with("HTTP/1.1 403"));
    assert!(ask(&api, MALLORY, &[VIEWERS], why).starts_with("HTTP/1.1 404"), "nothing was kept then");
    let refused =
        ["GET /v1/export", "GET /v1/drives", "GET /v1/operations", "DELETE /v1/disks/alice", patch, why, trace, stats];
    for request in refused {
        let told = ask(&api, ALICE, &[], request);
        assert!(told.starts_with("HTTP/1.1 403") && told.contains("at its own disks"), "{request}: {told}");
    }
    // A user without a disk sees none.
    assert!(ask(&api, MALLORY, &[], "GET /v1/disks").ends_with("[]"));
    daemon.stop();
    home.configure(&format!("{CONFIG}[api]\nviewers = \"4343\"\n"));
    let daemon = home.serve();
    let told = ask(&api, ALICE, &[], "GET /v1/disks");
    assert!(told.starts_with("HTTP/1.1 403") && told.contains("user 4001 may not use the API"), "{told}");
    assert!(told.contains("write `tenants = true` there"), "{told}");
    daemon.stop();
}

#[test]
fn a_tenants_user_hears_of_no_other_tenant() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    let home = Home::new();
    for dir in [home.config().parent().unwrap(), home.path("").as_path()] {
        fs::set_permissions(dir, Permissions::from_mode(0o711)).unwrap();
    }
    let tenants = "[[tenant]]\nname = \"alice\"\nsize = \"4MiB\"\nsocket_user = \"4001\"\nlabels.team = \"red\"\n\
                   [[tenant]]\nname = \"mallory\"\nsize = \"4MiB\"\nsocket_user = \"4002\"\n\
                   labels.team = \"blue\"\n";
    let device = "[device]\nbackend = \"memory\"\nsize = \"32MiB\"\n[policy]\nname = \"passthrough\"\n";
    home.configure(&format!("{device}{tenants}[api]\ntenants = true\n"));
    let daemon = home.serve();
    let api = home.runtime_dir().join("api.sock");
    let changes = [
        "create common --size 4MiB --attach alice",
        "attach common --to mallory --read-only",
        "detach common --from mallory",
        "attach common --to mallory --read-only",
        "grow common --size 8MiB",
    ];
    for change in changes {
        let mut command = evenkeel();
        let output = command.arg("disk").args(change.split(' ')).arg("--socket").arg(&api).output().unwrap();
        assert!(output.status.success(), "{change}: {}", errors(&output));
    }
    let guest = home.attach("mallory");
    let seen =
        |user| ["/v1/disks", "/v1/disks/common", "/v1/events"].map(|at| ask(&api, user, &[], &format!("GET {at}")));
    let [disks, disk, events] = seen(ALICE);
    for told in [&disks, &disk, &events] {
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("common") && !told.contains("mallory"), "{told}");
        assert!(!told.contains("blue"), "{told}");
    }
    assert!(disks.contains("\"labels\":{\"team\":\"red\"}"), "{disks}");
    assert!(disk.contains("\"tenant\":\"alice\"") && disk.contains("\"attached\":false"), "{disk}");
    assert!(events.contains("namespace 2 of alice") && !events.contains("tached"), "{events}");
    let [disks, disk, events] = seen(MALLORY);
    for told in [&disks, &disk, &events] {
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("common") && !told.contains("alice"), "{told}");
        assert!(!told.contains("\"red\""), "{told}");
    }
    assert!(events.contains("\"labels\":{\"team\":\"blue\"}"), "{events}");
    assert!(disk.contains("\"tenant\":\"mallory\"") && disk.contains("\"attached\":true"), "{disk}");
    assert!(events.contains("detached from mallory") && !events.contains("namespace 2 of"), "{events}");
    drop(guest);
    daemon.stop();
}

/// Only here: idle connections of a user without a disk, which leave viewers and other users without an answer.
#[test]
fn nobody_is_kept_from_the_api_by_another_users_idle_connections() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    const VIEWERS: u32 = 4343;
    let home = Home::new();
    for dir in [home.config().parent().unwrap(), home.path("").as_path()] {
        fs::set_permissions(dir, Permissions::from_mode(0o711)).unwrap();
    }
    let api = home.runtime_dir().join("api.sock");
    for tenants in [true, false] {
        home.configure(&format!("{CONFIG}[api]\nviewers = \"4343\"\ntenants = {tenants}\n"));
        let daemon = home.serve();
        let connect_often = || (0..100).map(|_| UnixStream::connect(&api).unwrap()).collect::<Vec<_>>();
        let held = as_user(MALLORY, &[], connect_often);
        for _ in 0..10 {
            let told = ask(&api, ALICE, &[VIEWERS], "GET /v1/disks");
            assert!(told.starts_with("HTTP/1.1 200"), "a viewer: {told:?}");
            if tenants {
                let told = ask(&api, ALICE, &[], "GET /v1/disks");
                assert!(told.starts_with("HTTP/1.1 200"), "a user with a disk: {told:?}");
            }
        }
        drop(held);
        daemon.stop();
    }
}
