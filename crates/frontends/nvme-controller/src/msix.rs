//! Interrupts: the MSI-X table with its masks and pending bits, and the pin (INTx) when MSI-X is off.
//!
//! A vector may be masked in three places: the function mask, its table entry, and the wiring (a VMM
//! that handles the table by itself masks by message and never writes our table; that is why a table
//! entry counts as masked only after it was written, although it reads as masked from reset on).

use nvme_spec::pci::msix;

use crate::config::MAX_IO_QUEUES;

/// MSI-X vectors: one for the admin queue and one per I/O queue.
pub const VECTORS: u16 = MAX_IO_QUEUES + 1;

/// Bytes of the MSI-X table at the start of BAR4.
pub(crate) const TABLE_BYTES: usize = VECTORS as usize * msix::ENTRY_BYTES;

/// Where the pending bit array starts in BAR4.
pub(crate) const PBA_OFFSET: u64 = 0x800;

/// Delivers interrupts to the guest.
pub trait Interrupts: Send {
    /// Raises MSI-X vector `vector`, or the pin (vector 0) while MSI-X is off.
    fn raise(&mut self, vector: u16);

    /// Whether the client listens to the pin.
    fn has_pin(&self) -> bool {
        false
    }
}

/// The pin, which the client masks by itself each time it is raised (VFIO_IRQ_INFO_AUTOMASKED) and unmasks at the
/// guest's next register write, whichever register that is. `heads`: how far the guest had read when it was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pin {
    Low,
    Raised {
        heads: u64,
    },
    /// Unmasked before the guest read anything: most likely by a CPU that submits, while the interrupt is on its way to
    /// another one. Raised at once, the pin would stay up after that one has read everything and has no register left
    /// to write: a storm that ends as "nobody cared".
    Held {
        heads: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Msix<I> {
    out: I,
    /// Message Control of the capability: enable and function mask.
    pub control: u16,
    /// The wiring delivers MSI-X although the capability is not enabled.
    pub armed: bool,
    pub table: [u8; TABLE_BYTES],
    /// Table entries whose vector control was written.
    pub written: u128,
    /// Vectors masked by the wiring.
    pub wire_masked: u128,
    pub pending: u128,
    pin: Pin,
    /// Interrupts delivered.
    pub raised: u64,
}

impl<I: Interrupts> Msix<I> {
    pub fn new(out: I) -> Self {
        let mut this = Self {
            out,
            control: 0,
            armed: false,
            table: [0; TABLE_BYTES],
            written: 0,
            wire_masked: 0,
            pending: 0,
            pin: Pin::Low,
            raised: 0,
        };
        this.reset();
        this
    }

    pub fn out_mut(&mut self) -> &mut I {
        &mut self.out
    }

    /// Back to the state after power on; the wiring's own masks stay.
    pub fn reset(&mut self) {
        self.control = 0;
        self.written = 0;
        self.pending = 0;
        self.pin = Pin::Low;
        self.table = [0; TABLE_BYTES];
        for entry in self.table.chunks_exact_mut(msix::ENTRY_BYTES) {
            entry[msix::VECTOR_CONTROL] = msix::MASKED as u8;
        }
    }

    /// The client that the wiring served is gone, and its masks with it.
    pub fn forget_wiring(&mut self) {
        self.wire_masked = 0;
        self.armed = false;
        self.pin = Pin::Low;
    }

    /// Whether the client listens to the pin, and to no vector.
    pub fn has_pin_alone(&self) -> bool {
        !self.is_on() && self.out.has_pin()
    }

    pub fn is_on(&self) -> bool {
        self.armed || self.control & msix::ENABLE != 0
    }

    fn table_masked(&self, vector: u16) -> bool {
        let at = vector as usize * msix::ENTRY_BYTES + msix::VECTOR_CONTROL;
        let masked = self.table.get(at).is_some_and(|byte| u32::from(*byte) & msix::MASKED != 0);
        masked && self.written & bit(vector) != 0
    }

    fn is_masked(&self, vector: u16) -> bool {
        self.control & msix::FUNCTION_MASK != 0 || self.wire_masked & bit(vector) != 0 || self.table_masked(vector)
    }

    /// Delivers an MSI-X vector, or keeps it pending while it is masked.
    pub fn raise(&mut self, vector: u16) {
        if self.is_masked(vector) {
            self.pending |= bit(vector);
        } else {
            self.deliver(vector);
        }
    }

    /// Delivers the pin interrupt if `level` (a completion waits), unless it is up, held, or masked by message. `heads`
    /// changes when the guest reads a completion.
    pub fn set_pin(&mut self, level: bool, heads: u64) {
        if matches!(self.pin, Pin::Held { heads: before } if heads != before || !level) {
            self.pin = Pin::Low;
        }
        if level && self.pin == Pin::Low && self.wire_masked & 1 == 0 {
            if self.out.has_pin() {
                self.pin = Pin::Raised { heads };
            }
            self.deliver(0);
        }
    }

    /// Whether the pin waits for the guest to read what it was last raised for.
    pub fn pin_is_held(&self) -> bool {
        matches!(self.pin, Pin::Held { .. })
    }

    /// Ends that wait.
    pub fn release_pin(&mut self) {
        if self.pin_is_held() {
            self.pin = Pin::Low;
        }
    }

    fn deliver(&mut self, vector: u16) {
        self.raised += 1;
        self.out.raise(vector);
    }

    /// Delivers what is pending and not masked any more.
    fn flush(&mut self) {
        let mut pending = if self.is_on() { self.pending } else { 0 };
        while pending != 0 {
            let vector = pending.trailing_zeros() as u16;
            pending &= pending - 1;
            if !self.is_masked(vector) {
                self.pending &= !bit(vector);
                self.deliver(vector);
            }
        }
    }

    pub fn set_control(&mut self, control: u16) {
        self.control = control;
        self.flush();
    }

    pub fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        self.flush();
    }

    pub fn set_wire_mask(&mut self, vector: u16, masked: bool) {
        if masked {
            self.wire_masked |= bit(vector);
        } else {
            self.wire_masked &= !bit(vector);
            if let Pin::Raised { heads } = self.pin
                && vector == 0
            {
                self.pin = Pin::Held { heads };
            }
            self.flush();
        }
    }

    /// Reads bytes of BAR4: the table, then the pending bits, zeros elsewhere.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let pending = self.pending.to_le_bytes();
        for (at, byte) in (offset..).zip(out) {
            let pba = at.checked_sub(PBA_OFFSET).and_then(|at| pending.get(at as usize));
            *byte = self.table.get(at as usize).or(pba).copied().unwrap_or(0);
        }
    }

    /// Writes bytes of the table. The pending bits are read only.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            if let Some(cell) = self.table.get_mut(at as usize) {
                *cell = *byte;
                if at as usize % msix::ENTRY_BYTES == msix::VECTOR_CONTROL {
                    self.written |= bit((at as usize / msix::ENTRY_BYTES) as u16);
                }
            }
        }
        self.flush();
    }
}

/// The vector's bit; none for a vector that does not exist.
fn bit(vector: u16) -> u128 {
    if vector < VECTORS { 1 << vector } else { 0 }
}
