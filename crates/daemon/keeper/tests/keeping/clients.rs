//! Clients that leave, and clients that do what they may not.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use client_socket::keeping::wire::{Gone, How, Said, Told};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::sides::{Attached, Client, Daemon, Keeper, PATIENCE, memory, message};

/// What comes after a client is served as if it had never been.
fn next_client(at: &mut Attached) {
    at.channel.accept();
    at.client = Client::connect(&at.path);
    let before = at.number;
    at.number = at.channel.client(false);
    assert!(at.number > before);
    at.client.send(&message(1, b"next"));
    let (number, _) = at.channel.message(How::New, &message(1, b"next"));
    at.channel.answer(at.number, number, false, b"yes");
    at.client.reads(b"yes");
}

#[test]
fn a_client_may_leave_at_any_time() {
    let mut at = Attached::start(&[]);
    // With a message that is not answered, one that is not whole, and nothing.
    for leftover in [message(1, b"why?"), message(1, b"why?")[..6].to_vec(), Vec::new()] {
        at.client.send(&leftover);
        if leftover.len() > 8 {
            at.channel.message(How::New, &leftover);
        }
        at.client = Client(std::os::unix::net::UnixStream::pair().unwrap().0);
        at.channel.gone(at.number, Gone::Left);
        next_client(&mut at);
    }
}

#[test]
fn a_client_that_leaves_while_there_is_no_daemon_is_forgotten() {
    let mut at = Attached::start(&[]);
    at.client.send(&message(1, b"keep this"));
    at.channel.message(How::New, &message(1, b"keep this"));
    at.channel.answer(at.number, 1, true, b"ok");
    at.client.reads(b"ok");
    at.next_daemon(true);
    at.client = Client(std::os::unix::net::UnixStream::pair().unwrap().0);
    // It may be told of the one that leaves, if it asks early enough; never of half of it.
    at.channel.accept();
    let mut client = Client::connect(&at.path);
    client.send(&message(2, b"new"));
    let mut told = at.channel.told();
    if matches!(told, Told::Client { is_held: true, .. }) {
        while !matches!(told, Told::Gone { .. }) {
            told = at.channel.told();
        }
        at.channel.accept();
        told = at.channel.told();
    }
    assert!(matches!(told, Told::Client { is_held: false, client } if client > at.number), "{told:?}");
    at.channel.message(How::New, &message(2, b"new"));
}

#[test]
fn a_second_client_is_sent_away() {
    let mut at = Attached::start(&[]);
    let mut second = Client::connect(&at.path);
    second.sees_the_end();
    assert_eq!(at.channel.told(), Told::Refused);
    at.client.send(&message(1, b"still here"));
    at.channel.message(How::New, &message(1, b"still here"));
}

#[test]
fn a_client_is_closed_once_it_has_its_reply() {
    let mut at = Attached::start(&[]);
    at.client.send(&message(1, b"bad"));
    at.channel.message(How::New, &message(1, b"bad"));
    at.channel.answer(at.number, 1, false, b"that was wrong");
    at.channel.say(&Said::Close { client: at.number });
    at.client.reads(b"that was wrong");
    at.client.sees_the_end();
    at.channel.gone(at.number, Gone::Left);
    next_client(&mut at);
}

#[test]
fn what_a_client_may_not_do_ends_its_connection_alone() {
    let mut at = Attached::start(&[]);
    let memory = memory();
    let five = [memory.as_fd(); 5];
    at.client.send_with(&message(1, b""), &five);
    at.channel.gone(at.number, Gone::TooManyFds);
    at.client.sees_the_end();
    next_client(&mut at);
    // As many as any message can have.
    at.client.send_with(&message(1, b""), &[memory.as_fd(); 32]);
    at.channel.gone(at.number, Gone::TooManyFds);
    next_client(&mut at);
    for wrong in [7_u32, 100_001, u32::MAX] {
        at.client.send(&[[0; 4], wrong.to_le_bytes()].concat());
        at.channel.gone(at.number, Gone::BadLength);
        next_client(&mut at);
    }
}

#[test]
fn what_is_neither_memory_nor_an_eventfd_is_exchanged_for_nothing() {
    let mut at = Attached::start(&[]);
    let memory = memory();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    at.client.send_with(&message(1, b""), &[memory.as_fd(), pipe.as_fd()]);
    let (number, fds) = at.channel.message(How::New, &message(1, b""));
    let seals: Vec<_> = fds.iter().map(|fd| rustix::fs::fcntl_get_seals(fd).is_ok()).collect();
    assert_eq!(seals, [true, true], "an empty memory in the pipe's place");
    at.channel.answer(at.number, number, true, b"yes");
    at.client.reads(b"yes");
}

#[test]
fn descriptors_come_with_the_message_that_they_were_sent_with() {
    let mut at = Attached::start(&[]);
    let (one, two) = (memory(), memory());
    for (fd, bytes) in [(&one, 11), (&two, 22)] {
        rustix::fs::ftruncate(fd, bytes).unwrap();
    }
    at.client.send_with(&message(1, b"a"), &[one.as_fd()]);
    at.client.send(&message(2, b"b"));
    // In pieces, each with one.
    let whole = message(3, b"pieces");
    at.client.send_with(&whole[..3], &[two.as_fd()]);
    at.client.send_with(&whole[3..], &[one.as_fd()]);
    for (number, bytes, sizes) in
        [(1, message(1, b"a"), vec![11]), (2, message(2, b"b"), vec![]), (3, whole, vec![22, 11])]
    {
        let (got, fds) = at.channel.message(How::New, &bytes);
        assert_eq!(got, number);
        let found: Vec<_> = fds.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_size).collect();
        assert_eq!(found, sizes);
        at.channel.answer(at.number, number, false, b"");
    }
}

