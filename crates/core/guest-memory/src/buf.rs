//! The pieces of guest memory behind one command's data.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::Mapping;
use crate::access::{self, Lost};

/// One piece of host-virtual memory; laid out as the kernel's `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Segment {
    /// Its address, for handing to the kernel. Valid while the [`IoBuf`] it came from lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// Where one command's data lives: segments, and pins on the mappings they point into.
///
/// Most commands have one segment in one mapping and own no heap memory; longer lists spill to a
/// box that [`IoBuf::clear`] keeps, so that a recycled buffer does not allocate again.
#[derive(Debug, Default)]
pub struct IoBuf {
    one: Option<Segment>,
    pin: Option<Arc<Mapping>>,
    spill: Option<Box<Spill>>,
    len_bytes: u64,
}

#[derive(Debug, Default)]
struct Spill {
    segments: Vec<Segment>,
    pins: Vec<Arc<Mapping>>,
}

// SAFETY: the segments point into mappings that the pins keep alive; `Mapping` is Send and Sync.
unsafe impl Send for IoBuf {}

impl IoBuf {
    /// Memory of our own, for data that must be bounced.
    pub fn owned(mapping: &Arc<Mapping>) -> Self {
        let mut buf = Self::default();
        buf.push(mapping, 0, mapping.len_bytes());
        buf
    }

    /// Adds `len_bytes` of `mapping` from `offset`; merges with the previous segment where they
    /// touch. Returns `false`, and changes nothing, if they are not all inside.
    pub fn push(&mut self, mapping: &Arc<Mapping>, offset: u64, len_bytes: u64) -> bool {
        let Some(start) = mapping.at(offset, len_bytes) else { return false };
        if len_bytes == 0 {
            return true;
        }
        self.keep(mapping);
        self.len_bytes += len_bytes;
        let segment = Segment { start, len_bytes: len_bytes as usize };
        if let Some(last) = self.last_mut()
            && last.start.as_ptr().wrapping_add(last.len_bytes) == start.as_ptr()
        {
            last.len_bytes += segment.len_bytes;
            return true;
        }
        match self.one.take() {
            None if self.spilled().is_empty() => self.one = Some(segment),
            first => {
                let segments = &mut self.spill.get_or_insert_default().segments;
                segments.extend(first);
                segments.push(segment);
            }
        }
        true
    }

    /// Whether it has no pin yet.
    #[inline]
    pub(crate) fn is_unpinned(&self) -> bool {
        self.pin.is_none()
    }

    /// Gives it a pin, if there is one, on the mapping that is pushed next.
    #[inline]
    pub(crate) fn pin(&mut self, pin: Option<Arc<Mapping>>) {
        self.pin = pin;
    }

    /// Takes its first pin. It has to be cleared then.
    #[inline]
    pub(crate) fn take_pin(&mut self) -> Option<Arc<Mapping>> {
        self.pin.take()
    }

    fn keep(&mut self, mapping: &Arc<Mapping>) {
        match &self.pin {
            None => self.pin = Some(Arc::clone(mapping)),
            Some(pin) if Arc::ptr_eq(pin, mapping) => {}
            Some(_) => {
                let pins = &mut self.spill.get_or_insert_default().pins;
                if pins.last().is_none_or(|last| !Arc::ptr_eq(last, mapping)) {
                    pins.push(Arc::clone(mapping));
                }
            }
        }
    }

    fn spilled(&self) -> &[Segment] {
        self.spill.as_deref().map_or(&[], |spill| &spill.segments)
    }

    fn last_mut(&mut self) -> Option<&mut Segment> {
        match &mut self.one {
            Some(one) => Some(one),
            None => self.spill.as_deref_mut()?.segments.last_mut(),
        }
    }

    /// The segments, in order.
    pub fn segments(&self) -> &[Segment] {
        match &self.one {
            Some(one) => std::slice::from_ref(one),
            None => self.spilled(),
        }
    }

