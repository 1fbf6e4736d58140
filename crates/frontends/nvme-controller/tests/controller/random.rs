//! Seeded random I/O to several namespaces, some of which come, grow and go, against a model of the disk: what is
//! read is what was written, nothing outside of the namespaces is touched, nothing touches one that is detached, every
//! command completes once, and no token is lost.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use io_model::Source;
use nvme_controller::{ControllerConfig, Doorbells, NamespaceConfig, Part};
use nvme_spec::data::{SglDescriptor, sgl_type};
use nvme_spec::feature::fid;
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::regs::{Cc, Reg};
use nvme_spec::vendor::FID_QUANTA;
use nvme_spec::{Sqe, Status};

use crate::expect::Expect;
use crate::host::{BASE_BYTES, Host, OTHERS_BYTES, SIZE_BYTES, base_of, config, flush, namespace, rw};
use crate::namespaces::of;

const QUEUES: u16 = 4;
/// Namespaces that there can be, besides the first, which stays as it is.
const OTHERS: std::ops::RangeInclusive<u32> = 2..=4;
/// They grow to this at most.
const OTHERS_MOST_BYTES: u64 = OTHERS_BYTES / 2;
const MAX_BYTES: u64 = 64 * 512;
/// Guest buffers: one per command in flight.
const BUFFERS: u64 = 64;
const BUFFER_BYTES: u64 = MAX_BYTES + 4096;

/// A command that was sent and not reaped.
struct Pending {
    expect: Expect,
    /// Its guest buffer, by index.
    buffer: Option<u64>,
    nsid: u32,
    /// Its namespace was detached since it was sent: it may have been too late.
    is_gone: bool,
    /// Bytes of the disk that it uses.
    range: Range<usize>,
}

/// A namespace that is attached.
#[derive(Clone, Copy)]
struct Its {
    size_bytes: u64,
    lba_bytes: u64,
}

