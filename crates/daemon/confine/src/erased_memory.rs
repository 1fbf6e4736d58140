//! Memory that is overwritten once it is free, so that no key stays in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

/// Longest block that is overwritten, in bytes. Keys arrive in requests, and those are shorter.
const LONGEST_BYTES: usize = 64 << 10;

/// The system's allocator. It overwrites blocks of up to 64 KiB with zeros when they are freed: libraries keep parts of
/// a request in buffers of their own, and a request may hold a key.
#[derive(Debug, Clone, Copy)]
pub struct ErasingAllocator;

// SAFETY: all memory is System's, under the same layouts.
unsafe impl GlobalAlloc for ErasingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is System's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is System's condition.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() <= LONGEST_BYTES {
            // SAFETY: the caller gives up a live block of this layout. The compiler may not drop these writes, since
            // `black_box` may read them.
            unsafe { black_box(block).write_bytes(0, layout.size()) };
            black_box(block);
        }
        // SAFETY: the caller's promise is System's condition.
        unsafe { System.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        if layout.size() > LONGEST_BYTES {
            // SAFETY: the caller's promise is System's condition.
            return unsafe { System.realloc(block, layout, new_bytes) };
        }
        // SAFETY: the caller promises that `new_bytes` fits this alignment.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(new_bytes, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both blocks are live and apart, and as long as the copy. The former one is given up here.
            unsafe {
                moved.copy_from_nonoverlapping(block, layout.size().min(new_bytes));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}
