//! What a service manager is told, which the test is here: that the daemon serves, what, that it lives, that it ends.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use nvme_driver::VfioUserDevice;
use rustix::time::{ClockId, clock_gettime};

use crate::disks::done;
use crate::harness::{Daemon, HANG, Home, errors, evenkeel, wait_for};

const FILE: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n";

/// The socket that a service manager listens on.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(home: &Home) -> Self {
        let path = home.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self::on(socket, path.to_str().unwrap().to_owned())
    }

    fn on(socket: UnixDatagram, path: String) -> Self {
        socket.set_read_timeout(Some(HANG)).unwrap();
        Self { socket, path }
    }

    /// Starts a daemon that tells it, and feeds a watchdog of that interval.
    fn serve(&self, home: &Home, watchdog_usec: u64, more: &[(&str, &str)]) -> Daemon {
        let usec = watchdog_usec.to_string();
        let told = [("NOTIFY_SOCKET", self.path.as_str()), ("WATCHDOG_USEC", &usec)];
        home.try_serve(&home.config(), &[&told, more].concat()).unwrap()
    }

    /// The next message.
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let len = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    /// Reads until there is one that begins so.
    fn wait(&self, start: &str) -> String {
        wait_for(start, || Some(self.next()).filter(|message| message.starts_with(start)))
    }
}

fn monotonic_usec() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

#[test]
fn it_hears_of_the_start_of_changes_of_a_reload_and_of_the_end() {
    let home = Home::new();
    home.configure(FILE);
    let manager = Manager::new(&home);
    let daemon = manager.serve(&home, 0, &[]);
    assert_eq!(manager.next(), "STATUS=Serving 1 disk on 1 drive");
    assert_eq!(manager.next(), "READY=1");
    done(&home, "create web --size 8MiB --wait");
    manager.wait("STATUS=Serving 2 disks on 1 drive");

    let before = monotonic_usec();
    home.configure(&format!("{FILE}weight = 3\n"));
    daemon.reload();
    let reloading = manager.wait("RELOADING=1\nMONOTONIC_USEC=");
    let usec: i64 = reloading.split('=').next_back().unwrap().parse().unwrap();
    assert!((before..=monotonic_usec()).contains(&usec), "{reloading}");
    manager.wait("READY=1");
    assert_eq!(done(&home, "show db")["weight"], 3, "it is applied by then");

    daemon.terminate();
    manager.wait("STOPPING=1\nSTATUS=Completing commands in flight");
    let mut daemon = daemon;
    daemon.wait();
}

#[test]
fn its_watchdog_is_fed_while_pollers_sleep_and_starves_while_one_is_stuck() {
    let home = Home::new();
    home.configure(FILE);
    let manager = Manager::new(&home);
    let daemon = manager.serve(&home, 400_000, &[("EVENKEELD_HANG_IN", "poller-")]);
    // Longer than the interval.
    (0..6).for_each(|_| drop(manager.wait("WATCHDOG=1")));
    let socket_dir = home.runtime_dir().join("db");
    // Ends with the daemon.
    std::thread::spawn(move || drop(VfioUserDevice::connect(&socket_dir)));
    daemon.wait_log("poller 0 is stuck", 1);
    let mut starved = 0;
    wait_for("a watchdog that starves", || {
        starved = if manager.next().starts_with("STATUS=poller 0 is stuck: it has been in") { starved + 1 } else { 0 };
        (starved == 4).then_some(())
    });
    let told = daemon.log();
    assert!(
        told.contains("error: poller 0 is stuck") && told.contains("the service manager ends the daemon"),
        "{told}"
    );
}

#[test]
fn the_thread_that_tells_it_has_walls_and_its_panic_ends_the_daemon() {
    for (variable, words) in [
        ("EVENKEELD_FORBIDDEN_IN", "the thread manager made the system call"),
        ("EVENKEELD_PANIC_IN", "thread manager panicked"),
    ] {
        let home = Home::new();
        let manager = Manager::new(&home);
        let mut daemon = evenkeel();
        daemon.arg("serve").arg(home.configure(FILE)).env(variable, "manager").env("NOTIFY_SOCKET", &manager.path);
        daemon.env("WATCHDOG_USEC", "400000").env_remove("RUST_BACKTRACE").stdout(Stdio::null());
        let output = daemon.output().unwrap();
        let told = errors(&output);
        assert_eq!(output.status.signal(), Some(6), "{variable}: {told}");
        assert!(told.contains(words), "{variable}: {told}");
    }
}

#[test]
fn one_with_an_abstract_socket_is_told_too_and_one_that_does_not_read_holds_up_nobody() {
    let home = Home::new();
    home.configure(FILE);
    let name = format!("evenkeel-e2e-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let manager = Manager::on(socket, format!("@{name}"));
    let daemon = manager.serve(&home, 0, &[]);
    assert_eq!(manager.next(), "STATUS=Serving 1 disk on 1 drive");
    // More changes than a socket's queue holds messages.
    for round in 0..20 {
        done(&home, &format!("create d{round} --size 1MiB --wait"));
    }
    home.attach("db").write(0, &[7; 4096]).unwrap();
    daemon.stop();
}

#[test]
fn one_that_can_not_be_reached_is_an_error_that_names_it() {
    let home = Home::new();
    let mut daemon = evenkeel();
    daemon.arg("serve").arg(home.configure(FILE)).env("NOTIFY_SOCKET", home.path("nobody"));
    let output = daemon.stdout(Stdio::null()).output().unwrap();
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("can't reach the service manager at NOTIFY_SOCKET; unset it"), "{told}");
}
