//! Programs: what the guest, its VMM and the device do, as the fuzzer chooses it. Most choices are nearly
//! valid, so that they get past the first check.

use arbitrary::Arbitrary;
use bytemuck::Zeroable;
use nvme_spec::data::{DsmRange, SglDescriptor, psdt, sgl_type};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::{NSID_ALL, Sqe};

use super::ram::{PAGE_BYTES, Ram, SLOTS};

const PAGE: u64 = PAGE_BYTES as u64;

/// One thing that happens.
#[derive(Debug, Arbitrary)]
pub enum Step {
    /// An I/O command is put into a queue.
    Io { queue: u8, io: Io, then: Then },
    /// Once more, as most of a program should be this.
    MoreIo { queue: u8, io: Io, then: Then },
    /// An admin command is put into its queue.
    Admin { command: Admin, then: Then },
    /// Anything is put into a queue.
    Raw { queue: u8, sqe: [u8; 64], then: Then },
    /// A doorbell is rung with any value.
    Bell { queue: u8, head: bool, value: u16, loudly: bool },
    /// The poller fetches.
    Poll { queue: Option<u8>, budget: u8 },
    /// The poller fetches without looking at the backlog again.
    FetchBlindly { queue: u8 },
    /// The device ends one command.
    Finish { which: u8, answer: u8 },
    /// The guest consumes completions.
    Consume { queue: u8 },
    /// The guest writes to its memory.
    Scribble { at: Place, words: [u64; 2] },
    /// The VMM maps a range, perhaps to another place of its file.
    Map { slot: u8, elsewhere: bool },
    /// The VMM takes a range away.
    Unmap { slot: u8 },
    /// The VMM takes all of them away.
    UnmapAll,
    /// A reset of some kind; what is in flight stays so.
    Reset(Reset),
    /// The guest brings the controller up again.
    BringUp { entries: u8, pairs: u8 },
    /// The guest asks for a shutdown.
    Shutdown,
    /// The poller goes to sleep, or wakes up.
    Sleep(bool),
    /// A restarted daemon takes over, if nothing is in flight.
    TakeOver,
}

/// What happens next to a command that was put into a queue.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Then {
    Nothing,
    Fetch,
    Finish,
    Consume,
}

/// A kind of reset.
#[derive(Debug, Arbitrary)]
pub enum Reset {
    Disable,
    Subsystem,
    Function,
    Device,
    ClientGone,
}

/// An address of guest memory.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Place {
    Page {
        slot: u8,
        page: u8,
    },
    Dword {
        slot: u8,
        page: u8,
        dword: u16,
    },
    Byte {
        slot: u8,
        offset: u16,
    },
    /// A few quadwords before the end of a page, where lists have to go on elsewhere.
    PageEnd {
        slot: u8,
        page: u8,
        quadwords: u8,
    },
    Wild(u64),
}

impl Place {
    pub fn iova(self) -> u64 {
        let slot_of = |slot: u8| &SLOTS[usize::from(slot) % SLOTS.len()];
        let page_of = |slot: u8, page: u8| {
            let slot = slot_of(slot);
            slot.iova + u64::from(page) * PAGE % slot.len_bytes
        };
        match self {
            Self::Page { slot, page } => page_of(slot, page),
            Self::Dword { slot, page, dword } => page_of(slot, page) + u64::from(dword % 1024) * 4,
            Self::PageEnd { slot, page, quadwords } => page_of(slot, page) + PAGE - 8 * u64::from(quadwords % 5 + 1),
            Self::Byte { slot, offset } => slot_of(slot).iova + u64::from(offset) % slot_of(slot).len_bytes,
            Self::Wild(iova) => iova,
        }
    }
}

/// A data pointer.
#[derive(Debug, Arbitrary)]
pub enum Data {
    /// Pages one after the other.
    Flat {
        at: Place,
        list: Place,
    },
    /// Any pages.
    Pages {
        first: Place,
        rest: Vec<Place>,
        list: Place,
    },
    /// One SGL data block.
    Block {
        at: Place,
        lie: Option<u32>,
    },
    /// SGL segments of data blocks.
    Sgl {
        blocks: Vec<(Place, u16)>,
        at: Place,
        chain: Option<(u8, Place)>,
        damage: Option<(u8, u8)>,
        fit: bool,
    },
    Raw([u64; 2]),
}

/// A block address.
#[derive(Debug, Arbitrary)]
pub enum Lba {
    Start(u8),
    Any(u16),
    NearEnd(i8),
    Wild(u64),
}

