//! Resets, shutdowns, and guest memory that comes and goes.

use std::os::fd::AsFd;

use bytemuck::Zeroable;
use guest_memory::Mapping;
use io_model::{DeviceError, Source};
use nvme_controller::Event;
use nvme_spec::log::{SmartLog, lid};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::pci::{capability, express};
use nvme_spec::regs::{Cc, Csts, NSSR_RESET, Reg};
use nvme_spec::{Sqe, Status};
use test_clients::rings::{Cq, Sq};

use crate::host::{Host, PLACE, RAM_BYTES, RAM_IOVA, config, flush, rw};

/// A host with three reads in flight and one more in the ring.
fn busy() -> Host {
    let mut host = Host::ready();
    let page = host.alloc(4096);
    for _ in 0..3 {
        host.submit(1, Sqe { dptr: [page, 0], ..rw(nvm::READ, 0, 8) });
    }
    host.fetch_all();
    host.submit(1, flush());
    host
}

#[test]
fn a_reset_is_done_when_nothing_is_in_flight() {
    let mut host = busy();
    host.set32(Reg::Cc, 0);
    assert_eq!(host.controller.live_vqs(), 0);
    assert!(host.csts().rdy());
    host.finish_one();
    host.finish_one();
    assert!(host.csts().rdy() && !host.controller.is_idle());
    host.finish_one();
    assert!(!host.csts().rdy() && host.controller.is_idle());
    assert_eq!(host.completions(1), [], "late completions are swallowed");
    host.enable(32);
    host.create_pair(1, 64);
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
}

#[test]
fn an_enable_during_a_reset_waits_for_its_end() {
    let mut host = busy();
    host.set32(Reg::Cc, 0);
    host.set32(Reg::Cc, Cc::enable_nvm().0);
    assert_eq!(host.controller.live_vqs(), 0);
    host.finish_all();
    assert!(host.csts().rdy());
    assert_eq!(host.controller.live_vqs(), 1);
}

#[test]
fn a_shutdown_asked_for_during_a_reset_is_not_forgotten() {
    let mut host = Host::ready();
    host.submit(1, flush());
    host.fetch_all();
    host.controller.reset();
    host.enable(32);
    assert!(!host.csts().rdy());
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    assert_eq!(host.csts().shst(), Csts::SHST_BUSY);
    host.finish_all();
    assert_eq!((host.csts().rdy(), host.csts().shst()), (true, Csts::SHST_DONE));
    host.set32(Reg::Cc, 0);
    assert_eq!(host.csts(), Csts(0));
}

#[test]
fn a_shutdown_waits_for_what_is_in_flight() {
    for shn in [Cc::SHN_NORMAL, Cc::SHN_ABRUPT] {
        let mut host = busy();
        host.set32(Reg::Cc, Cc::enable_nvm().with_shn(shn).0);
        assert_eq!(host.csts().shst(), Csts::SHST_BUSY);
        assert_eq!((host.controller.live_vqs(), host.controller.backlog(1)), (0, 0));
        host.finish_all();
        assert_eq!(host.csts().shst(), Csts::SHST_DONE);
        assert_eq!(host.completions(1).len(), 3);
        // Only a reset brings it back.
        host.set32(Reg::Cc, 0);
        assert_eq!(host.csts(), Csts(0));
        host.enable(32);
        host.create_pair(1, 64);
        assert_eq!(host.io(flush()).status(), Status::SUCCESS);
    }
    let mut disabled = Host::new(config());
    disabled.set32(Reg::Cc, Cc(0).with_shn(Cc::SHN_NORMAL).0);
    assert_eq!(disabled.csts().shst(), Csts::SHST_DONE);
}

/// A host that wrote a block.
fn written() -> Host {
    let mut host = Host::ready();
    let page = host.alloc(4096);
    assert_eq!(host.io(Sqe { dptr: [page, 0], ..rw(nvm::WRITE, 0, 8) }).status(), Status::SUCCESS);
    host.seen.clear();
    host
}

