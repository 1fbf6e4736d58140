//! A keeper that is killed under a service manager which starts it again, with what it has in store.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use client_socket::keeping::wire::{Answer, Gone, How, Request};
use client_socket::{Received, receive, send_whole};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

use super::sides::{Attached, Client, Keeper, memory, message};

/// Room in the store.
pub const ROOM: &str = "4096";
/// In the environment of the process that becomes the next keeper.
const SOCKET: &str = "KEEPER_TEST_SOCKET";

/// What the service manager does in the process that it starts; not a test of its own. Descriptors come through the
/// standard input.
#[test]
fn successor() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    // Where they are to be.
    for number in 3..1024 {
        let _ = nix::unistd::close(number);
    }
    let (mut words, mut word) = (Vec::new(), [0; 256]);
    while let Ok(Received::Bytes(len, fds)) = receive(std::io::stdin(), &mut word, RecvFlags::empty()) {
        for fd in fds {
            assert_eq!(fd.as_raw_fd() as usize, 3 + words.len());
            fcntl_setfd(&fd, FdFlags::empty()).unwrap();
            words.push(String::from_utf8_lossy(&word[..len]).into_owned());
            std::mem::forget(fd);
        }
    }
    let text = |text: &[u8]| CString::new(text).unwrap();
    let environment = [
        format!("NOTIFY_SOCKET={}", Path::new(&socket).with_file_name("notify").display()),
        format!("FDSTORE={ROOM}"),
        format!("LISTEN_PID={}", std::process::id()),
        format!("LISTEN_FDS={}", words.len()),
        format!("LISTEN_FDNAMES={}", words.join(":")),
    ];
    let environment = environment.map(|one| text(one.as_bytes()));
    let program = text(env!("CARGO_BIN_EXE_evenkeel-keeper").as_bytes());
    let arguments = [program.clone(), text(socket.as_bytes())];
    let Err(errno) = nix::unistd::execve(&program, &arguments, &environment);
    panic!("the keeper's program: {errno}");
}

/// Kills the keeper; another one is started with what is in store, but for what `is_lost`.
fn kill(keeper: &mut Keeper, is_lost: impl Fn(&str) -> bool) {
    keeper.rests();
    keeper.child.kill().unwrap();
    keeper.child.wait().unwrap();
    keeper.settle();
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    keeper.child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stored::successor", "--nocapture"])
        .env(SOCKET, keeper.socket())
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for (word, fd) in keeper.manager.store.lock().unwrap().iter().filter(|(word, _)| !is_lost(word)) {
        send_whole(&ours, word.as_bytes(), &[fd.as_fd()]).unwrap();
    }
    drop(ours);
    keeper.wait_for("READY=1");
}

fn size(fd: &OwnedFd) -> i64 {
    rustix::fs::fstat(fd).unwrap().st_size
}

#[test]
fn a_keeper_that_is_killed_is_followed_by_one_that_goes_on() {
    let mut at = Attached::start(&[]);
    // Memory twice, of which a service manager keeps one copy, and an eventfd.
    let memory = memory();
    rustix::fs::ftruncate(&memory, 777).unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    at.client.send_with(&message(1, b"kept"), &[memory.as_fd(), event.as_fd(), memory.as_fd()]);
    at.channel.message(How::New, &message(1, b"kept"));
    at.channel.answer(at.number, 1, true, b"1");
    at.client.reads(b"1");
    at.client.send_with(&message(2, b"asks"), &[memory.as_fd()]);
    at.channel.message(How::New, &message(2, b"asks"));
    at.keeper.settle();
    kill(&mut at.keeper, |_| false);
    // Neither side noticed.
    at.channel.answer(at.number, 2, false, b"2");
    at.client.reads(b"2");
    let (answer, fds) = at.daemon.ask(&Request::Find("db".into()), &[]);
    assert_eq!((answer, fds.len()), (Answer::Found { has_client: true }, 2));
    at.client.send(&message(3, b"again"));
    at.channel.message(How::New, &message(3, b"again"));
    // Both die.
    kill(&mut at.keeper, |_| false);
    at.next_daemon(true);
    kill(&mut at.keeper, |_| false);
    at.channel.accept();
    assert_eq!(at.channel.client(true), at.number);
    let (_, fds) = at.channel.message(How::Kept, &message(1, b"kept"));
    assert_eq!((fds.len(), size(&fds[0]), size(&fds[2])), (3, 777, 777));
    at.channel.restored(at.number);
    at.channel.message(How::Again, &message(3, b"again"));
    // A client that leaves while no keeper runs has left.
    at.client = Client(std::os::unix::net::UnixStream::pair().unwrap().0);
    kill(&mut at.keeper, |_| false);
    at.channel.gone(at.number, Gone::Left);
    at.channel.accept();
    at.client = Client::connect(&at.path);
    assert!(at.channel.client(false) > at.number);
}

