//! Programs: what the guest, its VMM and the device do, as the fuzzer chooses it. Most choices are nearly
//! valid, so that they get past the first check.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Result, Unstructured};
use bytemuck::Zeroable;
use nvme_spec::data::{DsmRange, SglDescriptor, psdt, sgl_type};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::{NSID_ALL, Sqe};

use super::namespaces::{NSIDS, Namespace};
use super::ram::{PAGE_BYTES, Ram, SLOTS};

const PAGE: u64 = PAGE_BYTES as u64;

/// One thing that happens.
#[derive(Debug)]
pub enum Step {
    /// An I/O command is put into a queue.
    Io { queue: u8, io: Io, then: Then },
    /// An admin command is put into its queue.
    Admin { command: Admin, then: Then },
    /// Anything is put into a queue.
    Raw { queue: u8, sqe: [u8; 64], then: Then },
    /// A doorbell is rung with any value.
    Doorbell { queue: u8, head: bool, value: u16, loudly: bool },
    /// The poller fetches, from all queues or from one.
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
    /// A namespace comes, grows or goes.
    Namespace { which: u8, choice: u8 },
}

impl<'a> Arbitrary<'a> for Step {
    /// Mostly commands, seldom what ends them all.
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u8::arbitrary(u)? {
            0..110 => Self::Io { queue: u.arbitrary()?, io: u.arbitrary()?, then: u.arbitrary()? },
            110..145 => Self::Admin { command: u.arbitrary()?, then: u.arbitrary()? },
            145..150 => Self::Raw { queue: u.arbitrary()?, sqe: u.arbitrary()?, then: u.arbitrary()? },
            150..165 => {
                let (queue, head) = u.arbitrary()?;
                Self::Doorbell { queue, head, value: u.arbitrary()?, loudly: u.arbitrary()? }
            }
            165..185 => Self::Poll { queue: u.arbitrary()?, budget: u.arbitrary()? },
            185..190 => Self::FetchBlindly { queue: u.arbitrary()? },
            190..210 => Self::Finish { which: u.arbitrary()?, answer: u.arbitrary()? },
            210..222 => Self::Consume { queue: u.arbitrary()? },
            222..228 => Self::Scribble { at: u.arbitrary()?, words: u.arbitrary()? },
            228..236 => Self::Map { slot: u.arbitrary()?, elsewhere: u.arbitrary()? },
            236..241 => Self::Unmap { slot: u.arbitrary()? },
            241 => Self::UnmapAll,
            242..245 => Self::Reset(u.arbitrary()?),
            245..248 => Self::BringUp { entries: u.arbitrary()?, pairs: u.arbitrary()? },
            248 => Self::Shutdown,
            249..252 => Self::Sleep(u.arbitrary()?),
            252..254 => Self::TakeOver,
            254..=255 => Self::Namespace { which: u.arbitrary()?, choice: u.arbitrary()? },
        })
    }
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
pub struct Place {
    kind: u8,
    slot: u8,
    page: u8,
    low: u16,
}

/// Slots that can be written, the largest more often.
const WRITABLE: [usize; 8] = [0, 1, 1, 1, 2, 4, 6, 1];

impl Place {
    /// The start of a page.
    pub fn page(slot: u8, page: u8) -> Self {
        Self { kind: 255, slot, page, low: 0 }
    }

    pub fn iova(self) -> u64 {
        let (low, any) = (u64::from(self.low), usize::from(self.slot) % SLOTS.len());
        let page_of = |slot: usize| SLOTS[slot].iova + u64::from(self.page) * PAGE % SLOTS[slot].len_bytes;
        let page = page_of(WRITABLE[usize::from(self.slot) % WRITABLE.len()]);
        match self.kind {
            0..180 => page,
            180..205 => page + low % 1024 * 4,
            // A few quadwords before the end, where lists have to go on elsewhere.
            205..220 => page + PAGE - 8 * (low % 5 + 1),
            220..230 => page + low % PAGE,
            230..245 => page_of(any) + low % 2 * 2048,
            245..250 => low << 48 | low << 12,
            250..254 => u64::MAX - low,
            254.. => page_of(any),
        }
    }
}

/// A data pointer.
#[derive(Debug, Arbitrary)]
pub struct Data {
    kind: u8,
    /// Where the data is.
    at: Place,
    /// Where a list is.
    list: Place,
    /// Where a list's second part is.
    chained: Place,
    /// Where other parts of the data are.
    more: Vec<Place>,
    tweak: u8,
    value: u16,
}

/// A block address.
#[derive(Debug, Arbitrary)]
pub struct Lba {
    kind: u8,
    value: u16,
}