#[test]
fn a_shutdown_flushes_what_was_written() {
    for shn in [Cc::SHN_NORMAL, Cc::SHN_ABRUPT] {
        let shut_down = Cc::enable_nvm().with_shn(shn).0;
        let mut host = written();
        host.set32(Reg::Cc, shut_down);
        assert_eq!((host.csts().shst(), host.controller.live_vqs()), (Csts::SHST_BUSY, 1));
        host.fetch_all();
        assert_eq!(host.seen, [PLACE.flush()]);
        assert_eq!(host.csts().shst(), Csts::SHST_BUSY, "the flush is with the drive");
        host.finish_all();
        assert_eq!((host.csts().shst(), host.controller.live_vqs()), (Csts::SHST_DONE, 0));

        // Flushed by the guest: there is nothing to wait for.
        let mut host = written();
        host.io(flush());
        host.set32(Reg::Cc, shut_down);
        assert_eq!((host.csts().shst(), host.controller.live_vqs()), (Csts::SHST_DONE, 0));
    }
}

#[test]
fn a_shutdown_ends_also_when_its_flush_fails() {
    let mut host = written();
    host.fail = Some(DeviceError::Medium);
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    host.run();
    assert_eq!((host.csts().shst(), host.seen.len()), (Csts::SHST_DONE, 1));
    assert_eq!(host.events, [Event::FlushFailed(DeviceError::Medium)]);
}

#[test]
fn a_write_in_flight_at_a_shutdown_is_flushed_after_it_ended() {
    let mut host = written();
    host.io(flush());
    let page = host.alloc(4096);
    host.submit(1, Sqe { dptr: [page, 0], ..rw(nvm::WRITE, 0, 8) });
    host.fetch_all();
    host.set32(Reg::Cc, Cc::enable_nvm().with_shn(Cc::SHN_NORMAL).0);
    assert_eq!(host.controller.live_vqs(), 0);
    host.run();
    assert_eq!(host.seen.last(), Some(&PLACE.flush()));
    assert_eq!((host.seen.len(), host.csts().shst()), (3, Csts::SHST_DONE));
}

#[test]
fn a_client_that_goes_waits_for_its_flush() {
    let mut host = written();
    host.controller.client_gone();
    assert!(!host.controller.is_idle());
    host.run();
    assert!(host.controller.is_idle());
    assert_eq!(host.seen, [PLACE.flush()]);
    host.controller.client_gone();
    assert!(host.controller.is_idle(), "once is enough");
    // A reset alone loses nothing that a later flush would not save.
    let mut host = written();
    host.controller.reset();
    assert!(host.controller.is_idle());
    host.controller.client_gone();
    host.run();
    assert_eq!(host.seen, [PLACE.flush()]);
}

#[test]
fn a_subsystem_reset_is_remembered_until_it_is_cleared() {
    let mut host = busy();
    host.set32(Reg::Nssr, 0x1234);
    assert!(host.csts().rdy());
    host.set32(Reg::Nssr, NSSR_RESET);
    assert_eq!((host.csts(), host.reg32(Reg::Cc), host.reg32(Reg::Aqa)), (Csts(Csts::NSSRO), 0, 0));
    host.finish_all();
    assert_eq!(host.completions(1), []);
    host.enable(32);
    assert_eq!(host.csts(), Csts(Csts::NSSRO | Csts::RDY));
    host.set32(Reg::Csts, Csts::NSSRO);
    assert_eq!(host.csts(), Csts(Csts::RDY));
}

