//! The device's side: what it looks like, and what it may be asked.

use std::sync::Arc;

use arbitrary::Arbitrary;
use guest_memory::Budget;
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, ftruncate, memfd_create};
use vfio_user::{
    Device, DeviceSpec, Errno, IrqChange, IrqSpec, MmapSpec, RegionSpec, Reply, Request, Session, SetIrqs,
};

/// How the device answers.
#[derive(Debug, Arbitrary)]
pub enum How {
    Properly,
    WrongKind,
    Failed,
    Fatal,
}

/// A device that holds the server to its contract, and keeps its own only where it was told to.
#[derive(Debug)]
pub struct Checker {
    spec: Arc<DeviceSpec>,
    next: How,
    /// Requests so far.
    pub asked: u64,
    /// Clients that attached, and that left.
    connected: (u32, u32),
}

impl Checker {
    /// No client is there.
    pub fn new(spec: Arc<DeviceSpec>) -> Self {
        Self { spec, next: How::Properly, asked: 0, connected: (0, 0) }
    }

    /// The next request is answered so, the ones after it properly.
    pub fn answer_next(&mut self, how: How) {
        self.next = how;
    }

    /// The connection is over.
    pub fn check_end(&self) {
        assert_eq!(self.connected, (1, 1));
    }
}

impl Device for Checker {
    fn connected(&mut self, _session: Session) {
        self.connected.0 += 1;
    }

    fn request(&mut self, request: Request) -> Reply {
        assert_eq!(self.connected, (1, 0));
        self.asked += 1;
        let proper = judge(&self.spec, &request);
        match std::mem::replace(&mut self.next, How::Properly) {
            How::Properly => proper,
            How::WrongKind if proper == Reply::Done => Reply::Data(vec![1, 2, 3]),
            How::WrongKind => Reply::Done,
            How::Failed => Reply::Failed(Errno::NOENT),
            How::Fatal => Reply::Fatal(Errno::IO, "the device gave up".into()),
        }
    }

    fn disconnected(&mut self, _reason: &str) {
        self.connected.1 += 1;
    }
}

/// A device like the virtual controller, with an interrupt type of every kind.
pub fn spec() -> DeviceSpec {
    let fd = memfd_create("doorbells", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, 4096).expect("a size");
    // The file holds the second page of the region alone.
    let doorbells = MmapSpec { fd: fd.into(), file_offset_bytes: 0, areas: vec![(4096, 4096)] };
    let region = |size_bytes| RegionSpec { size_bytes, readable: true, writable: true, mmap: None };
    let mut regions: Vec<RegionSpec> = (0..9).map(|_| RegionSpec::default()).collect();
    regions[0] = RegionSpec { mmap: Some(doorbells), ..region(16 << 10) };
    regions[4] = region(4 << 10);
    regions[5] = RegionSpec { writable: false, ..region(1 << 20) };
    regions[6] = RegionSpec { readable: false, ..region(256) };
    regions[7] = region(4 << 10);
    let irqs = vec![
        IrqSpec { count: 1, eventfd: true, maskable: true, automasked: true, noresize: false },
        IrqSpec::default(),
        IrqSpec::eventfds(65),
        IrqSpec { count: 1, ..IrqSpec::default() },
        IrqSpec::eventfds(1),
    ];
    DeviceSpec { name: "fuzz".into(), regions, irqs, resettable: true, budget: Budget::new(1 << 40, 4096) }
}

/// Checks that the device could do what it is asked; returns the proper answer.
fn judge(spec: &DeviceSpec, request: &Request) -> Reply {
    let inside = |region: u32, offset: u64, len: u64| {
        let size = spec.regions[region as usize].size_bytes;
        assert!((1..=65536).contains(&len), "{request:?}");
        assert!(offset.checked_add(len).is_some_and(|end| end <= size), "outside of the region: {request:?}");
    };
    match request {
        Request::RegionRead { region, offset_bytes, len_bytes } => {
            inside(*region, *offset_bytes, u64::from(*len_bytes));
            assert!(spec.regions[*region as usize].readable, "{request:?}");
            return Reply::Data(vec![0xa5; *len_bytes as usize]);
        }
        Request::RegionWrite { region, offset_bytes, data } => {
            inside(*region, *offset_bytes, data.len() as u64);
            assert!(spec.regions[*region as usize].writable, "{request:?}");
        }
        Request::DmaUnmap { len_bytes, .. } => assert!(*len_bytes > 0, "{request:?}"),
        Request::SetIrqs(irqs) => judge_irqs(spec, irqs),
        Request::DmaMap { iova, len_bytes, mapping } => {
            assert!(*len_bytes > 0 && iova % 4096 == 0 && len_bytes % 4096 == 0, "{request:?}");
            assert!(iova.checked_add(*len_bytes).is_some(), "wraps around: {request:?}");
            // The only files that are memory have 1 MiB.
            assert!(mapping.is_none() || *len_bytes <= 1 << 20, "{request:?}");
        }
        Request::DmaUnmapAll | Request::Reset => {}
    }
    Reply::Done
}

fn judge_irqs(spec: &DeviceSpec, irqs: &SetIrqs) {
    let SetIrqs { index, vectors, change } = irqs;
    let irq = spec.irqs[*index as usize];
    assert!(vectors.iter().all(|vector| *vector < irq.count), "{irqs:?}");
    assert!(vectors.is_sorted_by(|a, b| a < b), "{irqs:?}");
    match change {
        IrqChange::Assign(fds) => {
            assert!(irq.eventfd && fds.len() == vectors.len(), "{irqs:?}");
            // A write to an eventfd must never block.
            let waits = |fd| !fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
            assert!(!fds.iter().any(waits), "{irqs:?}");
        }
        IrqChange::Mask | IrqChange::Unmask => assert!(irq.maskable, "{irqs:?}"),
        IrqChange::Deassign | IrqChange::Trigger => {}
    }
}
