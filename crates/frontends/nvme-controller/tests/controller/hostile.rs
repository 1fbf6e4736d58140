//! A guest that writes anything anywhere: commands of random fields, rings and doorbells overwritten
//! while they are in use. Whatever it does, the controller goes on, and no byte outside of the
//! tenant's range is touched.

use nvme_spec::{Sqe, Status};

use crate::host::{Host, RAM_BYTES, RAM_IOVA, config, flush};

struct Hostile {
    random: fastrand::Rng,
    host: Host,
}

impl Hostile {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.usize(..from.len())]
    }

    /// An address: mostly in guest memory, aligned in one way or another.
    fn address(&mut self) -> u64 {
        let page = RAM_IOVA + self.random.u64(..64) * 4096;
        let offset = self.pick(&[0, 0, 0, 4, 8, 16, 512, 4088, 1]);
        let end = RAM_IOVA + RAM_BYTES;
        self.pick(&[page, page, page + offset, end - 4096, end - 8, end, u64::MAX - 7, 0, 0x7fff_ffff_ffff_f000])
    }

    fn dword(&mut self) -> u32 {
        let any = self.random.u32(..);
        let small = self.random.u32(..300);
        self.pick(&[0, 1, small, small << 16, small | 0x3f << 16, any, u32::MAX, 0xffff, 1 << 31, 4 | small << 8])
    }

    fn sqe(&mut self) -> Sqe {
        let opc = self.pick(&[
            0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7c, 0x80, 0x02, 0x01, 0x05, 0x09, 0x84,
            0xff,
        ]);
        let slba_high = if self.random.u64(..8) == 0 { self.dword() } else { 0 };
        let cdw11 = if opc < 3 { slba_high } else { self.dword() };
        Sqe {
            opc,
            flags: self.pick(&[0, 0, 0, 0, 0x40, 0x40, 0x80, 0xc1]),
            cid: 0,
            nsid: self.pick(&[1, 1, 1, 1, 0, 2, u32::MAX]),
            dptr: [self.address(), if self.random.u64(..2) == 0 { self.address() } else { self.random.u64(..) }],
            cdw10: self.dword(),
            cdw11,
            cdw12: self.dword(),
            cdw13: self.dword(),
            ..Sqe::default()
        }
    }

    fn step(&mut self) {
        match self.random.u64(..12) {
            0..=6 => {
                let known: Vec<u16> = [0, 1, 1, 1].into_iter().filter(|qid| self.host.sqs.contains_key(qid)).collect();
                let (qid, sqe) = (self.pick(&known), self.sqe());
                self.host.submit(qid, sqe);
            }
            7 => {
                // Guest memory holds anything: lists, rings, ranges.
                let at = RAM_IOVA + self.random.u64(..64) * 4096 + self.random.u64(..64) * 64;
                let words = [self.address(), self.random.u64(..), self.address(), u64::from(self.dword())];
                self.host.write(at, bytemuck::cast_slice(&words));
            }
            8 => {
                let (qid, head, value) = (self.random.u16(..3), self.random.u64(..2) == 0, self.dword());
                self.host.store_bell(qid, head, value);
            }
            _ => {
                self.host.fetch_all();
                if self.random.u64(..2) == 0 {
                    self.host.finish_all();
                }
                for cqid in [0, 1] {
                    self.host.completions(cqid);
                }
            }
        }
    }
}

#[test]
fn nothing_that_a_guest_writes_does_harm() {
    let mut reached = 0;
    for seed in test_clients::seeds(60) {
        let mut it = Hostile { random: fastrand::Rng::with_seed(seed), host: Host::ready_with(config()) };
        for _ in 0..1500 {
            it.step();
        }
        it.host.finish_all();
        it.host.check_guards();
        reached += it.host.seen.len();
        it.host.controller.reset();
        it.host.set_next_page(RAM_IOVA);
        it.host.enable(32);
        it.host.create_pair(1, 64);
        assert_eq!(it.host.io(flush()).status(), Status::SUCCESS);
    }
    assert!(reached > 0, "some commands were good by chance");
    assert_eq!(io_model::lost_tokens(), 0);
}
