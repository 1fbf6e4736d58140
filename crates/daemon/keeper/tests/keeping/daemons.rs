//! Daemons that come and go.

use std::os::fd::AsFd;

use client_socket::keeping::wire::{Answer, How, Request, Said, Told, VERSION};
use rustix::process::Signal;

use super::sides::{Attached, Channel, Client, Daemon, FRAMING, Keeper, Side, memory, message};

#[test]
fn what_was_kept_is_told_in_its_order_and_what_was_not_answered_again() {
    let mut at = Attached::start(&[]);
    let memory = memory();
    at.client.send_with(&message(1, b"first"), &[memory.as_fd()]);
    let (number, fds) = at.channel.message(How::New, &message(1, b"first"));
    assert_eq!(fds.len(), 1);
    at.channel.answer(at.number, number, true, b"reply 1");
    at.client.reads(b"reply 1");
    at.client.send(&message(2, b"not kept"));
    let (number, _) = at.channel.message(How::New, &message(2, b"not kept"));
    at.channel.answer(at.number, number, false, b"reply 2");
    at.client.reads(b"reply 2");
    at.client.send(&message(3, b"second"));
    let (number, _) = at.channel.message(How::New, &message(3, b"second"));
    at.channel.answer(at.number, number, true, b"");
    at.client.send(&[message(4, b"asks"), message(5, b"next")].concat());
    at.channel.message(How::New, &message(4, b"asks"));
    // Two daemons in a row die with that.
    for _ in 0..2 {
        at.next_daemon(true);
        at.channel.accept();
        assert_eq!(at.channel.client(true), at.number);
        let (_, fds) = at.channel.message(How::Kept, &message(1, b"first"));
        assert_eq!(fds.len(), 1, "the memory is still there");
        at.channel.message(How::Kept, &message(3, b"second"));
        at.channel.restored(at.number);
        let (number, _) = at.channel.message(How::Again, &message(4, b"asks"));
        assert_eq!(number, 4);
    }
    at.channel.say(&Said::Answer { client: at.number, number: 4, keep: false, forget: vec![1, 77], bytes: vec![9] });
    at.client.reads(&[9]);
    at.channel.message(How::New, &message(5, b"next"));
    at.next_daemon(true);
    at.channel.accept();
    at.channel.client(true);
    at.channel.message(How::Kept, &message(3, b"second"));
    at.channel.restored(at.number);
    at.channel.message(How::Again, &message(5, b"next"));
}

#[test]
fn a_message_that_no_daemon_was_told_comes_as_a_new_one() {
    let mut at = Attached::start(&[]);
    at.next_daemon(true);
    at.client.send(&message(1, b"into the void"));
    at.channel.accept();
    at.channel.client(true);
    at.channel.restored(at.number);
    at.channel.message(How::New, &message(1, b"into the void"));
    // An answer to something else has no effect, nor has one for another client.
    at.channel.answer(at.number, 99, false, b"no");
    at.channel.answer(at.number + 1, 1, false, b"no");
    at.channel.answer(at.number, 1, false, b"yes");
    at.client.reads(b"yes");
}

#[test]
fn a_daemon_that_dies_before_it_accepts_changes_nothing() {
    let keeper = Keeper::start(&[]);
    let (listener, path) = keeper.listener("db");
    let daemon = Daemon::connect(&keeper.socket());
    let channel = daemon.keep("db", &[listener.as_fd()]);
    let mut client = Client::connect(&path);
    client.send(&message(1, b"early"));
    drop((daemon, channel));
    let daemon = Daemon::connect(&keeper.socket());
    // It waits in the socket's own queue: nobody wanted it yet.
    let channel = daemon.take_over("db", false);
    channel.accept();
    let number = channel.client(false);
    channel.message(How::New, &message(1, b"early"));
    channel.answer(number, 1, false, b"hello");
    client.reads(b"hello");
}

#[test]
fn a_reply_that_was_sent_in_part_goes_on_without_its_daemon() {
    let mut at = Attached::start(&[]);
    // More than a socket takes at once.
    let reply: Vec<u8> = (0..130_000_u32).flat_map(|n| [(n % 251) as u8]).collect();
    for number in 1..=8 {
        at.client.send(&message(number, b"much, please"));
    }
    let mut number = 0;
    for _ in 0..2 {
        number = at.channel.message(How::New, &message(number as u32 + 1, b"much, please")).0;
        at.channel.answer(at.number, number, false, &reply);
    }
    at.next_daemon(true);
    at.channel.accept();
    at.channel.client(true);
    at.channel.restored(at.number);
    for _ in 0..2 {
        at.client.reads(&reply);
    }
    for number in 3..=8 {
        at.channel.message(How::New, &message(number, b"much, please"));
        at.channel.answer(at.number, number.into(), false, &[number as u8]);
        at.client.reads(&[number as u8]);
    }
}

#[test]
fn a_second_daemon_waits_for_the_end_of_the_first() {
    let mut at = Attached::start(&[]);
    let second = Daemon::connect_silently(&at.keeper.socket());
    second.say(&Request::Hello { version: VERSION }.encode());
    at.client.send(&message(1, b"hi"));
    at.channel.message(How::New, &message(1, b"hi"));
    drop(std::mem::replace(&mut at.daemon, second));
    assert_eq!(at.daemon.hear().unwrap().0, Answer::Hello { version: VERSION });
    // It takes the device from the one that still has its channel.
    let before = std::mem::replace(&mut at.channel, at.daemon.take_over("db", true));
    assert!(before.hear().is_none());
    at.channel.accept();
    at.channel.client(true);
}