#[test]
fn a_function_level_reset_resets_everything_but_memory() {
    let mut host = busy();
    let express_at = host.capability(capability::EXPRESS);
    host.controller.config_write(4, &[6, 0]);
    let control = express_at + express::DEVICE_CONTROL;
    host.controller.config_write(control as u64, &(express::INITIATE_FLR | 0x2810).to_le_bytes());
    assert_eq!(host.config32(control) & 0xffff, 0x2810, "the bit reads as 0");
    assert_eq!(host.config32(4) & 0xffff, 0);
    assert_eq!((host.csts(), host.reg64(Reg::Asq)), (Csts(0), 0));
    // Enabled before everything came back: ready only then.
    host.enable(32);
    assert!(!host.csts().rdy());
    host.finish_all();
    assert!(host.csts().rdy());
    host.create_pair(1, 64);
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
}

#[test]
fn a_client_that_is_gone_leaves_its_memory_when_it_is_quiet() {
    let mut host = busy();
    host.controller.client_gone();
    assert_eq!((host.controller.take_unmapped(&mut ()), host.controller.unmaps_pending()), (None, 1));
    host.finish_all();
    assert!(host.controller.is_idle());
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    assert_eq!((host.controller.take_unmapped(&mut ()), host.controller.unmaps_pending()), (None, 0));
    // Another client finds a fresh controller, which knows what happened.
    host.map_ram();
    host.enable(32);
    let data = host.alloc(4096);
    let log =
        Sqe { opc: admin::GET_LOG_PAGE, cdw10: u32::from(lid::SMART) | 127 << 16, dptr: [data, 0], ..Sqe::zeroed() };
    assert_eq!(host.admin(log).status(), Status::SUCCESS);
    let smart: SmartLog = bytemuck::pod_read_unaligned(&host.read(data, 512));
    assert_eq!((smart.power_cycles[0], smart.unsafe_shutdowns[0]), (2, 1));
}

#[test]
fn memory_may_go_and_come_back_under_a_running_guest() {
    let mut host = busy();
    host.completions(0);
    host.controller.dma_unmap(RAM_IOVA, RAM_BYTES).expect("mapped");
    // The queues halt, and what is in flight keeps the memory until it is done.
    assert_eq!((host.controller.backlog(1), host.controller.backlog(0)), (0, 0));
    assert!(matches!(host.controller.fetch(1), io_model::Fetch::Empty));
    assert_eq!(host.controller.take_unmapped(&mut ()), None);
    host.finish_one();
    assert_eq!(host.controller.take_unmapped(&mut ()), None);
    host.finish_all();
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    assert_eq!(host.completions(1), [], "completions are kept aside");
    host.vectors.take();
    host.map_ram();
    host.controller.notify();
    assert_eq!(host.vectors.take(), [0]);
    assert_eq!(host.completions(1).len(), 3);
    assert_eq!(host.controller.backlog(1), 1);
    host.run();
    assert_eq!(host.completions(1).len(), 1);
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
}

#[test]
fn only_queues_in_the_range_halt() {
    let mut host = Host::ready();
    // Another range, with queue 2's rings and some data.
    let (other, at) = (0x4000_0000, RAM_IOVA + (32 << 20));
    let map = |host: &mut Host| {
        let mapping = Mapping::shared(host.ram_fd.as_fd(), 32 << 20, 1 << 20, true).expect("mappable");
        host.controller.dma_map(other, 1 << 20, Some(mapping), &mut ()).expect("free");
    };
    map(&mut host);
    let cq = Sqe { dptr: [other, 0], ..host.create_cq_sqe(2, 16, 2) };
    let sq = Sqe { dptr: [other + 4096, 0], ..host.create_sq_sqe(2, 16, 2) };
    assert_eq!((host.admin(cq).status(), host.admin(sq).status()), (Status::SUCCESS, Status::SUCCESS));
    host.cqs.insert(2, Cq::new(at, 16));
    host.sqs.insert(2, Sq::new(at + 4096, 16, 2));
    assert_eq!(host.command(2, flush()).status(), Status::SUCCESS);

    let data = Sqe { dptr: [other + 8192, 0], ..rw(nvm::READ, 0, 8) };
    assert_eq!(host.io(data).status(), Status::SUCCESS);
    host.controller.dma_unmap(other, 1 << 20).expect("mapped");
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((other, 1 << 20)));
    host.submit(2, flush());
    assert_eq!(host.controller.backlog(2), 0);
    assert_eq!(host.io(data).status(), Status::DATA_TRANSFER_ERROR);
    map(&mut host);
    assert_eq!(host.io(data).status(), Status::SUCCESS);
    host.run();
    assert_eq!(host.completions(2).len(), 1);
}