impl Lba {
    fn value(&self, blocks: u64) -> u64 {
        match *self {
            Self::Start(lba) => u64::from(lba % 16),
            Self::Any(lba) => u64::from(lba) % blocks.max(1),
            Self::NearEnd(from_end) => blocks.wrapping_add_signed((from_end % 20).into()),
            Self::Wild(lba) => lba,
        }
    }
}

/// An I/O command.
#[derive(Debug, Arbitrary)]
pub struct Io {
    kind: IoKind,
    lba: Lba,
    /// 0's based, cut to what mostly is within the transfer limit.
    nlb: u8,
    data: Data,
    /// Overrides of what should be zero.
    odd: Option<Odd>,
}

#[derive(Debug, Arbitrary)]
enum IoKind {
    Read,
    Write,
    Compare,
    Verify,
    WriteZeroes { long: bool },
    Flush { everywhere: bool },
    Discard { ranges: Vec<(Lba, u16)>, deallocate: bool, claims: Option<u8> },
    Opcode(u8),
}

#[derive(Debug, Arbitrary)]
enum Odd {
    Fuse(u8),
    Psdt(u8),
    Nsid(u32),
    Fua,
    Cdw12(u32),
}

/// An admin command.
#[derive(Debug, Arbitrary)]
pub enum Admin {
    CreateCq { qid: u8, entries: u16, at: Place, vector: u8, flags: u8 },
    CreateSq { qid: u8, cqid: u8, entries: u16, at: Place, flags: u8 },
    DeleteCq { qid: u8 },
    DeleteSq { qid: u8 },
    Identify { cns: u8, nsid: u8, data: Data },
    GetLog { page: u8, dwords: u16, offset: u16, keep: bool, data: Data },
    SetFeature { id: u8, value: u32, data: Data },
    GetFeature { id: u8, select: u8, value: u32, data: Data },
    EventRequest,
    Abort { queue: u8, cid: u16 },
    Doorbells { shadow: Place, events: Place },
    Format { lbaf: u8, erase: u8, everywhere: bool },
    Other { opcode: u8, dwords: [u32; 4], data: Data },
}

/// What a builder has to know.
pub struct Driver<'a> {
    pub ram: &'a mut Ram,
    pub lba_shift: u32,
    pub size_bytes: u64,
}

