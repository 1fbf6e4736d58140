//! A back end that watches who submits to it.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use guest_memory::{Mapping, Refused};
use io_model::{Backend, Done, HwqId, Io, IoBuf, Nanos, TenantId};

/// Panics if its caller breaks the contract of [`Backend`].
///
/// It checks for more commands than a queue holds, a tag that is in flight already, a buffer that is not as long as the
/// range, and a command into memory that its tenant was not given. It also checks for memory that is taken back while a
/// command points into it, or that was never given. Faults that the contract allows a caller (a range or a queue that
/// does not exist) pass: the drive below refuses them.
pub struct Checked<B> {
    inner: B,
    in_flight: HashMap<u32, Flight>,
    /// Commands in each HWQ.
    used: Vec<u32>,
    told: Vec<(TenantId, Range<usize>)>,
    kicks: u64,
}

struct Flight {
    hwq: HwqId,
    tenant: TenantId,
    segments: Vec<Range<usize>>,
}

fn segments(buf: &IoBuf) -> Vec<Range<usize>> {
    let range = |start: usize, len_bytes: usize| start..start + len_bytes;
    buf.segments().iter().map(|segment| range(segment.as_ptr() as usize, segment.len_bytes())).collect()
}

impl<B: Backend> Checked<B> {
    /// Around `inner`, which nobody has told of memory yet.
    pub fn new(inner: B) -> Self {
        let used = vec![0; inner.hwqs().into()];
        Self { inner, in_flight: HashMap::new(), used, told: Vec::new(), kicks: 0 }
    }

    /// How often it was kicked.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Mappings that are told and not taken back.
    pub fn mappings(&self) -> usize {
        self.told.len()
    }

    /// Whether each byte of the segment is in memory of the tenant, or in memory of our own that came with the command.
    fn is_reachable(&self, tenant: TenantId, segment: &Range<usize>, buf: &IoBuf) -> bool {
        let mut at = segment.start;
        while at < segment.end {
            let told = self.told.iter().filter(|(of, _)| *of == tenant).map(|(_, range)| range.clone());
            let own = buf.mappings().filter(|mapping| mapping.is_own()).map(Mapping::addresses);
            let Some(range) = told.chain(own).find(|range| range.contains(&at)) else { return false };
            at = range.end;
        }
        true
    }
}

impl<B: Backend> Backend for Checked<B> {
    fn hwqs(&self) -> u16 {
        self.inner.hwqs()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        let (command, depth) = (io.command, self.inner.depth());
        if let Some(used) = self.used.get_mut(usize::from(hwq.0)) {
            *used += 1;
            assert!(*used <= depth, "{hwq:?} holds {depth} and gets one more: {command:?}");
        }
        let segments = segments(&io.buf);
        for segment in &segments {
            let reachable = self.is_reachable(command.tenant, segment, &io.buf);
            assert!(reachable, "{command:?} points to {segment:x?}, memory that nobody told of");
        }
        let has_data = command.op.has_data();
        assert!(has_data || segments.is_empty(), "{command:?} has data");
        let flight = Flight { hwq, tenant: command.tenant, segments };
        assert!(self.in_flight.insert(io.tag, flight).is_none(), "tag {} is in flight already", io.tag);
        self.inner.submit(hwq, io, now);
    }

    fn kick(&mut self) {
        self.kicks += 1;
        self.inner.kick();
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        let Self { inner, in_flight, used, .. } = self;
        inner.reap(now, &mut |hwq, one| {
            let flight = in_flight.remove(&one.tag);
            let flight = flight.unwrap_or_else(|| panic!("tag {} was completed and is not in flight", one.tag));
            assert_eq!(hwq, flight.hwq, "tag {} came back from another queue", one.tag);
            if let Some(used) = used.get_mut(usize::from(hwq.0)) {
                *used -= 1;
            }
            done(hwq, one);
        });
    }

    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }

    fn wake_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_fd()
    }

    fn map_memory(&mut self, tenant: TenantId, mapping: &Mapping) -> Result<(), Refused> {
        self.inner.map_memory(tenant, mapping)?;
        self.told.push((tenant, mapping.addresses()));
        Ok(())
    }

    fn unmap_memory(&mut self, tenant: TenantId, mapping: &Mapping) {
        let addresses = mapping.addresses();
        let at = self.told.iter().position(|(of, range)| *of == tenant && *range == addresses);
        let at = at.unwrap_or_else(|| panic!("{tenant:?} was never given memory at {addresses:x?}"));
        self.told.swap_remove(at);
        let still_told = self.told.iter().any(|(of, range)| *of == tenant && *range == addresses);
        for (tag, flight) in self.in_flight.iter().filter(|(_, flight)| flight.tenant == tenant && !still_told) {
            let meets = |segment: &Range<usize>| segment.start < addresses.end && addresses.start < segment.end;
            let used = flight.segments.iter().any(meets);
            assert!(!used, "memory at {addresses:x?} is taken back, and the command with tag {tag} uses it");
        }
        self.inner.unmap_memory(tenant, mapping);
    }
}