#[test]
fn shadow_pages_halt_queues_too() {
    let mut host = Host::ready();
    let (shadow, events, at) = (0x4000_0000u64, 0x4000_1000u64, RAM_IOVA + (32 << 20));
    let map = |host: &mut Host| {
        let mapping = Mapping::shared(host.ram_fd.as_fd(), 32 << 20, 8192, true).expect("mappable");
        host.controller.dma_map(shadow, 8192, Some(mapping), &mut ()).expect("free");
    };
    map(&mut host);
    let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: [shadow, events], ..Sqe::zeroed() };
    assert_eq!(host.admin(sqe).status(), Status::SUCCESS);
    host.shadow = Some(at);
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
    host.submit(1, flush());
    host.fetch_all();
    host.controller.dma_unmap(shadow, 8192).expect("mapped");
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((shadow, 8192)));
    host.submit(1, flush());
    assert_eq!(host.controller.backlog(1), 0);
    host.finish_all();
    assert_eq!(host.peek_completion(1), None);
    // The admin queue does not depend on them.
    assert_eq!(host.admin(Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() }).status(), Status::SUCCESS);
    map(&mut host);
    host.run();
    assert_eq!(host.completions(1).len(), 2);
}

#[test]
fn memory_that_the_controller_may_not_write_takes_no_data() {
    let mut host = Host::ready();
    let mapping = Mapping::shared(host.ram_fd.as_fd(), 0, 4096, false).expect("mappable");
    host.controller.dma_map(0x4000_0000, 4096, Some(mapping), &mut ()).expect("free");
    host.controller.dma_map(0x5000_0000, 4096, None, &mut ()).expect("free");
    let to = |opc, iova| Sqe { dptr: [iova, 0], ..rw(opc, 0, 8) };
    assert_eq!(host.io(to(nvm::WRITE, 0x4000_0000)).status(), Status::SUCCESS);
    assert_eq!(host.io(to(nvm::READ, 0x4000_0000)).status(), Status::DATA_TRANSFER_ERROR);
    for opc in [nvm::READ, nvm::WRITE] {
        assert_eq!(host.io(to(opc, 0x5000_0000)).status(), Status::DATA_TRANSFER_ERROR);
    }
}

#[test]
fn a_host_that_takes_its_memory_away_stops_its_controller_until_another_comes() {
    guest_memory::install().expect("a handler");
    let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&file, RAM_BYTES).expect("a size");
    let mut host = Host::new(config());
    host.controller.client_gone();
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    (host.ram, host.ram_fd) = (Mapping::shared(file.as_fd(), 0, RAM_BYTES, true).expect("mappable"), file);
    host.map_ram();
    host.enable(32);
    host.create_pair(1, 64);
    host.submit(1, flush());
    assert_eq!(host.fetch_all(), 1);
    host.submit(1, flush());
    rustix::fs::ftruncate(&host.ram_fd, 0).expect("a size");
    // What is left in the ring can't be read: nothing more is fetched, and what is in flight does not succeed.
    assert!(matches!(host.controller.fetch(1), io_model::Fetch::Empty));
    assert!(host.controller.memory_is_lost());
    assert_eq!(host.csts(), Csts(Csts::CFS | Csts::RDY));
    assert_eq!((host.controller.live_vqs(), host.controller.backlog(1), host.controller.service()), (0, 0, 0));
    host.finish_all();
    host.controller.client_gone();
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
    assert!(!host.controller.memory_is_lost());
    // A flush that did not succeed is owed.
    host.run();
    assert!(host.controller.is_idle());
    assert_eq!(host.csts(), Csts(0));
}