    /// The mappings that the segments point into, each at least once.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        let spilled = self.spill.as_deref().map_or(&[][..], |spill| &spill.pins);
        self.pin.iter().chain(spilled).map(|pin| &**pin)
    }

    /// Bytes in all segments together.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Forgets segments and pins; keeps the spilled lists' capacity.
    pub fn clear(&mut self) {
        self.one = None;
        self.pin = None;
        self.len_bytes = 0;
        if let Some(spill) = &mut self.spill {
            spill.segments.clear();
            spill.pins.clear();
        }
    }

    /// `len_bytes` of it from `skip_bytes`, or as many as there are, pinned for themselves.
    pub fn part(&self, skip_bytes: u64, len_bytes: u64) -> Self {
        let (mut skip, mut wanted) = (skip_bytes, len_bytes);
        let mut part = Self { len_bytes: self.len_bytes.saturating_sub(skip_bytes).min(len_bytes), ..Self::default() };
        let mut segments = Vec::new();
        for segment in self.segments() {
            if wanted == 0 {
                break;
            }
            let skipped = skip.min(segment.len_bytes as u64);
            let taken = wanted.min(segment.len_bytes as u64 - skipped);
            skip -= skipped;
            wanted -= taken;
            if taken > 0 {
                // SAFETY: it stays inside of the segment, which is longer.
                let start = unsafe { segment.start.add(skipped as usize) };
                segments.push(Segment { start, len_bytes: taken as usize });
            }
        }
        // All pins: which mapping a segment points into is not noted.
        part.pin = self.pin.clone();
        let pins = self.spill.as_deref().map_or_else(Vec::new, |spill| spill.pins.clone());
        if pins.is_empty() && segments.len() <= 1 {
            part.one = segments.pop();
        } else {
            part.spill = Some(Box::new(Spill { segments, pins }));
        }
        part
    }

    /// Whether it owns lists worth recycling.
    pub fn has_spill(&self) -> bool {
        self.spill.is_some()
    }

    /// Copies from the segments into `out`, as much as both hold; returns the bytes copied, fewer if memory is lost.
    #[must_use = "less than all of it may be there"]
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        self.copy_to_at(0, out)
    }

    /// Like [`IoBuf::copy_to`], but leaves out the segments' first `skip_bytes`.
    #[must_use = "less than all of it may be there"]
    pub fn copy_to_at(&self, skip_bytes: u64, out: &mut [u8]) -> usize {
        let (mut skip, mut done) = (usize::try_from(skip_bytes).unwrap_or(usize::MAX), 0);
        for segment in self.segments() {
            let skipped = segment.len_bytes.min(skip);
            skip -= skipped;
            let n = (segment.len_bytes - skipped).min(out.len() - done);
            // SAFETY: `skipped + n` bytes of the segment are inside a pinned mapping; `out[done..done + n]` is ours.
            let copied = unsafe { access::copy(segment.as_ptr().add(skipped), out[done..].as_mut_ptr(), n) };
            if let Err(lost) = copied {
                self.fault(segment, lost);
                break;
            }
            done += n;
        }
        done
    }

    /// Copies from `data` into the segments, as much as both hold; returns the bytes copied, fewer if memory is lost.
    #[must_use = "less than all of it may be there"]
    pub fn copy_from(&self, data: &[u8]) -> usize {
        self.copy_from_at(0, data)
    }

    /// Like [`IoBuf::copy_from`], but leaves out the segments' first `skip_bytes`.
    pub fn copy_from_at(&self, skip_bytes: u64, data: &[u8]) -> usize {
        let (mut skip, mut done) = (usize::try_from(skip_bytes).unwrap_or(usize::MAX), 0);
        for segment in self.segments() {
            let skipped = segment.len_bytes.min(skip);
            skip -= skipped;
            let n = (segment.len_bytes - skipped).min(data.len() - done);
            // SAFETY: `skipped + n` bytes of the segment are inside a pinned mapping that was pushed for writing.
            let copied = unsafe { access::copy(data[done..].as_ptr(), segment.as_ptr().add(skipped), n) };
            if let Err(lost) = copied {
                self.fault(segment, lost);
                break;
            }
            done += n;
        }
        done
    }

    /// Copies between the segments and `len_bytes` of `mapping` from `offset`; `to_mapping` tells the
    /// direction. Returns `false` if the range is not all inside (nothing was copied then) or memory is lost.
    #[must_use = "nothing, or less than all of it, may be there"]
    pub fn copy_mapping(&self, mapping: &Mapping, offset: u64, to_mapping: bool) -> bool {
        let Some(base) = mapping.at(offset, self.len_bytes) else { return false };
        if to_mapping && !mapping.is_writable() {
            return false;
        }
        let mut done = 0;
        for segment in self.segments() {
            // SAFETY: `done` stays below len_bytes, all of which `at` checked.
            let other = unsafe { base.add(done) }.as_ptr();
            let (src, dst) = if to_mapping { (segment.as_ptr(), other) } else { (other, segment.as_ptr()) };
            // SAFETY: both sides are inside live mappings. A tenant can make them overlap only by
            // sharing our own memory with us, and then what it gets is a mix.
            if let Err(lost) = unsafe { access::copy(src, dst, segment.len_bytes) } {
                self.fault(segment, lost);
                return false;
            }
            done += segment.len_bytes;
        }
        true
    }

    /// A segment's memory could not be reached.
    #[cold]
    fn fault(&self, segment: &Segment, lost: Lost) {
        let at = segment.as_ptr() as usize;
        // Segments that touch are one: it may reach into the next mapping, which is the same client's.
        self.mappings().filter(|mapping| mapping.addresses().contains(&at)).for_each(|mapping| mapping.fault(lost));
    }
}