impl Driver<'_> {
    /// Writes what the command needs into guest memory.
    pub fn io(&mut self, io: &Io) -> Sqe {
        let namespace_blocks = self.size_bytes >> self.lba_shift;
        let slba = io.lba.value(namespace_blocks);
        // Mostly less than a range of guest memory, sometimes more than one command may carry.
        let most_bytes = if io.nlb < 224 { 24 << 10 } else { 96 << 10 };
        let blocks = u64::from(io.nlb) % (most_bytes >> self.lba_shift) + 1;
        let mut sqe = Sqe { nsid: 1, cdw10: slba as u32, cdw11: (slba >> 32) as u32, ..Sqe::zeroed() };
        sqe.cdw12 = blocks as u32 - 1;
        let mut len_bytes = blocks << self.lba_shift;
        let mut list = Vec::new();
        sqe.opc = match &io.kind {
            IoKind::Read => nvm::READ,
            IoKind::Write => nvm::WRITE,
            IoKind::Compare => nvm::COMPARE,
            IoKind::Verify => nvm::VERIFY,
            IoKind::WriteZeroes { long } => {
                sqe.cdw12 += if *long { 200 } else { 0 };
                nvm::WRITE_ZEROES
            }
            IoKind::Flush { everywhere } => {
                sqe.nsid = if *everywhere { NSID_ALL } else { 1 };
                nvm::FLUSH
            }
            IoKind::Discard { ranges, deallocate, claims } => {
                let blocks = namespace_blocks;
                list = ranges.iter().take(256).map(|(lba, nlb)| (lba.value(blocks), u32::from(*nlb) % 70)).collect();
                sqe.cdw10 = u32::from(claims.unwrap_or(list.len().saturating_sub(1) as u8));
                sqe.cdw11 = u32::from(*deallocate) << 2;
                sqe.cdw12 = 0;
                len_bytes = (u64::from(sqe.cdw10) + 1) * 16;
                nvm::DATASET_MANAGEMENT
            }
            IoKind::Opcode(opcode) => *opcode,
        };
        self.point(&mut sqe, &io.data, len_bytes);
        self.write_ranges(&sqe, &list);
        match io.odd {
            Some(Odd::Fuse(fuse)) => sqe.flags |= fuse & 3,
            Some(Odd::Psdt(psdt)) => sqe.flags |= psdt << 6,
            Some(Odd::Nsid(nsid)) => sqe.nsid = nsid,
            Some(Odd::Fua) => sqe.cdw12 |= 1 << 30,
            Some(Odd::Cdw12(value)) => sqe.cdw12 = value,
            None => {}
        }
        sqe
    }

    /// Dataset Management's ranges, where its first data pointer entry points to.
    fn write_ranges(&mut self, sqe: &Sqe, ranges: &[(u64, u32)]) {
        let ranges = ranges.iter().map(|(slba, nlb)| DsmRange { cattr: 0, nlb: *nlb, slba: *slba });
        let bytes: Vec<u8> = ranges.flat_map(|range| bytemuck::bytes_of(&range).to_vec()).collect();
        self.ram.poke_at(sqe.dptr[0], &bytes);
    }

    fn point(&mut self, sqe: &mut Sqe, data: &Data, len_bytes: u64) {
        match data {
            Data::Flat { at, list } => {
                let first = at.iova();
                let next = (first & !(PAGE - 1)).wrapping_add(PAGE);
                let count = (first % PAGE + len_bytes).div_ceil(PAGE).saturating_sub(1);
                let pages: Vec<u64> = (0..count).map(|page| next.wrapping_add(page * PAGE)).collect();
                sqe.dptr = [first, self.list(&pages, list.iova())];
            }
            Data::Pages { first, rest, list } => {
                let pages: Vec<u64> = rest.iter().take(40).map(|page| page.iova()).collect();
                sqe.dptr = [first.iova(), self.list(&pages, list.iova())];
            }
            Data::Block { at, lie } => {
                sqe.flags |= psdt::SGL << 6;
                let length = lie.unwrap_or(len_bytes as u32);
                sqe.dptr = bytemuck::cast(SglDescriptor::new(sgl_type::DATA_BLOCK, at.iova(), length));
            }
            Data::Sgl { blocks, at, chain, damage, fit } => {
                sqe.flags |= psdt::SGL << 6;
                sqe.dptr = bytemuck::cast(self.sgl(blocks, at.iova(), *chain, *damage, fit.then_some(len_bytes)));
            }
            Data::Raw(dptr) => sqe.dptr = *dptr,
        }
    }

    /// PRP entry 2 for these pages; a list goes to `at`, going on in the next page where it has to.
    fn list(&mut self, pages: &[u64], at: u64) -> u64 {
        if let [] | [_] = pages {
            return pages.first().copied().unwrap_or(at);
        }
        let mut to = at;
        for (index, page) in pages.iter().enumerate() {
            if to % PAGE == PAGE - 8 && index + 1 < pages.len() {
                let next = to.wrapping_add(8);
                self.ram.poke_at(to, &next.to_le_bytes());
                to = next;
            }
            self.ram.poke_at(to, &page.to_le_bytes());
            to = to.wrapping_add(8);
        }
        at
    }

    fn sgl(
        &mut self,
        blocks: &[(Place, u16)],
        at: u64,
        chain: Option<(u8, Place)>,
        damage: Option<(u8, u8)>,
        fit: Option<u64>,
    ) -> SglDescriptor {
        let data = |(place, dwords): &(Place, u16)| {
            SglDescriptor::new(sgl_type::DATA_BLOCK, place.iova(), u32::from(dwords % 4096) * 4)
        };
        let mut all: Vec<SglDescriptor> = blocks.iter().take(64).map(data).collect();
        if let (Some(len_bytes), Some((last, others))) = (fit, all.split_last_mut()) {
            let before: u64 = others.iter().map(|block| u64::from(block.length)).sum();
            last.length = len_bytes.saturating_sub(before) as u32;
        }
        if let Some((which, kind)) = damage
            && let Some(count) = std::num::NonZeroUsize::new(all.len())
        {
            all[usize::from(which) % count].kind = kind;
        }
        let (head, tail) = match chain {
            Some((split, place)) => {
                let tail = all.split_off(usize::from(split) % (all.len() + 1));
                let to = SglDescriptor::new(sgl_type::LAST_SEGMENT, place.iova(), tail.len() as u32 * 16);
                all.push(to);
                (sgl_type::SEGMENT, Some((place.iova(), tail)))
            }
            None => (sgl_type::LAST_SEGMENT, None),
        };
        self.ram.poke_at(at, bytemuck::cast_slice(&all));
        if let Some((place, tail)) = tail {
            self.ram.poke_at(place, bytemuck::cast_slice(&tail));
        }
        SglDescriptor::new(head, at, all.len() as u32 * 16)
    }

    /// Writes what the command needs into guest memory.
    pub fn admin(&mut self, command: &Admin) -> Sqe {
        let mut sqe = Sqe::zeroed();
        let queue = |qid: u8, entries: u16| u32::from(qid % 6) | u32::from(entries).wrapping_sub(1) << 16;
        match command {
            Admin::CreateCq { qid, entries, at, vector, flags } => {
                sqe.opc = admin::CREATE_CQ;
                sqe.cdw10 = queue(*qid, entries % 72);
                sqe.cdw11 = u32::from(*vector) << 16 | odd_flags(*flags, 3);
                sqe.dptr = [at.iova(), 0];
            }
            Admin::CreateSq { qid, cqid, entries, at, flags } => {
                sqe.opc = admin::CREATE_SQ;
                sqe.cdw10 = queue(*qid, entries % 72);
                sqe.cdw11 = u32::from(*cqid % 6) << 16 | odd_flags(*flags, 1);
                sqe.dptr = [at.iova(), 0];
            }
            Admin::DeleteCq { qid } => (sqe.opc, sqe.cdw10) = (admin::DELETE_CQ, u32::from(qid % 6)),
            Admin::DeleteSq { qid } => (sqe.opc, sqe.cdw10) = (admin::DELETE_SQ, u32::from(qid % 6)),
            Admin::Identify { cns, nsid, data } => {
                (sqe.opc, sqe.cdw10, sqe.nsid) = (admin::IDENTIFY, u32::from(cns % 0x20), u32::from(nsid % 3));
                self.point_admin(&mut sqe, data, 4096);
            }
            Admin::GetLog { page, dwords, offset, keep, data } => {
                sqe.opc = admin::GET_LOG_PAGE;
                sqe.nsid = NSID_ALL;
                sqe.cdw10 = u32::from(page % 8) | u32::from(*keep) << 15 | u32::from(*dwords) << 16;
                sqe.cdw12 = u32::from(offset % 2048) * 4;
                self.point_admin(&mut sqe, data, (u64::from(*dwords) + 1) * 4);
            }
            Admin::SetFeature { id, value, data } => {
                (sqe.opc, sqe.cdw10, sqe.cdw11) = (admin::SET_FEATURES, u32::from(id % 0x1a), *value);
                self.point_admin(&mut sqe, data, 512);
            }
            Admin::GetFeature { id, select, value, data } => {
                sqe.opc = admin::GET_FEATURES;
                (sqe.cdw10, sqe.cdw11) = (u32::from(id % 0x1a) | u32::from(select % 4) << 8, *value);
                self.point_admin(&mut sqe, data, 512);
            }
            Admin::EventRequest => sqe.opc = admin::ASYNC_EVENT_REQUEST,
            Admin::Abort { queue, cid } => {
                (sqe.opc, sqe.cdw10) = (admin::ABORT, u32::from(queue % 4) | u32::from(cid % 256) << 16);
            }
            Admin::Doorbells { shadow, events } => {
                (sqe.opc, sqe.dptr) = (admin::DOORBELL_BUFFER_CONFIG, [shadow.iova(), events.iova()]);
            }
            Admin::Format { lbaf, erase, everywhere } => {
                sqe.opc = admin::FORMAT_NVM;
                sqe.nsid = if *everywhere { NSID_ALL } else { 1 };
                sqe.cdw10 = u32::from(lbaf % 3) | u32::from(erase % 3) << 9;
            }
            Admin::Other { opcode, dwords: [a, b, c, d], data } => {
                sqe.opc = *opcode;
                (sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.nsid) = (*a, *b, *c, *d);
                self.point_admin(&mut sqe, data, 4096);
            }
        }
        sqe
    }

    fn point_admin(&mut self, sqe: &mut Sqe, data: &Data, len_bytes: u64) {
        self.point(sqe, data, len_bytes);
        // Most should get past the check that admin commands use PRPs.
        if !matches!(data, Data::Sgl { .. }) {
            sqe.flags = 0;
        }
    }
}

/// The usual flags, unless the choice says otherwise.
fn odd_flags(choice: u8, usual: u32) -> u32 {
    if choice < 240 { usual } else { u32::from(choice & 7) }
}
