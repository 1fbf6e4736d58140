//! MSI-X with its masks, and the pin.

use std::sync::atomic::Ordering;

use bytemuck::Zeroable;
use io_model::Source;
use nvme_spec::identify::{IdentifyController, cns, oacs};
use nvme_spec::log::{CommandsEffectsLog, lid};
use nvme_spec::opcode::admin;
use nvme_spec::pci::{capability, command, header, msix};
use nvme_spec::regs::Reg;
use nvme_spec::{Sqe, Status};
use test_clients::rings::Cq;

use crate::bringup::identify;
use crate::host::{Host, flush};

impl Host {
    pub fn config32(&self, at: usize) -> u32 {
        let mut out = [0; 4];
        self.controller.config_read(at as u64, &mut out);
        u32::from_le_bytes(out)
    }

    pub fn capability(&self, id: u8) -> usize {
        let mut at = self.config32(header::CAPABILITIES) as usize & 0xff;
        while at != 0 {
            let head = self.config32(at);
            if head as u8 == id {
                return at;
            }
            at = (head >> 8) as usize & 0xff;
        }
        panic!("no capability {id:#x}");
    }

    fn msix_control(&mut self, control: u16) {
        let at = self.capability(capability::MSIX) + msix::CONTROL;
        self.controller.config_write(at as u64, &control.to_le_bytes());
    }

    fn table_mask(&mut self, vector: u64, masked: u32) {
        let at = vector * msix::ENTRY_BYTES as u64 + msix::VECTOR_CONTROL as u64;
        self.controller.bar_write(4, at, &masked.to_le_bytes());
    }

    fn pending(&self) -> u64 {
        let pba = u64::from(self.config32(self.capability(capability::MSIX) + msix::PBA)) & !7;
        let mut out = [0; 8];
        self.controller.bar_read(4, pba, &mut out);
        u64::from_le_bytes(out)
    }

    /// One flush on queue 1, and the vectors raised for it.
    fn interrupt(&mut self) -> Vec<u16> {
        self.vectors.take();
        self.submit(1, flush());
        self.fetch_all();
        self.finish_all();
        self.completions(1);
        self.vectors.take()
    }
}

#[test]
fn msix_raises_the_queue_vector_once_per_iteration() {
    let mut host = Host::ready();
    host.msix_control(msix::ENABLE);
    assert_eq!(host.interrupt(), [1]);
    host.vectors.take();
    for _ in 0..5 {
        host.submit(1, flush());
    }
    host.fetch_all();
    host.finish_all();
    assert_eq!(host.vectors.take(), [1]);
    host.controller.notify();
    assert_eq!(host.vectors.take(), [] as [u16; 0]);
}

#[test]
fn masked_vectors_stay_pending_and_are_raised_once() {
    type Mask = fn(&mut Host, bool);
    let masks: [(&str, Mask); 3] = [
        ("function", |host, on| host.msix_control(msix::ENABLE | if on { msix::FUNCTION_MASK } else { 0 })),
        ("table", |host, on| host.table_mask(1, on.into())),
        ("wiring", |host, on| host.controller.set_vector_masked(1, on)),
    ];
    let mut host = Host::ready();
    host.msix_control(msix::ENABLE);
    for (name, mask) in masks {
        mask(&mut host, true);
        assert_eq!(host.interrupt(), [] as [u16; 0], "{name}");
        assert_eq!(host.interrupt(), [] as [u16; 0], "{name}");
        assert_eq!(host.pending(), 2, "{name}");
        mask(&mut host, false);
        assert_eq!(host.vectors.take(), [1], "{name}");
        assert_eq!(host.pending(), 0, "{name}");
        assert_eq!(host.interrupt(), [1], "{name}");
    }
}

#[test]
fn the_table_reads_masked_from_reset_on_and_masks_once_written() {
    let mut host = Host::ready();
    let mut control = [0; 4];
    host.controller.bar_read(4, 16 + msix::VECTOR_CONTROL as u64, &mut control);
    assert_eq!(u32::from_le_bytes(control), msix::MASKED);
    // A VMM that handles the table by itself never writes ours: its vectors are delivered.
    host.controller.set_msix_armed(true);
    assert_eq!(host.interrupt(), [1]);
    host.table_mask(1, 1);
    assert_eq!(host.interrupt(), [] as [u16; 0]);
    host.controller.reset();
    assert_eq!(host.pending(), 0);
}

#[test]
fn a_queue_without_interrupts_raises_none() {
    let mut host = Host::ready();
    host.msix_control(msix::ENABLE);
    let mut cq = host.create_cq_sqe(2, 16, 2);
    cq.cdw11 &= !2;
    host.admin(cq);
    host.cqs.insert(2, Cq::new(cq.dptr[0], 16));
    host.create_sq(2, 16, 2);
    host.vectors.take();
    host.submit(2, flush());
    host.fetch_all();
    host.finish_all();
    assert_eq!((host.vectors.take(), host.completions(2).len()), (vec![], 1));
}

