//! What wrappers do to commands and memory.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use backend_memory::{Memory, MemoryDrive};
use backend_wrappers::{Checked, Delay, Fate, Fault, Faults, Faulty};
use guest_memory::{IoBuf, Mapping, Refused};
use io_model::{Backend, Command, DeviceError, HwqId, Io, Nanos, Op, Outcome, Place, TenantId};

const BYTES: u64 = 1 << 20;
const OURS: Place = Place { tenant: TenantId(1), disk: 0, base_bytes: 64 << 10 };
const THEIRS: Place = Place { tenant: TenantId(2), disk: 0, base_bytes: 512 << 10 };
const FAILS: Fate = Fate::Fails(DeviceError::Medium);

fn queues() -> Memory {
    MemoryDrive::new(BYTES).expect("memory").open_queues(2, 8)
}

fn ram() -> Arc<Mapping> {
    Mapping::memfd("ram", 64 << 10).expect("a memfd").0
}

fn submit(backend: &mut impl Backend, tag: u32, command: Command, memory: &Arc<Mapping>, now: Nanos) {
    let mut buf = IoBuf::default();
    if matches!(command.op, Op::Read | Op::Write) {
        assert!(buf.push(memory, 0, command.len_bytes));
    }
    backend.submit(HwqId(0), Io { tag, command, buf }, now);
}

/// What ends at `now`, by tag.
fn reap(backend: &mut impl Backend, now: Nanos) -> BTreeMap<u32, Outcome> {
    let mut ended = BTreeMap::new();
    backend.kick();
    backend.reap(now, &mut |_, done| assert_eq!(ended.insert(done.tag, done.outcome), None));
    ended
}

#[test]
fn a_delay_counts_from_when_the_drive_below_is_done() {
    let memory = ram();
    let slow = |command: &Command| if command.op == Op::Write { Nanos(500) } else { Nanos(0) };
    // Twice the delay: the delays add up.
    let mut backend = Delay::new(Delay::new(queues(), slow), slow);
    submit(&mut backend, 1, OURS.command(Op::Write, 0, 512), &memory, Nanos(0));
    submit(&mut backend, 2, OURS.command(Op::Read, 0, 512), &memory, Nanos(0));
    assert_eq!(reap(&mut backend, Nanos(100)).into_keys().collect::<Vec<_>>(), [2]);
    assert_eq!(backend.next_event(), Some(Nanos(500)));
    assert!(reap(&mut backend, Nanos(499)).is_empty());
    assert!(reap(&mut backend, Nanos(500)).is_empty(), "the outer one just heard of it");
    assert_eq!(backend.next_event(), Some(Nanos(1_000)));
    assert!(reap(&mut backend, Nanos(999)).is_empty());
    assert_eq!(reap(&mut backend, Nanos(1_000)), BTreeMap::from([(1, Ok(()))]));
    assert_eq!(backend.next_event(), None);
}

/// Which of these commands, each a microsecond after the last, a fault names.
fn named(fault: Fault) -> Vec<u32> {
    let commands = [
        OURS.command(Op::Read, 0, 4096),
        OURS.command(Op::Write, 8192, 4096),
        THEIRS.command(Op::Read, 0, 4096),
        THEIRS.command(Op::Write, 8192, 4096),
        OURS.flush(),
        OURS.command(Op::Read, 4096, 8192),
    ];
    let (faults, memory) = (Faults::default(), ram());
    faults.add(fault);
    let mut backend = Checked::new(Faulty::new(queues(), &faults));
    for place in [OURS, THEIRS] {
        backend.map_memory(place.tenant, &memory).expect("nothing is refused");
    }
    for (tag, command) in (0..).zip(commands) {
        submit(&mut backend, tag, command, &memory, Nanos::from_micros(tag.into()));
    }
    let ended = reap(&mut backend, Nanos::from_millis(1));
    assert_eq!(ended.len(), commands.len());
    let failed: Vec<u32> = ended.iter().filter(|(_, outcome)| outcome.is_err()).map(|(tag, _)| *tag).collect();
    assert!(failed.iter().all(|tag| ended[tag] == Err(DeviceError::Medium)));
    assert_eq!(faults.failed(), failed.len() as u64);
    failed
}

