//! The register file in the first page of BAR0 (NVMe Base 2.0, 3.1.3): what it holds, and what a
//! write to it asks the controller to do.

use nvme_spec::regs::{Aqa, Cap, Cc, Csts, NSSR_RESET, Reg, VERSION_2_0};

use crate::config::ControllerConfig;

/// CAP.TO and CRTO: worst time for CSTS.RDY to change, in units of 500 ms. A reset waits for the
/// device to end what is in flight.
const READY_TIMEOUT: u8 = 60;

/// What may change in CC while the controller is enabled: SHN, IOSQES and IOCQES.
const CC_LIVE: u32 = 3 << 14 | 0xff << 16;

const CAP_LOW: u64 = Reg::Cap.offset();
const CAP_HIGH: u64 = CAP_LOW + 4;
const VS: u64 = Reg::Vs.offset();
const INTMS: u64 = Reg::Intms.offset();
const INTMC: u64 = Reg::Intmc.offset();
const CC: u64 = Reg::Cc.offset();
const CSTS: u64 = Reg::Csts.offset();
const NSSR: u64 = Reg::Nssr.offset();
const AQA: u64 = Reg::Aqa.offset();
const ASQ_LOW: u64 = Reg::Asq.offset();
const ASQ_HIGH: u64 = ASQ_LOW + 4;
const ACQ_LOW: u64 = Reg::Acq.offset();
const ACQ_HIGH: u64 = ACQ_LOW + 4;
const CRTO: u64 = Reg::Crto.offset();

/// What a register write asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// CC.EN went from 0 to 1.
    Enable,
    /// CC.EN went from 1 to 0.
    Disable,
    /// CC.SHN asks for a shutdown.
    Shutdown,
    /// The magic value was written to NSSR.
    SubsystemReset,
    /// Pin interrupts were unmasked.
    Unmasked,
}

#[derive(Debug)]
pub(crate) struct Registers {
    pub cap: Cap,
    pub cc: Cc,
    pub csts: Csts,
    pub aqa: Aqa,
    pub asq: u64,
    pub acq: u64,
    /// Pin interrupt mask: INTMS sets bits, INTMC clears them.
    pub int_mask: u32,
}

impl Registers {
    pub fn new(config: &ControllerConfig) -> Self {
        let weighs = if config.part.of == 1 { Cap::AMS_WEIGHTED | Cap::AMS_VENDOR } else { 0 };
        let flags = Cap::CQR | weighs | Cap::NSSRS | Cap::CSS_NVM | Cap::CSS_IOCS | Cap::CRWMS;
        Self {
            cap: Cap::new(config.max_depth - 1, READY_TIMEOUT, flags),
            cc: Cc(0),
            csts: Csts(0),
            aqa: Aqa(0),
            asq: 0,
            acq: 0,
            int_mask: 0,
        }
    }

    fn dword(&self, offset: u64) -> u32 {
        match offset {
            CAP_LOW => self.cap.0 as u32,
            CAP_HIGH => (self.cap.0 >> 32) as u32,
            VS => VERSION_2_0,
            INTMS | INTMC => self.int_mask,
            CC => self.cc.0,
            CSTS => self.csts.0,
            AQA => self.aqa.0,
            ASQ_LOW => self.asq as u32,
            ASQ_HIGH => (self.asq >> 32) as u32,
            ACQ_LOW => self.acq as u32,
            ACQ_HIGH => (self.acq >> 32) as u32,
            CRTO => READY_TIMEOUT.into(),
            _ => 0,
        }
    }

    /// Reads any bytes of the page; what is not a register reads as zero.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            *byte = self.dword(at & !3).to_le_bytes()[(at & 3) as usize];
        }
    }

    /// Writes one aligned dword. Reserved bits and read-only registers keep their value.
    pub fn write(&mut self, offset: u64, value: u32) -> Effect {
        match offset {
            INTMS => self.int_mask |= value,
            INTMC => {
                self.int_mask &= !value;
                return Effect::Unmasked;
            }
            CC => return self.write_cc(Cc(value)),
            CSTS => self.csts.0 &= !(value & Csts::NSSRO),
            NSSR if value == NSSR_RESET => return Effect::SubsystemReset,
            // The admin queue can't move while it is in use.
            AQA | ASQ_LOW..=ACQ_HIGH if self.cc.en() => {}
            AQA => self.aqa = Aqa(value & 0x0fff_0fff),
            ASQ_LOW => self.asq = self.asq & !0xffff_ffff | u64::from(value & !0xfff),
            ASQ_HIGH => self.asq = self.asq & 0xffff_ffff | u64::from(value) << 32,
            ACQ_LOW => self.acq = self.acq & !0xffff_ffff | u64::from(value & !0xfff),
            ACQ_HIGH => self.acq = self.acq & 0xffff_ffff | u64::from(value) << 32,
            _ => {}
        }
        Effect::None
    }

    fn write_cc(&mut self, new: Cc) -> Effect {
        let old = self.cc;
        self.cc = if old.en() && new.en() { Cc(old.0 & !CC_LIVE | new.0 & CC_LIVE) } else { new };
        match (old.en(), new.en()) {
            (false, true) => Effect::Enable,
            (true, false) => Effect::Disable,
            _ if new.shn() != Cc::SHN_NONE && self.csts.shst() == Csts::SHST_NONE => Effect::Shutdown,
            _ => Effect::None,
        }
    }

    /// Whether CC and AQA ask for something that this controller can be. What a controller does otherwise is left open;
    /// this one reports a fatal status.
    pub fn can_enable(&self) -> bool {
        let css_ok = matches!(self.cc.css(), Cc::CSS_NVM | Cc::CSS_IOCS);
        css_ok && self.cc.mps() == 0 && self.cap.offers_ams(self.cc.ams()) && self.aqa.asqs() > 0 && self.aqa.acqs() > 0
    }
}