#[test]
fn a_message_that_is_never_finished_and_replies_that_are_never_read_end_a_connection() {
    let mut at = Attached::start(&[]);
    at.client.send(&message(1, b"long")[..9]);
    at.channel.gone(at.number, Gone::Stalled);
    next_client(&mut at);
    let much = vec![0; 100_000];
    for number in 2.. {
        if at.client.0.write_all(&message(number, b"")).is_err() {
            break;
        }
        match at.channel.told() {
            Told::Message { number, .. } => at.channel.answer(at.number, number, false, &much),
            told => {
                assert_eq!(told, Told::Gone { client: at.number, why: Gone::NotReading });
                break;
            }
        }
    }
    next_client(&mut at);
}

#[test]
fn a_client_that_floods_is_read_one_message_at_a_time() {
    let mut at = Attached::start(&[]);
    at.client.0.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while at.client.0.write_all(&message(1, &[0; 10_000])).is_ok() {}
    let (number, _) = at.channel.message(How::New, &message(1, &[0; 10_000]));
    at.channel.answer(at.number, number, false, b"");
    at.channel.message(How::New, &message(1, &[0; 10_000]));
}

#[test]
fn more_than_can_be_kept_is_not() {
    let mut at = Attached::start(&[]);
    let bytes = message(1, &[0; 90_000]);
    let told = loop {
        let _ = at.client.0.write_all(&bytes);
        match at.channel.told() {
            Told::Message { number, .. } => at.channel.answer(at.number, number, true, b""),
            told => break told,
        }
    };
    let why = Gone::Socket(rustix::io::Errno::NOBUFS.raw_os_error());
    assert_eq!(told, Told::Gone { client: at.number, why });
    next_client(&mut at);
}

/// Sockets whose last close waits until their peers read what they sent, or for a minute: it is more than their peers'
/// buffers take.
fn lingering<const N: usize>() -> [(TcpStream, TcpStream); N] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    std::array::from_fn(|_| {
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        sockopt::set_socket_linger(&ours, Some(PATIENCE)).unwrap();
        sockopt::set_socket_send_buffer_size(&ours, 1 << 18).unwrap();
        ours.set_nonblocking(true).unwrap();
        let written: usize = std::iter::from_fn(|| ours.write(&[0; 65_536]).ok()).sum();
        assert!(written > 1 << 17, "{written}");
        (ours, theirs)
    })
}

#[test]
fn a_descriptor_that_hangs_when_closed_holds_nobody_else_up() {
    let mut at = Attached::start(&[]);
    at.channel.say(&Said::Close { client: at.number });
    at.channel.gone(at.number, Gone::Left);
    at.client = Client::connect(&at.path);
    let [(hanging, other_end)] = lingering();
    at.client.send_with(&message(1, b"have this"), &[hanging.as_fd()]);
    // The keeper has the last one, once it takes the client.
    drop(hanging);
    at.channel.accept();
    at.number = at.channel.client(false);
    at.channel.gone(at.number, Gone::ForeignFd);
    at.client.sees_the_end();
    let (listener, path) = at.keeper.listener("other");
    let channel = at.daemon.keep("other", &[listener.as_fd()]);
    channel.accept();
    let _client = Client::connect(&path);
    channel.client(false);
    // Nor its own device: only such messages are refused, until the file is closed.
    next_client(&mut at);
    let _channel = at.daemon.take_over("db", true);
    let forget = client_socket::keeping::wire::Request::Forget("db".into());
    assert_eq!(at.daemon.ask(&forget, &[]).0, client_socket::keeping::wire::Answer::Done);
    drop(other_end);
}

#[test]
fn clients_that_leave_what_hangs_again_and_again_are_not_served_without_end() {
    let mut at = Attached::start(&[]);
    let mut other_ends = Vec::new();
    // Each leaves a connection behind that can't be closed. The keeper has 16 of them at most, and sometimes the kernel
    // closes one by itself.
    while other_ends.len() < 32 {
        if !other_ends.is_empty() {
            let mut channel = [PollFd::new(&at.channel.0, PollFlags::IN)];
            if poll(&mut channel, Some(&Timespec { tv_sec: 0, tv_nsec: 500_000_000 })).unwrap() == 0 {
                break;
            }
            at.number = at.channel.client(false);
        }
        let [(hanging, other_end)] = lingering();
        // In the second message, which nobody takes.
        at.client.send(&message(1, b""));
        at.channel.message(How::New, &message(1, b""));
        at.client.send_with(&message(2, b""), &[hanging.as_fd()]);
        drop(hanging);
        other_ends.push(other_end);
        at.channel.say(&Said::Close { client: at.number });
        at.channel.gone(at.number, Gone::Left);
        at.channel.accept();
        at.client = Client::connect(&at.path);
    }
    assert!(other_ends.len() < 32, "all are served");
    // The next one waits until the others are closed.
    drop(other_ends);
    at.channel.client(false);
}

#[test]
fn other_devices_have_their_own_clients() {
    let keeper = Keeper::start(&[]);
    let daemon = Daemon::connect(&keeper.socket());
    let attached: Vec<_> = (0..20)
        .map(|n| {
            let name = format!("d{n}");
            let (listener, path) = keeper.listener(&name);
            let channel = daemon.keep(&name, &[listener.as_fd()]);
            channel.accept();
            let client = Client::connect(&path);
            (channel, client)
        })
        .collect();
    let mut numbers: Vec<u64> = attached.iter().map(|(channel, _)| channel.client(false)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20);
}
