//! A keeper whose program is executed again.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;

use client_socket::keeping::wire::{Answer, Gone, How, Request, Said, Told};
use rustix::process::Signal;

use super::sides::{Attached, Channel, Client, Daemon, Keeper, memory, message};

fn replace(keeper: &Keeper) {
    keeper.signal(Signal::HUP);
    keeper.wait_for("READY=1");
}

#[test]
fn what_is_held_goes_on() {
    let mut at = Attached::start(&[]);
    let memory = memory();
    rustix::fs::ftruncate(&memory, 4321).unwrap();
    at.client.send_with(&message(1, b"kept"), &[memory.as_fd()]);
    at.channel.message(How::New, &message(1, b"kept"));
    at.channel.answer(at.number, 1, true, b"1");
    at.client.reads(b"1");
    replace(&at.keeper);
    // The daemon's sockets are the same.
    at.client.send(&message(2, b"asks"));
    at.channel.message(How::New, &message(2, b"asks"));
    replace(&at.keeper);
    at.channel.answer(at.number, 2, true, b"2");
    at.client.reads(b"2");
    // Half a message, and no daemon.
    let whole = message(3, b"in two halves");
    at.client.send_with(&whole[..10], &[memory.as_fd()]);
    at.next_daemon(true);
    replace(&at.keeper);
    at.client.send(&whole[10..]);
    at.channel.accept();
    at.channel.client(true);
    let (_, fds) = at.channel.message(How::Kept, &message(1, b"kept"));
    assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_size, 4321);
    at.channel.message(How::Kept, &message(2, b"asks"));
    replace(&at.keeper);
    at.channel.restored(at.number);
    let (number, fds) = at.channel.message(How::New, &whole);
    assert_eq!((number, fds.len()), (3, 1));
    // A reply that is on its way, twice what a socket takes.
    let reply = vec![7; 100_000];
    for number in 4..=7 {
        at.channel.answer(at.number, number - 1, false, &reply);
        at.client.send(&message(number as u32, b""));
        replace(&at.keeper);
        at.client.reads(&reply);
        at.channel.message(How::New, &message(number as u32, b""));
    }
    // A client that leaves meanwhile has left.
    drop(std::mem::replace(&mut at.client, Client(std::os::unix::net::UnixStream::pair().unwrap().0)));
    replace(&at.keeper);
    at.channel.gone(at.number, Gone::Left);
    at.channel.accept();
    at.client = Client::connect(&at.path);
    assert_eq!(at.channel.client(false), at.number + 1);
    let (answer, fds) = at.daemon.ask(&Request::Find("db".into()), &[]);
    assert_eq!((answer, fds.len()), (Answer::Found { has_client: true }, 2));
    at.keeper.signal(Signal::TERM);
    assert!(at.keeper.child.wait().unwrap().success());
    assert!(!at.keeper.socket().exists());
}

#[test]
fn its_walls_stay_up() {
    let at = Attached::start(&[]);
    let threads = format!("/proc/{}/task", at.keeper.child.id());
    // Not one more each time: the kernel has room for a limited number of filters.
    let filters = || {
        let of = |thread: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.trim().parse::<u32>().unwrap()
            };
            assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), (2, 1));
            field("Seccomp_filters:")
        };
        std::fs::read_dir(&threads).unwrap().map(of).collect::<Vec<_>>()
    };
    let at_first = filters();
    assert_eq!(at_first.len(), 2, "the main thread and the device's");
    for _ in 0..3 {
        replace(&at.keeper);
        // The device's thread may still be on its way.
        while filters() != [1, 2] {
            thread::yield_now();
        }
    }
}

