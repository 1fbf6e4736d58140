//! The cipher around a drive in memory: the suite of all back ends, and random programs against plain text.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::sync::Arc;

use backend_cipher::{Access, DataKey, Encrypted, Keys};
use backend_memory::MemoryDrive;
use backend_wrappers::Checked;
use conformance::Device;
use guest_memory::{IoBuf, Mapping};
use io_model::{Backend, Command, DeviceError, Done, HwqId, Io, Nanos, Op, Outcome, Place, TenantId};
use zeroize::Zeroizing;

const SIZE_BYTES: u64 = 16 << 20;

fn key(fill: u8, sector_bytes: u32) -> Access {
    let mut bytes = Zeroizing::new([fill; DataKey::BYTES]);
    bytes[0] ^= 0xff;
    Access::Key(Arc::new(DataKey::new(bytes, sector_bytes).unwrap()))
}

/// One command at a time, from memory of its own.
struct Bench<B> {
    backend: B,
    memory: Arc<Mapping>,
}

impl<B: Backend> Bench<B> {
    fn new(mut backend: B) -> Self {
        let memory = Mapping::anonymous(4 << 20).unwrap();
        backend.map_memory(TenantId(1), &memory).unwrap();
        Self { backend, memory }
    }

    fn run(&mut self, command: Command) -> Outcome {
        let mut buf = IoBuf::default();
        if command.op.has_data() {
            assert!(buf.push(&self.memory, 0, command.len_bytes));
        }
        self.backend.submit(HwqId(0), Io { tag: 3, command, buf }, Nanos(1));
        let mut outcome = None;
        while outcome.is_none() {
            self.backend.kick();
            self.backend.reap(Nanos(2), &mut |_, Done { tag, outcome: its, .. }| {
                assert_eq!(tag, 3);
                outcome = Some(its);
            });
        }
        outcome.unwrap()
    }

    fn write(&mut self, place: Place, offset_bytes: u64, data: &[u8]) -> Outcome {
        assert_eq!(self.buf(data.len()).copy_from(data), data.len());
        let outcome = self.run(place.command(Op::Write, offset_bytes, data.len() as u64));
        assert_eq!(self.data(data.len()), data, "a write leaves the guest's memory alone");
        outcome
    }

    fn read(&mut self, place: Place, offset_bytes: u64, len: usize) -> Result<Vec<u8>, DeviceError> {
        self.run(place.command(Op::Read, offset_bytes, len as u64))?;
        Ok(self.data(len))
    }

    fn buf(&self, len: usize) -> IoBuf {
        let mut buf = IoBuf::default();
        assert!(buf.push(&self.memory, 0, len as u64));
        buf
    }

    fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        assert_eq!(self.buf(len).copy_to(&mut data), len);
        data
    }
}

fn place(tenant: u32, base_bytes: u64) -> Place {
    Place { tenant: TenantId(tenant), disk: 0, base_bytes }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

#[test]
fn the_suite_of_all_back_ends() {
    for sector_bytes in [512, 4096] {
        let drive = MemoryDrive::new(SIZE_BYTES).unwrap();
        let device = Device { size_bytes: SIZE_BYTES, block_bytes: sector_bytes.into(), keeps_data: true };
        let keys = Arc::new(Keys::default());
        keys.set(TenantId(7), 0, key(5, sector_bytes));
        conformance::check(device, |hwqs, depth| {
            Encrypted::new(Checked::new(drive.open_queues(hwqs, depth)), Arc::clone(&keys))
        });
    }
}

#[test]
fn plain_disks_pass_beside_encrypted_ones_and_others_are_refused() {
    let drive = MemoryDrive::new(SIZE_BYTES).unwrap();
    let keys = Arc::new(Keys::default());
    let mut bench = Bench::new(Encrypted::new(drive.open_queues(1, 8), Arc::clone(&keys)));
    let mut raw = Bench::new(drive.open_queues(1, 8));
    let (own, plain, whole) = (place(1, 4096), place(2, 8 << 20), place(9, 0));
    let data = noise(300 << 10, 1);
    keys.set(own.tenant, 0, key(1, 4096));
    // A disk that was not named is not written as plain text.
    assert_eq!(bench.write(plain, 0, &data[..4096]), Err(DeviceError::Gone));
    keys.set(plain.tenant, 0, Access::Plain);
    assert_eq!(bench.write(own, 8192, &data), Ok(()));
    assert_eq!(bench.write(plain, 8192, &data), Ok(()));
    assert_eq!(
        (bench.read(own, 8192, data.len()), bench.read(plain, 8192, data.len())),
        (Ok(data.clone()), Ok(data.clone()))
    );
    assert!(raw.read(whole, (8 << 20) + 8192, data.len()).unwrap() == data);
    let on_drive = raw.read(whole, 4096 + 8192, data.len()).unwrap();
    let common = on_drive.chunks(64).zip(data.chunks(64)).filter(|(one, other)| one == other).count();
    assert_eq!(common, 0, "plain text is on the drive");
    // Its ciphertext elsewhere on the drive, under the tenant's own offset.
    assert_eq!(raw.write(whole, (4 << 20) + 8192, &on_drive), Ok(()));
    assert!(bench.read(place(1, 4 << 20), 8192, data.len()).unwrap() == data);
    // Never written: zeros. Another key: noise.
    assert_eq!(bench.read(own, 1 << 20, 4096), Ok(vec![0; 4096]));
    keys.set(own.tenant, 0, key(2, 4096));
    let other = bench.read(own, 8192, data.len()).unwrap();
    assert!(other != data);
    keys.set(own.tenant, 0, Access::Locked);
    assert_eq!(bench.read(own, 8192, 4096), Err(DeviceError::Gone));
    assert_eq!(bench.run(own.command(Op::WriteZeroes, 0, 4096)), Err(DeviceError::Gone));
    keys.set(own.tenant, 0, key(1, 4096));
    assert!(bench.read(own, 8192, data.len()).unwrap() == data);
    for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard] {
        assert_eq!(bench.run(own.command(op, 512, 4096)), Err(DeviceError::Unsupported), "{op:?} of parts of sectors");
    }
    keys.forget(own.tenant);
    assert_eq!(bench.read(own, 8192, 4096), Err(DeviceError::Gone));
}