#[test]
fn faults_name_what_they_say() {
    let all = Fault::new(FAILS);
    assert_eq!(named(all.clone()), [0, 1, 2, 3, 4, 5]);
    assert_eq!(named(Fault { op: Some(Op::Write), ..all.clone() }), [1, 3]);
    assert_eq!(named(Fault { tenant: Some(THEIRS.tenant), ..all.clone() }), [2, 3]);
    assert_eq!(named(Fault { in_tenant: Some(4096..8193), ..all.clone() }), [1, 3, 5]);
    let at = THEIRS.base_bytes;
    assert_eq!(named(Fault { in_drive: Some(at..at + 4096), ..all.clone() }), [2]);
    assert_eq!(named(Fault { in_drive: Some(0..at), op: Some(Op::Flush), ..all.clone() }), [] as [u32; 0]);
    assert_eq!(named(Fault { from: Nanos::from_micros(4), ..all.clone() }), [4, 5]);
    assert_eq!(named(Fault { every: 3, ..all.clone() }), [0, 3]);
    assert_eq!(named(Fault { spared: 1, every: 2, op: Some(Op::Read), ..all }), [2]);
}

#[test]
fn what_is_held_is_not_answered_until_it_is_released() {
    let (faults, memory) = (Faults::default(), ram());
    let mut backend = Faulty::new(queues(), &faults);
    memory.write_at(0, &[7; 512]).expect("inside");
    faults.add(Fault { op: Some(Op::Write), ..Fault::new(Fate::Held) });
    submit(&mut backend, 1, OURS.command(Op::Write, 0, 512), &memory, Nanos(0));
    submit(&mut backend, 2, OURS.flush(), &memory, Nanos(0));
    assert_eq!(reap(&mut backend, Nanos(0)), BTreeMap::from([(2, Ok(()))]));
    assert_eq!((backend.next_event(), faults.held()), (Some(Nanos::MAX), 1));
    faults.clear();
    assert!(reap(&mut backend, Nanos::from_millis(1_000_000)).is_empty());
    faults.release();
    assert_eq!(reap(&mut backend, Nanos(0)), BTreeMap::from([(1, Ok(()))]));
    assert_eq!((backend.next_event(), faults.held()), (None, 0));
    memory.write_at(0, &[0; 512]).expect("inside");
    submit(&mut backend, 3, OURS.command(Op::Read, 0, 512), &memory, Nanos(0));
    reap(&mut backend, Nanos(0));
    let mut read = [0; 512];
    memory.read_at(0, &mut read).expect("inside");
    assert_eq!(read, [7; 512], "the write that was held");
    faults.add(Fault::new(Fate::Held));
    submit(&mut backend, 4, OURS.flush(), &memory, Nanos(0));
    drop(backend);
    assert_eq!(faults.held(), 0);
}

#[test]
fn memory_can_be_refused() {
    let (faults, memory) = (Faults::default(), ram());
    let mut backend = Checked::new(Faulty::new(queues(), &faults));
    let refused = Refused { errno: 12 };
    assert_eq!(refused.to_string(), "the device can't reach the memory: Cannot allocate memory (os error 12)");
    faults.refuse_memory(Some(refused));
    assert_eq!((backend.map_memory(OURS.tenant, &memory), backend.mappings()), (Err(refused), 0));
    faults.refuse_memory(None);
    assert_eq!((backend.map_memory(OURS.tenant, &memory), backend.mappings()), (Ok(()), 1));
}

/// Whether the check panics.
fn caught(break_it: impl FnOnce(&mut Checked<Memory>, &Arc<Mapping>)) -> bool {
    let memory = ram();
    let mut backend = Checked::new(queues());
    backend.map_memory(OURS.tenant, &memory).expect("nothing is refused");
    catch_unwind(AssertUnwindSafe(|| break_it(&mut backend, &memory))).is_err()
}

#[test]
fn a_broken_contract_is_caught() {
    let read = OURS.command(Op::Read, 0, 512);
    assert!(!caught(|backend, memory| {
        (0..8).for_each(|tag| submit(backend, tag, read, memory, Nanos(0)));
        assert_eq!(reap(backend, Nanos(0)).len(), 8);
        backend.unmap_memory(OURS.tenant, memory);
        // Our own memory need not be told.
        submit(backend, 1, read, &Mapping::anonymous(4096).expect("memory"), Nanos(0));
    }));
    assert!(caught(|backend, memory| (0..9).for_each(|tag| submit(backend, tag, read, memory, Nanos(0)))), "depth");
    assert!(caught(|backend, memory| (0..2).for_each(|_| submit(backend, 5, read, memory, Nanos(0)))), "one tag twice");
    assert!(caught(|backend, _| submit(backend, 0, read, &ram(), Nanos(0))), "memory that nobody told of");
    let of_others = THEIRS.command(Op::Read, 0, 512);
    assert!(caught(|backend, memory| submit(backend, 0, of_others, memory, Nanos(0))), "another tenant's memory");
    assert!(caught(|backend, memory| backend.unmap_memory(THEIRS.tenant, memory)), "memory never given");
    assert!(caught(|backend, memory| {
        submit(backend, 0, read, memory, Nanos(0));
        backend.unmap_memory(OURS.tenant, memory);
    }));
}
