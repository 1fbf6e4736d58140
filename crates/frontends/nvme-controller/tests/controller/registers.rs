//! BARs and configuration space, as specified and as a hostile VMM uses them.

use nvme_controller::{BAR0_BYTES, BAR4_BYTES};
use nvme_spec::pci::{capability, header, msix};
use nvme_spec::regs::{Aqa, Cc, Reg};

use crate::host::{Host, config};

#[test]
fn configuration_space_describes_an_nvme_controller() {
    let mut host = Host::new(config());
    assert_eq!(host.config32(header::REVISION_ID) >> 8, 0x01_08_02);
    for id in [capability::POWER_MANAGEMENT, capability::EXPRESS, capability::MSIX] {
        assert!(host.capability(id) >= 0x40);
    }
    let at = host.capability(capability::MSIX);
    assert_eq!(host.config32(at) >> 16 & 0x7ff, 64, "65 vectors");
    assert_eq!(host.config32(at + msix::TABLE), 4);
    // Sizing: all ones, then the size shows.
    for (bar, bytes) in [(0, BAR0_BYTES), (4, BAR4_BYTES)] {
        let at = (header::BAR0 + 4 * bar) as u64;
        host.controller.config_write(at, &[0xff; 8]);
        let size = u64::from(host.config32(at as usize)) | u64::from(host.config32(at as usize + 4)) << 32;
        assert_eq!((size & 0xf, !(size & !0xf) + 1), (4, bytes));
    }
    // Read-only fields stay.
    let before = host.config32(0);
    host.controller.config_write(0, &[0; 4]);
    assert_eq!(host.config32(0), before);
    assert_eq!(host.config32(0x100), 0, "no extended capabilities");
}

#[test]
fn registers_read_in_any_size_and_write_in_dwords() {
    let mut host = Host::new(config());
    let cap = host.reg64(Reg::Cap).to_le_bytes();
    for offset in 0..8 {
        for len in 1..=8 - offset {
            let mut out = vec![0; len];
            host.controller.bar_read(0, offset as u64, &mut out);
            assert_eq!(out, cap[offset..offset + len]);
        }
    }
    host.set32(Reg::Aqa, 0xffff_ffff);
    assert_eq!(host.reg32(Reg::Aqa), Aqa::new(0xfff, 0xfff).0, "reserved bits read 0");
    host.set64(Reg::Asq, 0x1234_5678_9abc_def0);
    assert_eq!(host.reg64(Reg::Asq), 0x1234_5678_9abc_d000);
    host.controller.bar_write(0, Reg::Asq.offset() + 4, &7u32.to_le_bytes());
    assert_eq!(host.reg64(Reg::Asq), 0x7_9abc_d000);
    for (offset, data) in [(0x24, &[1u8][..]), (0x24, &[1, 2]), (0x25, &[1, 2, 3, 4]), (0x28, &[1; 7])] {
        host.controller.bar_write(0, offset, data);
    }
    assert_eq!((host.reg32(Reg::Aqa), host.reg64(Reg::Asq)), (0x0fff_0fff, 0x7_9abc_d000));
    // Read-only registers.
    host.set64(Reg::Cap, 0);
    host.set32(Reg::Vs, 0);
    assert_eq!((host.reg64(Reg::Cap).to_le_bytes(), host.reg32(Reg::Vs)), (cap, 0x2_0000));
}

#[test]
fn an_enabled_controller_keeps_its_admin_queue() {
    let mut host = Host::ready();
    let before = (host.reg32(Reg::Aqa), host.reg64(Reg::Asq), host.reg64(Reg::Acq));
    host.set32(Reg::Aqa, 0);
    host.set64(Reg::Asq, 0);
    host.set64(Reg::Acq, 0);
    assert_eq!((host.reg32(Reg::Aqa), host.reg64(Reg::Asq), host.reg64(Reg::Acq)), before);
    host.set32(Reg::Cc, Cc::enable_nvm().0 | 3 << 7);
    assert_eq!(Cc(host.reg32(Reg::Cc)).mps(), 0);
}

#[test]
fn hostile_accesses_do_no_harm() {
    for seed in test_clients::seeds(50) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut host = Host::ready();
        for _ in 0..2000 {
            let len = [1, 2, 3, 4, 8, 8, 16, 64, 5000][random.usize(..9)];
            let offset = match random.u64(..4) {
                0 => random.u64(..0x80),
                1 => random.u64(..0x4100),
                2 => 0x1000 + random.u64(..0x400) * 4,
                _ => u64::MAX - random.u64(..64),
            };
            let data: Vec<u8> = (0..len).map(|_| random.u8(..) & random.u8(..)).collect();
            let mut out = vec![0xee; len];
            match random.u64(..4) {
                0 => host.controller.bar_read(random.u8(..8), offset, &mut out),
                1 => host.controller.bar_write(random.u8(..8), offset, &data),
                2 => host.controller.config_read(offset, &mut out),
                _ => host.controller.config_write(offset, &data),
            }
            host.run();
        }
        host.controller.reset();
        host.enable(32);
        assert!(host.csts().rdy());
        host.create_pair(1, 64);
        assert_eq!(host.io(crate::host::flush()).status(), nvme_spec::Status::SUCCESS);
        host.check_guards();
    }
}
