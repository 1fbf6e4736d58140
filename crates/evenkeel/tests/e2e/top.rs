//! `evenkeel top`, on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{Home, errors, evenkeel, run, wait_for};

const CONFIG: &str = "[device]\nbackend = \"memory\"\nsize = \"16MiB\"\n[policy]\nname = \"lpns\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n[[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\n";

const ROWS: u16 = 40;
const COLUMNS: u16 = 160;

/// A terminal with the program on it.
struct Screen {
    keys: File,
    child: Child,
    shown: Arc<Mutex<vt100::Parser>>,
}

/// Starts the program on a terminal: what is typed and shown there.
fn on_a_terminal(home: &Home, arguments: &[&str]) -> (File, Child) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let terminal: OwnedFd =
        open(ptsname(&keys, Vec::new()).unwrap(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let its = || Stdio::from(terminal.try_clone().unwrap());
    let mut command = evenkeel();
    command.arg("top").arg("--runtime-dir").arg(home.runtime_dir()).args(arguments).env("TERM", "xterm");
    let child = command.stdin(its()).stdout(its()).stderr(its()).spawn().unwrap();
    (File::from(keys), child)
}

impl Screen {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let (keys, child) = on_a_terminal(home, arguments);
        let shown = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let sink = Arc::clone(&shown);
        let mut screen = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Until nobody has the terminal's other end any more, which is an error here.
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                sink.lock().unwrap().process(&bytes[..len]);
            }
        });
        Self { keys, child, shown }
    }

    /// Waits until the program has given the screen back that was there before.
    fn wait_for_the_former(&self) {
        let is_back = || (!self.shown.lock().unwrap().screen().alternate_screen()).then_some(());
        wait_for("the screen that was there before", is_back);
    }

    fn wait_for(&self, text: &str) {
        wait_for(text, || self.shown.lock().unwrap().screen().contents().contains(text).then_some(()));
    }
}

#[test]
fn shows_tenants_over_a_restart_of_the_daemon_and_gives_the_terminal_back() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut screen = Screen::start(&home, &[]);
    screen.wait_for("batch");
    screen.wait_for("none broken");
    daemon.stop();
    screen.wait_for("no answer, showing the last figures");
    let daemon = home.serve();
    screen.wait_for("none broken");
    screen.keys.write_all(b"q").unwrap();
    let status = wait_for("its end", || screen.child.try_wait().unwrap());
    assert!(status.success());
    screen.wait_for_the_former();

    // So it does when it is told to end.
    let mut screen = Screen::start(&home, &["--drive", "device"]);
    screen.wait_for("none broken");
    assert!(screen.shown.lock().unwrap().screen().alternate_screen());
    kill_process(Pid::from_child(&screen.child), Signal::TERM).unwrap();
    assert!(wait_for("its end", || screen.child.try_wait().unwrap()).success());
    screen.wait_for_the_former();

    let mut screen = Screen::start(&home, &["--drive", "nope"]);
    screen.wait_for("there is no drive \"nope\"; there are: device");
    assert!(!wait_for("its end", || screen.child.try_wait().unwrap()).success());
    daemon.stop();
}

#[test]
fn ends_with_its_terminal() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let (mut keys, mut child) = on_a_terminal(&home, &[]);
    let (mut shown, mut bytes) = (0, [0; 4096]);
    while shown < 2000 {
        shown += keys.read(&mut bytes).unwrap();
    }
    drop(keys);
    wait_for("its end", || child.try_wait().unwrap());
    daemon.stop();
}

#[test]
fn without_a_terminal_or_a_daemon_it_says_so() {
    let output = run(&["top"]);
    assert!(!output.status.success());
    assert!(errors(&output).contains("needs a terminal; `evenkeel stats`"), "{}", errors(&output));
    let home = Home::new();
    let mut screen = Screen::start(&home, &[]);
    screen.wait_for("no daemon");
    assert!(!wait_for("its end", || screen.child.try_wait().unwrap()).success());
}