impl Lba {
    fn value(&self, blocks: u64) -> u64 {
        let value = u64::from(self.value);
        match self.kind {
            0..110 => value % 24,
            110..210 => value % blocks.max(1),
            210..250 => blocks.wrapping_add(value % 24).wrapping_sub(20),
            250..254 => value << 48 | value,
            254.. => u64::MAX - value % 256,
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
    odd: Odd,
}

#[derive(Debug, Arbitrary)]
enum IoKind {
    Read,
    Write,
    Compare,
    Verify,
    WriteZeroes { long: bool },
    Flush { everywhere: bool },
    Discard { ranges: Vec<(Lba, u16)>, deallocate: bool, claims: u8 },
    Opcode(u8),
}

#[derive(Debug, Arbitrary)]
struct Odd {
    kind: u8,
    value: u16,
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
    pub namespaces: &'a BTreeMap<u32, Namespace>,
}

impl Driver<'_> {
    /// Writes what the command needs into guest memory.
    pub fn io(&mut self, io: &Io) -> Sqe {
        let nsid = if (150..230).contains(&io.odd.kind) { NSIDS[usize::from(io.odd.value) % NSIDS.len()] } else { 1 };
        // To one that is not there as if it were.
        let known = self.namespaces.get(&nsid).map(|namespace| (namespace.size_bytes, namespace.lba_shift));
        let (size_bytes, lba_shift) = known.unwrap_or((64 << 10, 9));
        let namespace_blocks = size_bytes >> lba_shift;
        let slba = io.lba.value(namespace_blocks);
        // Mostly less than a range of guest memory, sometimes more than one command may carry.
        let most_bytes = if io.nlb < 224 { 24 << 10 } else { 96 << 10 };
        let blocks = u64::from(io.nlb) % (most_bytes >> lba_shift) + 1;
        let mut sqe = Sqe { nsid, cdw10: slba as u32, cdw11: (slba >> 32) as u32, ..Sqe::zeroed() };
        sqe.cdw12 = blocks as u32 - 1;
        let mut len_bytes = blocks << lba_shift;
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
                sqe.nsid = if *everywhere { NSID_ALL } else { nsid };
                nvm::FLUSH
            }
            IoKind::Discard { ranges, deallocate, claims } => {
                let blocks = namespace_blocks;
                list = ranges.iter().take(256).map(|(lba, nlb)| (lba.value(blocks), u32::from(*nlb) % 70)).collect();
                let honest = list.len().saturating_sub(1) as u32;
                sqe.cdw10 = if *claims < 230 { honest } else { u32::from(*claims) };
                sqe.cdw11 = u32::from(*deallocate) << 2;
                sqe.cdw12 = 0;
                len_bytes = (u64::from(sqe.cdw10) + 1) * 16;
                nvm::DATASET_MANAGEMENT
            }
            IoKind::Opcode(opcode) => *opcode,
        };
        self.point(&mut sqe, &io.data, len_bytes);
        self.write_ranges(&sqe, &list);
        let value = u32::from(io.odd.value);
        match io.odd.kind {
            0..230 => {}
            230..233 => sqe.flags |= io.odd.value as u8 & 3,
            233..236 => sqe.flags |= (io.odd.value as u8) << 6,
            236..240 => sqe.nsid = value % 4,
            240..252 => sqe.cdw12 |= 1 << 30,
            252.. => sqe.cdw12 = value << 16 | value,
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
        let first = data.at.iova();
        let next = (first & !(PAGE - 1)).wrapping_add(PAGE);
        let count = (first % PAGE + len_bytes).div_ceil(PAGE).saturating_sub(1);
        let flat = (0..count).map(|page| next.wrapping_add(page * PAGE));
        match data.kind {
            // Pages one after the other.
            0..110 => sqe.dptr = [first, self.list(&flat.collect::<Vec<_>>(), data.list.iova())],
            // Some of them elsewhere.
            110..160 => {
                let others = data.more.iter().map(|place| Some(place.iova())).chain(std::iter::repeat(None));
                let pages: Vec<u64> = flat.zip(others).map(|(page, other)| other.unwrap_or(page)).collect();
                sqe.dptr = [first, self.list(&pages, data.list.iova())];
            }
            160..185 => {
                sqe.flags |= psdt::SGL << 6;
                let length = if data.tweak < 230 { len_bytes as u32 } else { data.value.into() };
                sqe.dptr = bytemuck::cast(SglDescriptor::new(sgl_type::DATA_BLOCK, first, length));
            }
            185..250 => {
                sqe.flags |= psdt::SGL << 6;
                sqe.dptr = bytemuck::cast(self.sgl(data, len_bytes));
            }
            250.. => sqe.dptr = [first, data.list.iova()],
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

    /// One or two segments of data blocks that mostly add up.
    fn sgl(&mut self, data: &Data, len_bytes: u64) -> SglDescriptor {
        let share = (u64::from(data.value) % 1024 * 4).min(len_bytes);
        let mut rest = len_bytes;
        let mut all = Vec::new();
        for place in data.more.iter().take(64) {
            let length = share.min(rest);
            rest -= length;
            all.push(SglDescriptor::new(sgl_type::DATA_BLOCK, place.iova(), length as u32));
        }
        all.push(SglDescriptor::new(sgl_type::DATA_BLOCK, data.at.iova(), rest as u32));
        let which = usize::from(data.value) % all.len();
        match data.tweak {
            0..235 => {}
            235..242 => all[which].length ^= 4,
            242..249 => all[which].kind = data.list.page,
            249.. => all[which].address = all[which].address.wrapping_add(2),
        }
        let mut head = sgl_type::LAST_SEGMENT;
        if data.tweak & 1 == 0 {
            let tail = all.split_off(which);
            let to = SglDescriptor::new(sgl_type::LAST_SEGMENT, data.chained.iova(), tail.len() as u32 * 16);
            self.ram.poke_at(data.chained.iova(), bytemuck::cast_slice(&tail));
            all.push(to);
            head = sgl_type::SEGMENT;
            // A segment that says that it is the last one, or the other way around.
            if data.tweak >= 240 {
                (head, all[which].kind) = (sgl_type::LAST_SEGMENT, sgl_type::DATA_BLOCK << 4);
            }
        }
        let at = data.list.iova();
        self.ram.poke_at(at, bytemuck::cast_slice(&all));
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
                sqe.nsid = if *everywhere { NSID_ALL } else { NSIDS[usize::from(*erase) / 3 % NSIDS.len()] };
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
        if data.tweak < 240 {
            sqe.flags = 0;
        }
    }
}

/// The usual flags, unless the choice says otherwise.
fn odd_flags(choice: u8, usual: u32) -> u32 {
    if choice < 240 { usual } else { u32::from(choice & 7) }
}
