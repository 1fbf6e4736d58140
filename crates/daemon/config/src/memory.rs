//! How much memory a tenant's client may have mapped.

use io_model::units::Size;

use crate::keys::{USUAL_MAPS, USUAL_MEMORY, tenant};
use crate::problem::Sink;
use crate::section::Section;

/// How much memory a tenant's client may have mapped at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes, in whole pages of what is mapped. 1 MiB or more.
    pub max_memory: Size,
    /// Mappings: DMA maps or memory regions, and a log of requests in flight. 4 to 4096.
    pub max_maps: u32,
}

/// Address space that all tenants' clients together may have mapped: three quarters of what x86-64 gives a process.
pub(crate) const ALL_MEMORY: Size = Size(96 << 40);
/// Mappings that they may have together: what Linux lets a process have (`vm.max_map_count`, 65530) without ours.
pub(crate) const ALL_MAPS: u64 = 64_000;

impl MemoryLimits {
    /// What a tenant has that says nothing, where `tenants` share the drive: more than the memory of most virtual
    /// machines, in many more pieces than they have.
    pub fn default_among(tenants: usize) -> Self {
        let tenants = tenants.max(1) as u64;
        let share = ALL_MEMORY.0 / tenants;
        Self {
            max_memory: Size(USUAL_MEMORY.0.min(share - share % (1 << 20))),
            max_maps: u64::from(USUAL_MAPS).min(ALL_MAPS / tenants) as u32,
        }
    }
}

/// [`MemoryLimits`] as far as they could be read.
pub(crate) struct MemoryDraft {
    pub max_memory: Option<Size>,
    pub max_maps: Option<u32>,
    /// Whether each of the two is written.
    pub is_written: [bool; 2],
}

pub(crate) fn read_memory(sink: &mut Sink<'_>, section: &Section<'_, '_>, tenants: usize) -> MemoryDraft {
    let MemoryLimits { max_memory, max_maps } = MemoryLimits::default_among(tenants);
    let found = tenant::MAX_MEMORY.get_if_any(sink, section).map(|found| found.unwrap_or(max_memory));
    let least = Size(1 << 20);
    if found.is_some_and(|found| found < least)
        && let Some((_, value)) = section.entry("max_memory")
    {
        let remedy = format!("write at least the memory of the tenant's guest, and no less than \"{least}\"");
        sink.at(&value.span(), format!("max_memory is {}", found.unwrap_or_default()), remedy);
    }
    MemoryDraft {
        max_memory: found,
        max_maps: tenant::MAX_MAPS.get_if_any(sink, section).map(|found| found.unwrap_or(max_maps)),
        is_written: ["max_memory", "max_maps"].map(|key| section.has(key)),
    }
}

impl MemoryDraft {
    pub fn finish(self) -> Option<MemoryLimits> {
        Some(MemoryLimits { max_memory: self.max_memory?, max_maps: self.max_maps? })
    }
}