#[test]
fn the_pin_is_level_triggered() {
    let mut host = Host::ready();
    host.vectors.take();
    host.set32(Reg::Intms, 1);
    host.submit(1, flush());
    host.fetch_all();
    host.finish_all();
    assert_eq!(host.vectors.take(), [] as [u16; 0]);
    assert_eq!((host.reg32(Reg::Intms), host.reg32(Reg::Intmc)), (1, 1));
    // A completion waits: unmasking raises, as often as it is unmasked.
    for _ in 0..2 {
        host.set32(Reg::Intmc, 1);
        assert_eq!(host.vectors.take(), [0]);
    }
    host.controller.config_write(header::COMMAND as u64, &command::INTX_DISABLE.to_le_bytes());
    host.set32(Reg::Intmc, 1);
    assert_eq!(host.vectors.take(), [] as [u16; 0]);
    host.controller.config_write(header::COMMAND as u64, &[0, 0]);
    assert_eq!(host.vectors.take(), [0]);
    host.completions(1);
    host.completions(0);
    host.set32(Reg::Intmc, 1);
    assert_eq!(host.vectors.take(), [] as [u16; 0], "the host has read everything");
}

/// Only here: a guest that has read all completions is interrupted again, until "nobody cared".
#[test]
fn a_pin_that_is_raised_is_not_raised_again_before_it_is_unmasked() {
    let mut host = Host::ready();
    host.vectors.1.store(true, Ordering::Relaxed);
    host.vectors.take();
    for expected in [&[0_u16][..], &[]] {
        host.submit(1, flush());
        host.fetch_all();
        host.finish_all();
        assert_eq!(host.vectors.take(), expected);
    }
    assert!(host.next_completion(1).is_some());
    host.controller.set_vector_masked(0, false);
    assert_eq!(host.vectors.take(), [0], "one more waits");
    assert_eq!(host.completions(1).len(), 1);
    host.controller.set_vector_masked(0, false);
    assert_eq!(host.vectors.take(), [] as [u16; 0], "none waits");
}

/// A host that takes interrupts by the pin, which is low.
fn on_the_pin() -> Host {
    let mut host = Host::ready();
    host.vectors.1.store(true, Ordering::Relaxed);
    host.completions(0);
    host.controller.set_vector_masked(0, false);
    host.vectors.take();
    host
}

/// Only here: a CPU that submits, while an interrupt is on its way to another one, unmasks the pin. Raised at once, it
/// stays up after the other CPU has read everything: a storm.
#[test]
fn a_pin_that_is_unmasked_before_anything_was_read_is_held() {
    let mut host = on_the_pin();
    let complete_one = |host: &mut Host| {
        host.submit(1, flush());
        host.fetch_all();
        host.finish_all();
        host.vectors.take()
    };
    assert_eq!(complete_one(&mut host), [0]);
    host.controller.set_vector_masked(0, false);
    assert_eq!(complete_one(&mut host), [] as [u16; 0], "the guest has not read the first one");
    assert!(host.controller.pin_is_held());

    assert_eq!(host.next_completion(1).map(|cqe| cqe.sqid), Some(1));
    assert_eq!(complete_one(&mut host), [0], "the guest reads: two more wait");
    host.controller.set_vector_masked(0, false);
    assert_eq!((host.vectors.take(), host.controller.pin_is_held()), (vec![], true));
    host.controller.release_pin();
    assert_eq!((host.vectors.take(), host.controller.pin_is_held()), (vec![0], false), "the interrupt was lost");
}

/// Only here: a guest that reads while a completion is on its way is interrupted for nothing, by a pin that stays up.
#[test]
fn a_completion_that_was_read_before_the_interrupt_raises_no_pin() {
    let mut host = on_the_pin();
    host.submit(1, flush());
    host.fetch_all();
    host.finish_one();
    assert_eq!(host.completions(1).len(), 1);
    host.controller.notify();
    assert_eq!(host.vectors.take(), [] as [u16; 0]);
}

/// Only here: a guest that takes the pin omits the register writes that lower it.
#[test]
fn a_guest_on_the_pin_keeps_its_doorbells_in_registers() {
    let mut host = Host::ready();
    let takes_shadows = |host: &mut Host| {
        let id: IdentifyController = bytemuck::pod_read_unaligned(&identify(host, cns::CONTROLLER, 0));
        let effects: CommandsEffectsLog = bytemuck::pod_read_unaligned(&host.log(lid::COMMANDS_EFFECTS, 4096));
        let is_listed = effects.acs[usize::from(admin::DOORBELL_BUFFER_CONFIG)] != 0;
        let dptr = [host.alloc(4096), host.alloc(4096)];
        let done = host.admin(Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr, ..Sqe::zeroed() });
        let is_taken = done.status().code() != Status::INVALID_OPCODE;
        assert_eq!((id.oacs & oacs::DOORBELL_BUFFER != 0, is_listed), (is_taken, is_taken));
        is_taken
    };
    assert!(takes_shadows(&mut host), "a client that polls");
    host.vectors.1.store(true, Ordering::Relaxed);
    assert!(!takes_shadows(&mut host));
    host.msix_control(msix::ENABLE);
    assert!(takes_shadows(&mut host));
    host.msix_control(0);
    host.controller.config_write(header::COMMAND as u64, &command::INTX_DISABLE.to_le_bytes());
    assert!(takes_shadows(&mut host), "it turned the pin off");
}
