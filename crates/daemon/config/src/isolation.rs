//! What keeps a tenant from its neighbours: whether it shares a poller, and how much memory its client may have mapped.

use io_model::units::Size;
use toml::Spanned;

use crate::check::Draft;
use crate::problem::Sink;
use crate::section::{Section, choice, integer, or, size};

/// Whom a tenant shares its poller with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Others, where the layout of the pollers says so.
    #[default]
    Shared,
    /// Nobody: what its client does to its own memory holds up no other tenant.
    OwnPoller,
}

/// How much memory a tenant's client may have mapped at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes, in whole pages of what is mapped. 1 MiB or more.
    pub max_memory: Size,
    /// Mappings: DMA maps or memory regions, and a log of requests in flight. 4 to 4096.
    pub max_maps: u32,
}

/// Address space that all tenants' clients together may have mapped: three quarters of what x86-64 gives a process.
const ALL_MEMORY: Size = Size(96 << 40);
/// Mappings that they may have together: what Linux lets a process have (`vm.max_map_count`, 65530) without ours.
const ALL_MAPS: u64 = 64_000;

impl MemoryLimits {
    /// What a tenant has that says nothing, where `tenants` share the drive: more than the memory of most virtual
    /// machines, in many more pieces than they have.
    pub fn default_among(tenants: usize) -> Self {
        let tenants = tenants.max(1) as u64;
        let share = ALL_MEMORY.0 / tenants;
        Self {
            max_memory: Size((256 << 30).min(share - share % (1 << 20))),
            max_maps: 128.min(ALL_MAPS / tenants) as u32,
        }
    }
}

pub(crate) struct IsolationDraft {
    pub isolation: Option<Spanned<Isolation>>,
    pub max_memory: Option<Size>,
    pub max_maps: Option<u32>,
}

pub(crate) fn read_isolation(sink: &mut Sink<'_>, section: &Section<'_, '_>, tenants: usize) -> IsolationDraft {
    let words = [("shared", Isolation::Shared), ("own-poller", Isolation::OwnPoller)];
    let isolation = match section.has("isolation") {
        true => section.get(sink, "isolation", choice(&words, &[])),
        false => Some(Spanned::new(0..0, Isolation::Shared)),
    };
    let MemoryLimits { max_memory, max_maps } = MemoryLimits::default_among(tenants);
    let found = or(sink, section, "max_memory", max_memory, size);
    let least = Size(1 << 20);
    if found.is_some_and(|found| found < least)
        && let Some((_, value)) = section.entry("max_memory")
    {
        let remedy = format!("write at least the memory of the tenant's guest, and no less than \"{least}\"");
        sink.at(&value.span(), format!("max_memory is {}", found.unwrap_or_default()), remedy);
    }
    IsolationDraft {
        isolation,
        max_memory: found,
        max_maps: or(sink, section, "max_maps", max_maps, integer(4..=4096)),
    }
}

impl IsolationDraft {
    pub fn finish(self) -> Option<(Isolation, MemoryLimits)> {
        let limits = MemoryLimits { max_memory: self.max_memory?, max_maps: self.max_maps? };
        Some((self.isolation?.into_inner(), limits))
    }

    pub fn is_alone(&self) -> bool {
        self.isolation.as_ref().is_some_and(|isolation| *isolation.get_ref() == Isolation::OwnPoller)
    }
}

/// What the process has is enough for all of them.
pub(crate) fn check_sums(sink: &mut Sink<'_>, draft: &Draft) {
    let all = |of: fn(&IsolationDraft) -> Option<u64>| {
        draft.tenants.iter().filter_map(|tenant| of(&tenant.isolation)).map(u128::from).sum::<u128>()
    };
    let memory = all(|isolation| isolation.max_memory.map(|size| size.0));
    if memory > ALL_MEMORY.0.into() {
        let what = format!("the tenants' max_memory add up to {} TiB, {ALL_MEMORY} is the most", memory >> 40);
        sink.whole(what, "lower max_memory for some, to the memory of their guests");
    }
    let maps = all(|isolation| isolation.max_maps.map(u64::from));
    if maps > ALL_MAPS.into() {
        sink.whole(
            format!("the tenants' max_maps add up to {maps}, {ALL_MAPS} is the most"),
            "lower max_maps for some: a virtual machine needs two dozen",
        );
    }
}