#[test]
fn what_is_forgotten_is_gone() {
    let keeper = Keeper::start(&[]);
    let daemon = Daemon::connect(&keeper.socket());
    let attach = |name: &str| {
        let (listener, path) = keeper.listener(name);
        let channel = daemon.keep(name, &[listener.as_fd()]);
        channel.accept();
        let client = Client::connect(&path);
        channel.client(false);
        (channel, client)
    };
    let (_a, mut client_a) = attach("a");
    let (_b, mut client_b) = attach("b");
    let (_c, client_c) = attach("c");
    assert_eq!(daemon.ask(&Request::Forget("a".into()), &[]).0, Answer::Done);
    client_a.sees_the_end();
    assert_eq!(daemon.ask(&Request::Find("a".into()), &[]).0, Answer::Unknown);
    assert_eq!(daemon.ask(&Request::ForgetOthers, &[]).0, Answer::Done);
    drop(daemon);
    let daemon = Daemon::connect(&keeper.socket());
    let _c = daemon.take_over("c", true);
    assert_eq!(daemon.ask(&Request::ForgetOthers, &[]).0, Answer::Done);
    client_b.sees_the_end();
    assert_eq!(daemon.ask(&Request::Find("b".into()), &[]).0, Answer::Unknown);
    assert!(!client_socket::has_hung_up(&client_c.0));
}

#[test]
fn a_daemon_that_makes_no_sense_is_not_served() {
    let mut at = Attached::start(&[]);
    at.channel.say(&Said::Close { client: at.number + 7 });
    client_socket::send_whole(&at.channel.0, b"what?", &[]).unwrap();
    assert!(at.channel.hear().is_none());
    let refuses = |answer: Answer| assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    refuses(at.daemon.ask(&Request::Keep("x".into(), FRAMING), &[]).0);
    refuses(at.daemon.ask(&Request::Keep("x".into(), FRAMING), &[memory().as_fd()]).0);
    at.daemon.say(b"what?");
    assert!(at.daemon.hear().is_none());
    // Nor is one that does not say hello, or has another version.
    let silent = Daemon::connect_silently(&at.keeper.socket());
    silent.say(&Request::ForgetOthers.encode());
    assert!(silent.hear().is_none());
    let newer = Daemon::connect_silently(&at.keeper.socket());
    assert_eq!(newer.ask(&Request::Hello { version: 9 }, &[]).0, Answer::Hello { version: VERSION });
    newer.say(&Request::ForgetOthers.encode());
    assert!(newer.hear().is_none());
    // Its client is still there.
    at.next_daemon(true);
    at.channel.accept();
    at.channel.client(true);
    at.client.send(&message(1, b""));
    at.channel.told();
}

#[test]
fn a_client_without_daemon_is_given_up_at_last() {
    let mut at = Attached::start(&["--give-up-after", "1"]);
    drop(std::mem::replace(&mut at.channel, Channel(memory())));
    at.client.sees_the_end();
    at.next_daemon(false);
}

#[test]
fn a_signal_ends_it_and_everybody_sees_that() {
    let mut at = Attached::start(&[]);
    assert!(at.keeper.socket().exists());
    at.keeper.signal(Signal::TERM);
    at.client.sees_the_end();
    assert!(at.keeper.child.wait().unwrap().success());
    assert!(!at.keeper.socket().exists());
    assert!(at.channel.hear().is_none() && at.daemon.hear().is_none());
}

#[test]
fn two_keepers_do_not_share_a_socket() {
    let keeper = Keeper::start(&[]);
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_evenkeel-keeper")).arg(keeper.socket()).output();
    let told = String::from_utf8(second.unwrap().stderr).unwrap();
    assert!(told.contains("another keeper listens there"), "{told}");
}

/// Eight clients with a hundred descriptors each were once enough that no other disk could be made, late clients got no
/// answer, and the next daemon had nothing.
#[test]
fn clients_that_leave_descriptors_leave_room_for_others_and_for_the_next_daemon() {
    let keeper = Keeper::start_with_open_files(1024);
    let daemon = Daemon::connect(&keeper.socket());
    let memory = memory();
    let leave = |at: &mut Side, most: usize| -> usize {
        for left in 0..most {
            at.client.send_with(&message(1, b""), &[memory.as_fd(); 4]);
            match at.channel.told() {
                Told::Message { number, .. } => at.channel.answer(at.number, number, true, b""),
                Told::Gone { .. } => return left,
                told => panic!("{told:?}"),
            }
        }
        most
    };
    let mut greedy: Vec<Side> = (0..8).map(|n| Side::start(&keeper, &daemon, &format!("greedy{n}"))).collect();
    for at in &mut greedy {
        let left = leave(at, 1000);
        assert!((8..500).contains(&left), "{left}");
    }
    // Those that end before they have too much keep what they have.
    let mut moderate: Vec<Side> = (0..8).map(|n| Side::start(&keeper, &daemon, &format!("moderate{n}"))).collect();
    for at in &mut moderate {
        assert_eq!(leave(at, 6), 6);
    }
    drop(daemon);
    let daemon = Daemon::connect(&keeper.socket());
    for at in moderate {
        let channel = daemon.take_over(&at.name, true);
        channel.accept();
        channel.client(true);
        for _ in 0..6 {
            assert_eq!(channel.message(How::Kept, &message(1, b"")).1.len(), 4);
        }
        channel.restored(at.number);
    }
}