struct Run {
    random: fastrand::Rng,
    host: Host,
    /// What the whole disk must hold.
    model: Vec<u8>,
    namespaces: BTreeMap<u32, Its>,
    buffers: u64,
    free: Vec<u64>,
    /// By queue and command identifier.
    pending: HashMap<(u16, u16), Pending>,
    done: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let doorbells = if random.u64(..2) == 0 { Doorbells::Mapped } else { Doorbells::Trapped };
        let part = Part { index: 0, of: random.u16(1..=QUEUES) };
        let mut config = ControllerConfig { doorbells, part, ..config() };
        config.namespaces.extend(OTHERS.map(|nsid| (nsid, namespace(nsid, OTHERS_BYTES / 4, 4096))));
        let its = |its: &NamespaceConfig| Its { size_bytes: its.size_bytes, lba_bytes: its.lba_bytes.into() };
        let namespaces = config.namespaces.iter().map(|(nsid, config)| (*nsid, its(config))).collect();
        let mut host = Host::new(config);
        let buffers = host.alloc(BUFFERS * BUFFER_BYTES);
        host.disk[BASE_BYTES as usize..][..SIZE_BYTES as usize].fill(0);
        let mut this = Self {
            random,
            model: host.disk.clone(),
            host,
            namespaces,
            buffers,
            free: (0..BUFFERS).collect(),
            pending: HashMap::new(),
            done: 0,
        };
        this.bring_up();
        this
    }

    fn bring_up(&mut self) {
        let is_whole = self.host.controller.part() == Part::WHOLE;
        let mechanisms = if is_whole { 3 } else { 1 };
        let ams = [Cc::AMS_ROUND_ROBIN, Cc::AMS_WEIGHTED, Cc::AMS_VENDOR][self.random.usize(..mechanisms)];
        self.host.enable_with(32, Cc::enable_nvm().with_ams(ams));
        let entries = [4, 16, 64][self.random.usize(..3)];
        self.host.create_pair(1, entries * 2);
        // Some queues share a completion queue.
        for qid in 2..=QUEUES {
            let qprio = self.random.u8(..4);
            if self.random.u64(..3) == 0 {
                self.host.create_sq_with(qid, entries, 1, qprio);
            } else {
                self.host.create_pair_with(qid, entries, qprio);
            }
        }
        if self.random.u64(..2) == 0 {
            let pages = [self.host.alloc(4096), self.host.alloc(4096)];
            let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: pages, ..Sqe::default() };
            assert_eq!(self.host.admin(sqe).status(), Status::SUCCESS);
            self.host.shadow = Some(pages[0]);
        }
    }

    fn step(&mut self) {
        match self.random.u64(..20) {
            0..=8 => self.submit(),
            9..=12 => {
                self.host.fetch_all();
            }
            13..=16 => self.finish_some(),
            17..=18 => self.reap(),
            _ if self.random.u64(..2) == 0 => self.change_namespaces(),
            _ => self.disturb(),
        }
        for nsid in OTHERS.filter(|nsid| self.host.controller.is_detached(*nsid)) {
            let is_used = self.host.in_flight.iter().any(|(_, command, _)| u32::from(command.disk) + 1 == nsid);
            assert!(!is_used, "namespace {nsid} counts as detached, and is in use");
        }
    }

    /// A namespace comes, grows or goes.
    fn change_namespaces(&mut self) {
        let nsid = self.random.u32(OTHERS);
        let size_bytes = OTHERS_BYTES / 8 + self.random.u64(..(OTHERS_MOST_BYTES - OTHERS_BYTES / 8) / 4096) * 4096;
        let controller = &mut self.host.controller;
        match self.namespaces.get_mut(&nsid) {
            Some(_) if self.random.u64(..3) == 0 => {
                controller.detach(nsid).expect("it is there");
                self.namespaces.remove(&nsid);
                let its = self.pending.values_mut().filter(|pending| pending.nsid == nsid);
                its.for_each(|pending| pending.is_gone = true);
            }
            Some(its) => {
                let grown = controller.grow(nsid, size_bytes);
                assert_eq!(grown.is_ok(), size_bytes >= its.size_bytes, "{grown:?}");
                its.size_bytes = its.size_bytes.max(size_bytes);
            }
            // What was sent to the namespace before is not for this one.
            None if self.pending.values().any(|pending| pending.is_gone && pending.nsid == nsid) => {}
            None => {
                let is_detached = controller.is_detached(nsid);
                let lba_bytes = [512, 4096][self.random.usize(..2)];
                let attached = controller.attach(nsid, namespace(nsid, size_bytes, lba_bytes));
                assert_eq!(attached.is_ok(), is_detached, "{attached:?}");
                if is_detached {
                    self.namespaces.insert(nsid, Its { size_bytes, lba_bytes: lba_bytes.into() });
                }
            }
        }
    }

    /// Ends commands in a random order.
    fn finish_some(&mut self) {
        for _ in 0..self.random.u64(..8).min(self.host.in_flight.len() as u64) {
            let at = self.random.usize(..self.host.in_flight.len());
            let any = self.host.in_flight.swap_remove(at);
            self.host.in_flight.insert(0, any);
            self.host.finish_one();
        }
        self.host.controller.notify();
    }

    /// Memory goes and comes back, the poller sleeps, the controller is reset.
    fn disturb(&mut self) {
        match self.random.u64(..9) {
            8 => {
                let (feature, value) = if self.random.u64(..2) == 0 {
                    (fid::ARBITRATION, self.random.u32(..))
                } else {
                    (FID_QUANTA, self.random.u32(..) >> 2)
                };
                let sqe = Sqe { opc: admin::SET_FEATURES, cdw10: feature.into(), cdw11: value, ..Sqe::default() };
                self.host.submit(0, sqe);
                self.host.controller.service();
                let done = self.host.completions(0);
                assert!(done.len() == 1 && done[0].status().is_success(), "{done:?}");
            }
            0 => {
                let (iova, bytes) = (crate::host::RAM_IOVA, crate::host::RAM_BYTES);
                self.host.controller.dma_unmap(iova, bytes).expect("mapped");
                self.finish_some();
                self.host.map_ram();
            }
            1 if self.random.u64(..4) == 0 => self.reset(),
            _ => {
                self.host.controller.set_wakeup(true);
                self.host.fetch_all();
                self.host.controller.set_wakeup(false);
            }
        }
    }

    /// A reset loses what was in flight: ranges that were being written hold anything, so it is written anew.
    fn reset(&mut self) {
        self.host.set32(Reg::Cc, 0);
        self.host.finish_all();
        assert!(!self.host.csts().rdy(), "ready although nothing is in flight");
        for (_, Pending { buffer, range, .. }) in std::mem::take(&mut self.pending) {
            self.model[range.clone()].copy_from_slice(&self.host.disk[range]);
            self.free.extend(buffer);
        }
        self.bring_up();
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.pending.values().any(|other| range.start < other.range.end && other.range.start < range.end)
    }

    fn submit(&mut self) {
        let qid = 1 + self.random.u16(..QUEUES);
        let rings = &self.host.sqs[&qid];
        let outstanding = self.pending.keys().filter(|(queue, _)| *queue == qid).count();
        if outstanding + 1 >= usize::from(rings.entries) {
            return;
        }
        let nsids: Vec<u32> = self.namespaces.keys().copied().collect();
        let nsid = nsids[self.random.usize(..nsids.len())];
        let Its { size_bytes, lba_bytes } = self.namespaces[&nsid];
        let blocks = 1 + self.random.u64(..MAX_BYTES / lba_bytes);
        let slba = self.random.u64(..size_bytes / lba_bytes - blocks + 1);
        let start = (base_of(nsid) + slba * lba_bytes) as usize;
        let range = start..start + (blocks * lba_bytes) as usize;
        // Commands on overlapping blocks have no defined order.
        if self.overlaps(&range) {
            return;
        }
        match self.random.u64(..10) {
            0..=6 => self.transfer(qid, of(nsid, rw(nvm::READ, slba, blocks as u32)), range),
            7 => {
                self.model[range.clone()].fill(0);
                let sqe = of(nsid, rw(nvm::WRITE_ZEROES, slba, blocks as u32));
                self.send(qid, sqe, Expect::Success, None, range);
            }
            8 => self.send(qid, of(nsid, flush()), Expect::Success, None, 0..0),
            _ => {
                // However long it grows until this is fetched.
                let most_bytes = if nsid == 1 { SIZE_BYTES } else { OTHERS_MOST_BYTES };
                let past = most_bytes / lba_bytes - self.random.u64(..blocks);
                let sqe = of(nsid, rw(nvm::WRITE_ZEROES, past, blocks as u32));
                self.send(qid, sqe, Expect::Failure(Status::LBA_OUT_OF_RANGE), None, 0..0);
            }
        }
    }

    /// Read, write or compare with PRPs or an SGL, at any dword offset.
    fn transfer(&mut self, qid: u16, sqe: Sqe, range: Range<usize>) {
        let Some(buffer) = self.free.pop() else { return };
        let len = range.len() as u64;
        let at = self.buffers + buffer * BUFFER_BYTES + self.random.u64(..1024) * 4;
        let opc = [nvm::READ, nvm::WRITE, nvm::COMPARE][self.random.usize(..3)];
        let salt = self.random.u64(..);
        let expect = Expect::transfer(&self.host, &mut self.model, opc, at, range.clone(), salt);
        let sqe = if self.random.u64(..2) == 0 {
            let block = SglDescriptor::new(sgl_type::DATA_BLOCK, at, len as u32);
            Sqe { opc, flags: 0x40, dptr: bytemuck::cast(block), ..sqe }
        } else {
            Sqe { opc, dptr: self.host.prps(at, len), ..sqe }
        };
        self.send(qid, sqe, expect, Some(buffer), range);
    }

    fn send(&mut self, qid: u16, sqe: Sqe, expect: Expect, buffer: Option<u64>, range: Range<usize>) {
        let cid = self.host.submit(qid, sqe);
        let pending = Pending { expect, buffer, nsid: sqe.nsid, is_gone: false, range };
        self.pending.insert((qid, cid), pending);
    }

    fn reap(&mut self) {
        let mut cqids: Vec<u16> = self.host.cqs.keys().copied().filter(|cqid| *cqid > 0).collect();
        cqids.sort_unstable();
        for cqid in cqids {
            for cqe in self.host.completions(cqid) {
                let known = self.pending.remove(&(cqe.sqid, cqe.cid));
                let Pending { expect, buffer, is_gone, range, .. } = known.expect("a command that was sent, once");
                if is_gone && cqe.status().code() == Status::INVALID_FIELD {
                    self.model[range.clone()].copy_from_slice(&self.host.disk[range]);
                } else {
                    expect.check(&self.host, &cqe);
                }
                self.free.extend(buffer);
                self.done += 1;
            }
        }
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    for seed in test_clients::seeds(30) {
        let mut run = Run::new(seed);
        for _ in 0..1500 {
            run.step();
        }
        while !run.pending.is_empty() {
            run.host.run();
            run.reap();
        }
        assert!(run.done > 100, "the run did something");
        assert!(run.host.controller.is_idle());
        for nsid in OTHERS {
            assert_ne!(run.host.controller.is_detached(nsid), run.namespaces.contains_key(&nsid));
        }
        assert!(run.host.disk == run.model, "the disk differs from the model");
    }
    assert_eq!(io_model::lost_tokens(), 0);
}