#[test]
fn under_load_no_reply_is_lost_and_none_comes_twice() {
    let keeper = Keeper::start(&[]);
    let daemon = Daemon::connect(&keeper.socket());
    let devices = 4;
    let mut clients = Vec::new();
    let answering: Vec<_> = (0..devices)
        .map(|n| {
            let name = format!("d{n}");
            let (listener, path) = keeper.listener(&name);
            let channel = daemon.keep(&name, &[listener.as_fd()]);
            clients.push(Client::connect(&path));
            thread::spawn(move || answer_all(&channel))
        })
        .collect();
    let (stop, is_over) = std::sync::mpsc::channel::<()>();
    let is_over = std::sync::Arc::new(std::sync::Mutex::new(is_over));
    let asking: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let is_over = std::sync::Arc::clone(&is_over);
            thread::spawn(move || {
                let done = || is_over.lock().unwrap().try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected);
                ask_until(client, done)
            })
        })
        .collect();
    for _ in 0..30 {
        replace(&keeper);
    }
    drop(stop);
    let asked: Vec<u32> = asking.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(asked.iter().all(|asked| *asked > 30), "{asked:?}");
    let told: Vec<u64> = answering.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(told, asked.into_iter().map(u64::from).collect::<Vec<_>>());
}

/// Answers each message by itself, keeping one in ten; returns how many there were.
fn answer_all(channel: &Channel) -> u64 {
    channel.accept();
    let number = channel.client(false);
    let mut seen = 0;
    loop {
        match channel.told() {
            Told::Message { number: next, how, bytes, .. } => {
                assert_eq!((how, next), (How::New, seen + 1));
                seen = next;
                let forget = if next % 10 == 5 && next > 10 { vec![next - 10] } else { Vec::new() };
                channel.say(&Said::Answer { client: number, number: next, keep: next % 10 == 5, forget, bytes });
            }
            told => {
                assert_eq!(told, Told::Gone { client: number, why: Gone::Left });
                return seen;
            }
        }
    }
}

fn ask_until(mut client: Client, is_over: impl Fn() -> bool) -> u32 {
    let mut asked = 0;
    while !is_over() {
        // Three at a time, of different lengths.
        for word in asked..asked + 3 {
            client.send(&message(word, &vec![word as u8; (word % 2000) as usize]));
        }
        for word in asked..asked + 3 {
            client.reads(&message(word, &vec![word as u8; (word % 2000) as usize]));
        }
        asked += 3;
    }
    asked
}

#[test]
fn a_program_that_can_not_go_on_is_not_let() {
    // Under a name that another program gets.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("evenkeel-keeper");
    std::fs::copy(env!("CARGO_BIN_EXE_evenkeel-keeper"), &program).unwrap();
    // Without walls, so that a shell may stand for another program.
    let keeper = Keeper::start_program(&program, &["--unconfined"], Stdio::piped());
    let mut at = Attached::with(keeper);
    let mut told = std::io::BufReader::new(at.keeper.child.stderr.take().unwrap());
    let mut refuses = |at: &mut Attached, why: &str| {
        at.keeper.signal(Signal::HUP);
        let mut line = String::new();
        while !line.contains("not replaced") {
            line.clear();
            std::io::BufRead::read_line(&mut told, &mut line).unwrap();
        }
        assert!(line.contains(why) && line.contains("this keeper continues"), "{line}");
        at.client.send(&message(1, b"still"));
        let (number, _) = at.channel.message(How::New, &message(1, b"still"));
        at.channel.answer(at.number, number, false, b"there");
        at.client.reads(b"there");
    };
    let other = dir.path().join("other");
    std::fs::write(&other, "#!/bin/sh\nexit 3\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&other, &program).unwrap();
    refuses(&mut at, "can't take over this keeper's state");
    std::fs::remove_file(&program).unwrap();
    refuses(&mut at, "can't be started");
    // A program that says it can, and then can't be executed.
    std::fs::write(&other, format!("#!/bin/sh\nrm {}\n", program.display())).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&other, &program).unwrap();
    refuses(&mut at, "ENOENT");
    std::fs::copy(env!("CARGO_BIN_EXE_evenkeel-keeper"), &program).unwrap();
    replace(&at.keeper);
    at.client.send(&message(1, b"on"));
    at.channel.message(How::New, &message(1, b"on"));
}

#[test]
fn a_program_knows_what_it_can_go_on_with() {
    let can = |version: &str| {
        let option = format!("--can-resume={version}");
        Command::new(env!("CARGO_BIN_EXE_evenkeel-keeper")).arg(option).status().unwrap().success()
    };
    assert!(can("1") && !can("0") && !can("2"));
}