#[test]
fn nothing_stays_in_store_that_nobody_needs() {
    let mut at = Attached::start(&[]);
    let count = |at: &Attached| {
        at.keeper.settle();
        at.keeper.manager.store.lock().unwrap().len()
    };
    let at_first = count(&at);
    // The socket for daemons, this daemon's; the device's file, listening socket, memory, channel, client.
    assert_eq!(at_first, 7);
    for number in 1..20 {
        at.client.send_with(&message(1, b"memory"), &[memory().as_fd()]);
        at.channel.message(How::New, &message(1, b"memory"));
        at.channel.answer(at.number, number, false, b"ok");
        at.client.reads(b"ok");
    }
    // What was answered is let go of before the next message is taken.
    at.client.send(&message(2, b""));
    at.channel.message(How::New, &message(2, b""));
    assert_eq!(count(&at), at_first);
    kill(&mut at.keeper, |_| false);
    assert_eq!(count(&at), at_first);
    assert_eq!(at.daemon.ask(&Request::Forget("db".into()), &[]).0, Answer::Done);
    assert_eq!(count(&at), 2);
    at.keeper.signal(rustix::process::Signal::TERM);
    assert!(at.keeper.child.wait().unwrap().success());
    assert_eq!(count(&at), 0);
}

#[test]
fn what_the_store_does_not_have_is_lost_and_nothing_else() {
    let mut at = Attached::start(&[]);
    let (listener, path) = at.keeper.listener("other");
    let channel = at.daemon.keep("other", &[listener.as_fd()]);
    channel.accept();
    let mut other = Client::connect(&path);
    let number = channel.client(false);
    let memory = memory();
    at.client.send_with(&message(1, b"with memory"), &[memory.as_fd()]);
    at.channel.message(How::New, &message(1, b"with memory"));
    at.keeper.settle();
    let is_memory = |fd: &OwnedFd| confine::compare_files(fd.as_raw_fd(), memory.as_raw_fd());
    // A copy of the client's, as it came through a socket.
    let store = at.keeper.manager.store.lock().unwrap();
    let lost = store.iter().find(|(_, fd)| is_memory(fd).unwrap().is_eq()).unwrap().0.clone();
    drop(store);
    kill(&mut at.keeper, |word| word == lost);
    at.keeper.settle();
    at.client.sees_the_end();
    other.send(&message(1, b"here"));
    channel.message(How::New, &message(1, b"here"));
    channel.answer(number, 1, false, b"there");
    other.reads(b"there");
}

#[test]
fn replaced_and_killed_it_goes_on_too() {
    let mut at = Attached::start(&[]);
    for number in 1..=6 {
        at.client.send_with(&message(1, b"memory"), &[memory().as_fd()]);
        at.channel.message(How::New, &message(1, b"memory"));
        if number % 2 == 0 {
            at.keeper.signal(rustix::process::Signal::HUP);
            at.keeper.wait_for("READY=1");
        } else {
            kill(&mut at.keeper, |_| false);
        }
        at.channel.answer(at.number, number, number == 3, b"ok");
        at.client.reads(b"ok");
    }
    at.client.send(&message(2, b""));
    at.channel.message(How::New, &message(2, b""));
    at.keeper.settle();
    // One message is kept with its memory.
    assert_eq!(at.keeper.manager.store.lock().unwrap().len(), 8);
}
