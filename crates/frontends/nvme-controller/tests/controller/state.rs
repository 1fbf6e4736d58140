//! A controller's state saved and restored, with I/O before and after.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytemuck::Zeroable;
use guest_memory::Mapping;
use io_model::{DeviceError, Fetch, Source};
use nvme_controller::{Controller, ControllerConfig, Doorbells, Event, GivenUp, StateError, crash_at, journal_bytes};
use nvme_spec::feature::fid;
use nvme_spec::log::lid;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::{Sqe, Status};

use crate::host::{Host, OTHERS_BYTES, config, flush, namespace, rw};

/// Puts a controller that goes on from the journal in place of the old one.
fn hand_over(host: &mut Host) {
    let configuration = host.controller.config();
    host.take_over(configuration).expect("a state that was just recorded");
}

#[test]
fn a_guest_does_not_notice_that_its_controller_was_replaced() {
    for mode in [Doorbells::Mapped, Doorbells::Trapped] {
        for shadow in [false, true] {
            let mut host = Host::ready_with(nvme_controller::ControllerConfig { doorbells: mode, ..config() });
            host.create_sq(2, 16, 1);
            host.create_pair(3, 8);
            if shadow {
                let pages = [host.alloc(4096), host.alloc(4096)];
                let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: pages, ..Sqe::zeroed() };
                assert_eq!(host.admin(sqe).status(), Status::SUCCESS);
                host.shadow = Some(pages[0]);
            }
            let aer = host.submit(0, Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() });
            let threshold = fid::TEMPERATURE_THRESHOLD.into();
            host.admin(Sqe { opc: admin::SET_FEATURES, cdw10: threshold, cdw11: 300, ..Sqe::zeroed() });
            let data = host.alloc(4096);
            for round in 0..10u8 {
                host.write(data, &[round; 4096]);
                let write = host.rw(nvm::WRITE, u64::from(round) * 8, 8, data, 4096);
                // Odd lengths, so that indexes and phases differ everywhere.
                for qid in [1, 2, 3] {
                    for _ in 0..=round % 5 {
                        assert_eq!(host.command(qid, write).status(), Status::SUCCESS);
                    }
                }
                // Commands in the ring, and completions that the host has not read.
                host.submit(3, flush());
                host.run();
                host.submit(1, write);
                hand_over(&mut host);
                host.vectors.take();
                host.controller.notify();
                assert!(!host.vectors.take().is_empty(), "an interrupt may have been lost");
                assert_eq!(host.completions(3).len(), 1);
                host.run();
                assert_eq!(host.completions(1).len(), 1);
                assert_eq!(host.tenant()[usize::from(round) * 4096], round);
            }
            let get = Sqe { opc: admin::GET_FEATURES, cdw10: threshold, ..Sqe::zeroed() };
            assert_eq!(host.admin(get).dw0, 300);
            // The held event request is still held.
            host.controller.bar_write(0, 0x1000 + 8 * 40, &1u32.to_le_bytes());
            assert_eq!(host.next_completion(0).map(|cqe| cqe.cid), Some(aer));
            host.check_guards();
        }
    }
}

#[test]
fn a_full_completion_queue_is_still_full() {
    let mut host = Host::ready();
    host.create_pair(3, 8);
    for _ in 0..5 {
        host.submit(3, flush());
    }
    host.run();
    hand_over(&mut host);
    for _ in 0..5 {
        host.submit(3, flush());
    }
    host.seen.clear();
    host.run();
    assert_eq!(host.seen.len(), 2, "5 of 7 entries are unread");
    assert_eq!(host.completions(3).len(), 7);
    host.run();
    assert_eq!(host.completions(3).len(), 3);
}