/// A neighbour would wait for all of a large write.
#[test]
fn a_small_command_passes_large_ones() {
    let drive = MemoryDrive::new(SIZE_BYTES).unwrap();
    let keys = Arc::new(Keys::default());
    keys.set(TenantId(1), 0, key(1, 4096));
    keys.set(TenantId(2), 0, key(2, 4096));
    let mut backend = Encrypted::new(drive.open_queues(1, 32), keys);
    let memory = Mapping::anonymous(16 << 20).unwrap();
    let submit = |backend: &mut Encrypted<_>, tag: u32, place: Place, len_bytes: u64| {
        let mut buf = IoBuf::default();
        assert!(buf.push(&memory, u64::from(tag) << 20, len_bytes));
        backend.submit(HwqId(0), Io { tag, command: place.command(Op::Write, 0, len_bytes), buf }, Nanos(1));
    };
    for tag in 0..8 {
        submit(&mut backend, tag, place(1, u64::from(tag) << 20), 1 << 20);
    }
    backend.kick();
    submit(&mut backend, 8, place(2, 8 << 20), 4096);
    let mut order = Vec::new();
    let mut looks = 0;
    while order.len() < 9 {
        backend.kick();
        backend.reap(Nanos(2), &mut |_, Done { tag, outcome, .. }| {
            assert_eq!(outcome, Ok(()));
            order.push((tag, looks));
        });
        looks += 1;
    }
    assert_eq!(order[0].0, 8, "{order:?}");
    // 64 KiB of the cipher's work at a time, and eight large writes in front of it.
    assert!(order[0].1 <= 9, "{order:?}");
}

/// A system call, a lock or an allocation per command is what others wait for.
#[test]
fn commands_allocate_nothing() {
    let drive = MemoryDrive::new(SIZE_BYTES).unwrap();
    let keys = Arc::new(Keys::default());
    keys.set(TenantId(1), 0, key(1, 4096));
    let mut bench = Bench::new(Encrypted::new(drive.open_queues(1, 8), keys));
    let own = place(1, 0);
    let mut once = |op, len_bytes| assert_eq!(bench.run(own.command(op, 0, len_bytes)), Ok(()));
    for len_bytes in [4096, 1 << 20] {
        [Op::Write, Op::Read].into_iter().for_each(|op| once(op, len_bytes));
        let counted = allocation_counter::measure(|| {
            for _ in 0..10 {
                [Op::Write, Op::Read].into_iter().for_each(|op| once(op, len_bytes));
            }
        });
        assert_eq!(counted.count_total, 0, "{len_bytes} bytes");
    }
}

/// An erased disk's key that stays in a poller's memory.
#[test]
fn a_former_key_is_in_no_memory() {
    let keys = Arc::new(Keys::default());
    let mut backend = Encrypted::new(MemoryDrive::new(SIZE_BYTES).unwrap().open_queues(1, 8), Arc::clone(&keys));
    let mut new_key = |fill| {
        let Access::Key(key) = key(fill, 4096) else { unreachable!("a key") };
        let former = Arc::downgrade(&key);
        keys.set(TenantId(1), 3, Access::Key(key));
        backend.take_keys();
        former
    };
    let (first, second) = (new_key(1), new_key(2));
    assert_eq!((first.strong_count(), second.strong_count() > 1), (0, true));
    assert!(keys.forget_disk(TenantId(1), 3) && !keys.forget_disk(TenantId(1), 3));
    backend.take_keys();
    assert_eq!(second.strong_count(), 0);
}
