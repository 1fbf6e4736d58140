//! What a command costs on the paper's host: an IBM S822L, two POWER8 with 10 cores each and one thread per core, Linux
//! 4.1, QEMU 2.3, a VM with a vCPU on every core.
//!
//! **\[P\]** printed in the paper, **\[D\]** derived from what is printed, **\[F\]** fitted or assumed. The fit is told
//! in `docs/decisions/0008-vbmq-host-costs.md`: there are as many fitted numbers as sentences to fit them to, so the
//! figures test the mechanisms' shapes, not these values. Times in ns.

use sim::{Contention, FREE, GuestCosts, Kick, PathCosts};

/// fio and the block layer below it, in the guest and on bare metal alike: "the same because they are both Linux kernel
/// block layer" \[P\]. Together 6.67 µs: 3M IOPS on 20 cores \[P\]. How they divide is assumed \[F\]; half of the
/// application's part and of the completion's varies \[F\].
pub const GUEST: GuestCosts =
    GuestCosts { app_ns: 2_400, submit_ns: 900, write_ns: 0, irq_ns: 300, complete_ns: 3_070, varies_permille: 500 };

/// Nothing between the block layer and the drive. The null device's own part is in [`GUEST`].
pub const BARE_METAL: PathCosts = PathCosts { beside_vcpu: true, ..FREE };

/// A virtqueue's spinlock in the guest: 0.15 µs \[F\] alone. Each CPU that spins adds 0.47 µs to a hand-over \[F\]:
/// with 20 of them VBDP is as slow as Baseline \[P\].
const RING: Contention = Contention { hold_ns: 150, handover_ns: 470 };

/// A command from another CPU than the last: its ring entry, header and buffer list come from that CPU's cache, half of
/// the time over the socket's border \[F\].
const BOUNCE_NS: u64 = 1_500;

/// VBMq with polling threads. A thread is on its vCPU's core, for there are no others \[P\], so its work adds to
/// [`GUEST`]'s: 3 µs \[D\] make the 32 % that VBMq loses \[P\]. With all of it, 6.6 µs until the guest's own polling
/// thread finds the completion \[F\] make the 13.5 µs of one read \[P\].
pub const POLLING: PathCosts = PathCosts {
    pass_ns: 200,
    fetch_ns: 1_250,
    complete_ns: 930,
    interrupt_ns: 100,
    delivery_ns: 6_600,
    ring: RING,
    bounce_ns: BOUNCE_NS,
    beside_vcpu: true,
    ..FREE
};

/// VBMq with event-driven threads. The exit that wakes one (1 µs), its way onto its vCPU's core (14 µs) and an
/// interrupt instead of a poll (15.5 µs) make one read 40 µs \[P\]; the system calls of a pass (1.9 µs), of which there
/// are two for each waking, make the loss of 8 % \[P\]. All \[F\].
pub const EVENT: PathCosts =
    PathCosts { pass_ns: 1_900, delivery_ns: 15_500, wake_ns: 14_000, kick: Kick::Asleep, kick_ns: 1_000, ..POLLING };

/// virtio-blk-data-plane: one event loop, on a core that it finds free. 12 µs for each command \[F\]: more than a
/// guest's CPU takes, so that more jobs can't help \[P\].
pub const VBDP: PathCosts = PathCosts {
    pass_ns: 600,
    fetch_ns: 7_000,
    complete_ns: 5_000,
    interrupt_ns: 500,
    delivery_ns: EVENT.delivery_ns,
    wake_ns: 4_000,
    kick: Kick::Asleep,
    kick_ns: EVENT.kick_ns,
    ring: RING,
    bounce_ns: BOUNCE_NS,
    ..FREE
};

/// QEMU's main loop: the same, under the mutex that it shares with the vCPUs' exits \[P\]. Every command is an exit, as
/// the paper traces it \[P\]. An exit holds the mutex for 0.5 µs \[F\], and each thread that waits adds 0.28 µs to a
/// hand-over \[F\]: a fortieth of VBMq's IOPS with 20 jobs \[P\].
pub const BASELINE: PathCosts =
    PathCosts { kick: Kick::Always, mutex: Contention { hold_ns: 500, handover_ns: 280 }, ..VBDP };

/// What an SSD's interrupt costs the core that submitted, for each command; the null device has none. On bare metal 8
/// jobs reach 750K IOPS \[P\]: 10.7 µs for each command, 4 of them the interrupt \[D\].
pub const INTERRUPT_NS: u64 = 4_000;

/// The cost of an interrupt under a running guest: 18 jobs reach 750K IOPS \[P\]: 24 µs for each command, 14 of them
/// the interrupt \[D\], for which the guest leaves its core and the waiting thread wakes up.
pub const INTERRUPT_UNDER_GUEST_NS: u64 = 14_000;