#[test]
fn counters_logs_and_block_size_move_along() {
    let mut host = Host::ready();
    host.io(rw(nvm::READ, u64::MAX, 1));
    assert_eq!(
        host.admin(Sqe { opc: admin::FORMAT_NVM, nsid: 1, cdw10: 1, ..Sqe::zeroed() }).status(),
        Status::SUCCESS
    );
    hand_over(&mut host);
    assert_eq!(host.controller.config().namespaces[0].1.lba_bytes, 4096);
    let data = host.alloc(4096);
    let log = Sqe { opc: admin::GET_LOG_PAGE, cdw10: u32::from(lid::ERROR) | 15 << 16, ..Sqe::zeroed() };
    assert_eq!(host.admin(Sqe { dptr: [data, 0], ..log }).status(), Status::SUCCESS);
    assert_eq!(host.read(data, 8), 1u64.to_le_bytes());
}

#[test]
fn every_namespace_moves_along_and_what_came_and_went_meanwhile_is_told() {
    let mut several = config();
    several.namespaces.push((2, namespace(2, OTHERS_BYTES / 4, 4096)));
    several.namespaces.push((5, namespace(5, OTHERS_BYTES / 4, 4096)));
    let mut host = Host::ready_with(several);
    let recovery = |opc, nsid, cdw11| Sqe { opc, nsid, cdw10: fid::ERROR_RECOVERY.into(), cdw11, ..Sqe::zeroed() };
    assert_eq!(host.admin(recovery(admin::SET_FEATURES, 2, 7)).status(), Status::SUCCESS);
    let format = Sqe { opc: admin::FORMAT_NVM, nsid: 2, ..Sqe::zeroed() };
    assert_eq!(host.admin(format).status(), Status::SUCCESS);
    let wants = u32::from(fid::ASYNC_EVENT_CONFIG);
    let wants = Sqe { opc: admin::SET_FEATURES, cdw10: wants, cdw11: 1 << 8, ..Sqe::zeroed() };
    assert_eq!(host.admin(wants).status(), Status::SUCCESS);
    let data = host.alloc(4096);
    let changed = Sqe { opc: admin::GET_LOG_PAGE, cdw10: 4 | 1023 << 16, dptr: [data, 0], ..Sqe::zeroed() };
    assert_eq!(host.admin(changed).status(), Status::SUCCESS);
    let event = host.submit(0, Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() });
    host.run();

    hand_over(&mut host);
    assert_eq!(host.controller.config().namespaces.iter().map(|(nsid, _)| *nsid).collect::<Vec<_>>(), [1, 2, 5]);
    host.run();
    assert_eq!(host.next_completion(0), None, "nothing changed");
    assert_eq!(host.admin(recovery(admin::GET_FEATURES, 2, 0)).dw0, 7);
    assert_eq!(host.controller.config().namespaces[1].1.lba_bytes, 512);

    let mut other = host.controller.config();
    other.namespaces[2].0 = 6;
    host.take_over(other).expect("a state that was just recorded");
    host.run();
    assert_eq!(host.next_completion(0).map(|cqe| (cqe.cid, cqe.dw0)), Some((event, 0x04_00_02)));
    assert_eq!(host.admin(changed).status(), Status::SUCCESS);
    assert_eq!(host.read(data, 12), [5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn commands_in_flight_and_completions_that_wait_for_memory_move_along() {
    let mut host = Host::ready();
    let data = host.alloc(4096);
    host.write(data, &[7; 4096]);
    let write = host.rw(nvm::WRITE, 8, 8, data, 4096);
    let (first, second) = (host.submit(1, write), host.submit(1, flush()));
    host.fetch_all();
    hand_over(&mut host);
    assert!(host.in_flight.is_empty() && host.peek_completion(1).is_none());
    host.run();
    let ended: Vec<_> = host.completions(1).iter().map(|cqe| (cqe.cid, cqe.status())).collect();
    assert_eq!(ended, [(first, Status::SUCCESS), (second, Status::SUCCESS)]);
    assert_eq!(host.tenant()[4096..8192], [7; 4096]);

    // They ended, and nobody can be told: the status is kept, and the device is not asked again.
    let read = host.rw(nvm::READ, 8, 8, data, 4096);
    host.fail = Some(DeviceError::Medium);
    let failed = host.submit(1, read);
    host.fetch_all();
    host.controller.dma_unmap(crate::host::RAM_IOVA, crate::host::RAM_BYTES).expect("mapped");
    host.finish_all();
    host.seen.clear();
    hand_over(&mut host);
    host.run();
    assert!(host.seen.is_empty());
    let ended: Vec<_> = host.completions(1).iter().map(|cqe| (cqe.cid, cqe.status().code())).collect();
    assert_eq!(ended, [(failed, Status::UNRECOVERED_READ)]);
}

#[test]
fn a_queue_that_was_made_again_has_nothing_of_the_one_before() {
    let mut host = Host::ready();
    host.create_sq(2, 16, 1);
    assert_eq!(host.command(2, flush()).status(), Status::SUCCESS);
    let delete = Sqe { opc: admin::DELETE_SQ, cdw10: 2, ..Sqe::zeroed() };
    assert_eq!(host.admin(delete).status(), Status::SUCCESS);
    host.create_sq(2, 16, 1);
    // The first in its place, as the last one was that completed.
    let first = host.submit(2, flush());
    host.fetch_all();
    hand_over(&mut host);
    host.run();
    assert_eq!(host.completions(1).iter().map(|cqe| cqe.cid).collect::<Vec<_>>(), [first]);
}

#[test]
fn another_number_of_queues_is_told_whatever_the_length() {
    let host = Host::ready();
    let journal = host.journal.as_ref().expect("it keeps one");
    let were = config().max_io_queues;
    for are in [were - 1, were + 30] {
        let other = ControllerConfig { max_io_queues: are, ..config() };
        let made = Controller::take_over(other, Arc::clone(&host.doorbells), host.vectors.clone(), journal);
        let Err(told) = made else { panic!("{are} queues were taken for {were}") };
        assert_eq!(told.to_string(), format!("that has {were} queues, and `queues` is {are} now"));
    }
}

#[test]
fn a_damaged_journal_is_refused_or_harmless() {
    let mut host = Host::ready();
    host.submit(1, flush());
    host.fetch_all();
    let journal = Arc::clone(host.journal.as_ref().expect("it keeps one"));
    let mut good = vec![0; journal.len_bytes() as usize];
    journal.read_at(0, &mut good).expect("all of it");
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let mut refused = 0;
    for at in (0..24_576).chain(used) {
        for value in [0xff, 0x80, good[at] ^ 1] {
            journal.write_at(at as u64, &[value]).expect("in it");
            let made = Controller::take_over(config(), Arc::clone(&host.doorbells), host.vectors.clone(), &journal);
            let Ok(mut controller) = made else {
                refused += 1;
                continue;
            };
            for vq in 0..3 {
                controller.backlog(vq);
                let fetch = controller.fetch(vq);
                assert!(matches!(fetch, io_model::Fetch::Empty), "no memory is mapped");
            }
            controller.notify();
            // It writes a journal of its own there.
            drop(controller);
        }
        journal.write_at(0, &good).expect("all of it");
    }
    assert!(refused > 20);
    let (short, _) = Mapping::memfd("short", 4096).expect("memfd");
    let made = Controller::take_over(config(), Arc::clone(&host.doorbells), host.vectors.clone(), &short);
    assert!(matches!(made, Err(StateError::Invalid("the journal's length"))));
    let (other, _) = Mapping::memfd("other", journal.len_bytes() as usize).expect("memfd");
    other.write_at(4096 * 3, &[1; 4096]).expect("all of it");
    let made = Controller::take_over(config(), Arc::clone(&host.doorbells), host.vectors.clone(), &other);
    assert!(matches!(made, Err(StateError::Magic)));
}

/// A daemon that was killed as its client attached once cost that client its disk.
#[test]
fn a_process_that_ended_before_it_recorded_anything_is_followed_by_a_new_controller() {
    let host = Host::new(config());
    let len_bytes = usize::try_from(journal_bytes(&config())).expect("a length");
    let (blank, _) = Mapping::memfd("blank", len_bytes).expect("memfd");
    for _ in 0..2 {
        let made = Controller::take_over(config(), Arc::clone(&host.doorbells), host.vectors.clone(), &blank);
        let mut controller = made.expect("the second time it goes on from what the first recorded");
        controller.resume();
        assert_eq!(controller.taken_over(), 0);
    }
}

/// Fetches one command, which is in hand from then on.
fn fetch(host: &mut Host) {
    let Fetch::Command(command, buf, token) = host.controller.fetch(1) else { panic!("there is one") };
    host.in_flight.push((token, command, buf));
}

/// The offsets in bytes of the commands that are executed now.
fn executed(host: &mut Host) -> Vec<u64> {
    host.seen.clear();
    host.run();
    host.seen.iter().map(|command| command.tenant_offset_bytes).collect()
}

#[test]
fn a_command_that_ended_two_processes_gets_an_error_and_no_other_does() {
    let mut host = Host::ready();
    let data = host.alloc(4096);
    let [first, deadly, last] = [0, 8, 16].map(|lba| {
        let write = host.rw(nvm::WRITE, lba, 8, data, 4096);
        host.submit(1, write)
    });
    // Panics with no command in hand.
    for _ in 0..2 {
        fetch(&mut host);
        host.controller.take_work();
        nvme_controller::strike();
        hand_over(&mut host);
    }
    // Whether the process ends by a panic or is killed, and at the how-manyth command.
    for (is_panic, at) in [(true, 2), (false, 2), (false, 3), (false, 2), (true, 2)] {
        for nth in 1..=at {
            fetch(&mut host);
            if nth < at {
                host.controller.take_work();
            }
        }
        if is_panic {
            nvme_controller::strike();
            // A panic within a panic.
            nvme_controller::strike();
        }
        assert_eq!(host.events, []);
        hand_over(&mut host);
    }
    let given_up = GivenUp { qid: 1, opc: nvm::WRITE, nsid: 1, blocks: Some((8, 8)), strikes: 2 };
    assert_eq!(executed(&mut host), [0, 8192]);
    assert_eq!(host.events, [Event::GivenUp(given_up)]);
    let ended: Vec<_> = host.completions(1).iter().map(|cqe| (cqe.cid, cqe.status())).collect();
    let (good, bad) = (Status::SUCCESS, Status::INTERNAL_ERROR.dnr());
    assert_eq!(ended, [(deadly, bad), (first, good), (last, good)]);

    // The next ones in that place begin without strikes.
    let write = host.rw(nvm::WRITE, 8, 8, data, 4096);
    (0..3).for_each(|_| _ = host.submit(1, write));
    fetch(&mut host);
    nvme_controller::strike();
    hand_over(&mut host);
    assert_eq!(executed(&mut host), [4096; 3]);
    assert!(host.completions(1).iter().all(|cqe| cqe.status() == good));
}

#[test]
fn a_command_whose_completion_ends_two_processes_gets_an_error_too() {
    let mut host = Host::ready();
    for cid in [host.submit(1, flush()), host.submit(1, flush())] {
        for _ in 0..2 {
            fetch(&mut host);
            host.controller.take_work();
            crash_at(Some(1));
            let died = catch_unwind(AssertUnwindSafe(|| host.finish_one()));
            assert!(died.is_err(), "before the completion is posted");
            nvme_controller::strike();
            hand_over(&mut host);
        }
        let ended: Vec<_> = host.completions(1).iter().map(|cqe| (cqe.cid, cqe.status())).collect();
        assert_eq!(ended, [(cid, Status::INTERNAL_ERROR.dnr())]);
    }
}
