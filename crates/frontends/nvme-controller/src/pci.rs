//! The PCI function: a type 0 configuration space with power management, PCI Express and MSI-X.

use nvme_spec::pci::{CLASS_NVME, bar, capability, command, express, header, msix, status};

use crate::msix::{PBA_OFFSET, VECTORS};

/// Bytes of configuration space that hold something; the rest up to 4 KiB reads as zero.
pub(crate) const HEADER_BYTES: usize = 256;

/// Bytes of BAR0: the registers, the doorbell page and room that reads as zero.
pub const BAR0_BYTES: u64 = 16 << 10;

/// Bytes of BAR4: MSI-X table and pending bits.
pub const BAR4_BYTES: u64 = 4 << 10;

/// No vendor ID is assigned to this project; this is the one that emulated devices use by custom.
/// Drivers bind by class code.
pub(crate) const VENDOR_ID: u16 = 0x1234;

const DEVICE_ID: u16 = 0x4e4b;

const PM_AT: usize = 0x40;
const EXPRESS_AT: usize = 0x50;
const MSIX_AT: usize = EXPRESS_AT + express::BYTES;
const MSIX_CONTROL_AT: usize = MSIX_AT + msix::CONTROL;
const DEVICE_CONTROL_AT: usize = EXPRESS_AT + express::DEVICE_CONTROL;

/// What a configuration write asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PciEffect {
    /// Function level reset.
    pub reset: bool,
    /// MSI-X Message Control changed to this.
    pub msix_control: Option<u16>,
    /// The Command register was written.
    pub command: bool,
}

#[derive(Debug)]
pub(crate) struct PciFunction {
    bytes: [u8; HEADER_BYTES],
    /// Bits that a write may change.
    writable: [u8; HEADER_BYTES],
}

impl PciFunction {
    pub fn new() -> Self {
        let mut this = Self { bytes: [0; HEADER_BYTES], writable: [0; HEADER_BYTES] };
        this.header();
        this.power_management();
        this.express();
        this.msix();
        this
    }

    fn put<const N: usize>(&mut self, at: usize, value: [u8; N], writable: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&value);
        self.writable[at..at + N].copy_from_slice(&writable);
    }

    fn read_only<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.put(at, value, [0; N]);
    }

    fn header(&mut self) {
        self.read_only(header::VENDOR_ID, VENDOR_ID.to_le_bytes());
        self.read_only(header::DEVICE_ID, DEVICE_ID.to_le_bytes());
        let controls = command::MEMORY | command::BUS_MASTER | command::PARITY | command::SERR | command::INTX_DISABLE;
        self.put(header::COMMAND, [0; 2], controls.to_le_bytes());
        self.read_only(header::STATUS, status::CAPABILITIES.to_le_bytes());
        self.read_only(header::REVISION_ID, (CLASS_NVME << 8 | 1).to_le_bytes());
        self.put(header::CACHE_LINE_SIZE, [0], [0xff]);
        // Address bits above the size are writable: writing ones reads back the size.
        for (at, size_bytes) in [(header::BAR0, BAR0_BYTES), (header::BAR0 + 16, BAR4_BYTES)] {
            self.put(at, u64::from(bar::MEMORY_64).to_le_bytes(), (!(size_bytes - 1)).to_le_bytes());
        }
        self.read_only(header::SUBSYSTEM_VENDOR_ID, VENDOR_ID.to_le_bytes());
        self.read_only(header::SUBSYSTEM_ID, DEVICE_ID.to_le_bytes());
        self.read_only(header::CAPABILITIES, [PM_AT as u8]);
        self.put(header::INTERRUPT_LINE, [0], [0xff]);
        self.read_only(header::INTERRUPT_PIN, [1]);
    }

    /// Version 3, D0 and D3hot, no reset on the way back to D0.
    fn power_management(&mut self) {
        self.read_only(PM_AT, [capability::POWER_MANAGEMENT, EXPRESS_AT as u8, 3, 0]);
        self.put(PM_AT + 4, [1 << 3, 0, 0, 0], [3, 0, 0, 0]);
    }

    /// Version 2 endpoint with function level reset; link 2.5 GT/s, width 1, as nothing depends on it.
    fn express(&mut self) {
        self.read_only(EXPRESS_AT, [capability::EXPRESS, MSIX_AT as u8]);
        self.read_only(EXPRESS_AT + express::CAPABILITIES, [2, 0]);
        let device = express::ROLE_BASED_ERRORS | express::FLR;
        self.read_only(EXPRESS_AT + express::DEVICE_CAPABILITIES, device.to_le_bytes());
        self.put(DEVICE_CONTROL_AT, [0x10, 0x28], [0xff, 0xff]);
        self.read_only(EXPRESS_AT + express::LINK_CAPABILITIES, [0x11, 0, 0, 0]);
        self.read_only(EXPRESS_AT + express::LINK_STATUS, [0x11, 0]);
    }

    fn msix(&mut self) {
        self.read_only(MSIX_AT, [capability::MSIX, 0]);
        let writable = msix::ENABLE | msix::FUNCTION_MASK;
        self.put(MSIX_CONTROL_AT, (VECTORS - 1).to_le_bytes(), writable.to_le_bytes());
        self.read_only(MSIX_AT + msix::TABLE, 4u32.to_le_bytes());
        self.read_only(MSIX_AT + msix::PBA, (PBA_OFFSET as u32 | 4).to_le_bytes());
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Whether the Command register turned the pin off.
    pub fn pin_disabled(&self) -> bool {
        self.word(header::COMMAND) & command::INTX_DISABLE != 0
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            *byte = usize::try_from(at).ok().and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> PciEffect {
        let before = self.word(MSIX_CONTROL_AT);
        let mut effect = PciEffect::default();
        for (at, byte) in (offset..).zip(data) {
            let Some(at) = usize::try_from(at).ok().filter(|at| *at < HEADER_BYTES) else { break };
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            effect.command |= at == header::COMMAND || at == header::COMMAND + 1;
        }
        let control = self.word(DEVICE_CONTROL_AT);
        effect.reset = control & express::INITIATE_FLR != 0;
        self.bytes[DEVICE_CONTROL_AT + 1] &= !(express::INITIATE_FLR >> 8) as u8;
        let after = self.word(MSIX_CONTROL_AT);
        effect.msix_control = (before != after).then_some(after);
        effect
    }

    /// What a write could have changed, for a saved state.
    pub fn save(&self) -> [u8; HEADER_BYTES] {
        self.bytes
    }

    /// Takes the writable bits of a saved state.
    pub fn load(&mut self, saved: &[u8; HEADER_BYTES]) {
        for ((byte, mask), saved) in self.bytes.iter_mut().zip(&self.writable).zip(saved) {
            *byte = *byte & !mask | saved & mask;
        }
    }

    /// MSI-X Message Control.
    pub fn msix_control(&self) -> u16 {
        self.word(MSIX_CONTROL_AT)
    }
}
