//! `[host]`: who moves commands, and what that costs.

use config::reading::{Section, Sink, choice, or, small_integer, span_in};
use io_model::Nanos;
use sim::{HostCosts, Layout};

/// How pollers are shared, and what their code costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// The virtualization system.
    pub layout: Layout,
    /// Pollers for best-effort tenants under [`Layout::Evenkeel`], which are spread over them in turn: 1 to 64.
    /// Policies that take one poller have one.
    pub best_effort_pollers: u16,
    /// The layout's own, but for what the file says.
    pub costs: HostCosts,
    /// Whether the file says what pollers take for a command.
    pub has_poller_costs: bool,
}

pub(crate) const KEYS: &[&str] = &[
    "layout",
    "best_effort_pollers",
    "guest_app",
    "guest_submit",
    "guest_irq",
    "guest_complete",
    "poller_pass",
    "poller_look",
    "poller_fetch",
    "poller_complete",
    "poller_doorbell",
    "poller_interrupt",
    "delivery",
    "wake",
    "lock",
];

pub(crate) fn read(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Host> {
    section.reject_unknown(sink);
    let absent = [
        ("native", "write \"sr-iov\": a queue of the drive for each tenant, and nobody in between"),
        ("vhost", "write \"spdk\""),
        ("qemu", "write \"virtio\""),
    ];
    let words = Layout::ALL.map(|layout| (layout.name(), layout));
    let layout = or(sink, section, "layout", Layout::Evenkeel, choice(&words, &absent));
    let (costs, has_poller_costs) = read_costs(sink, section, layout.unwrap_or(Layout::Evenkeel))?;
    let best_effort_pollers = or(sink, section, "best_effort_pollers", 1, small_integer(1..=64));
    if layout.is_some_and(|layout| layout != Layout::Evenkeel) {
        let why = "only layout = \"evenkeel\" has pollers for best-effort tenants";
        section.forbid(sink, "best_effort_pollers", why, "remove it, or write that layout");
    }
    Some(Host { layout: layout?, best_effort_pollers: best_effort_pollers?, costs, has_poller_costs })
}

/// Costs of a command in a poller.
const OF_POLLERS: [&str; 5] = ["poller_pass", "poller_fetch", "poller_complete", "poller_doorbell", "poller_interrupt"];

/// The layout's costs with those of the file, and whether any of [`OF_POLLERS`] is among these.
fn read_costs(sink: &mut Sink<'_>, section: &Section<'_, '_>, layout: Layout) -> Option<(HostCosts, bool)> {
    let (mut costs, mut has_poller_costs) = (HostCosts::default(), false);
    let HostCosts { guest, mediated, spdk, virtio, direct, k2 } = &mut costs;
    let path = match layout {
        Layout::Evenkeel | Layout::Mdev | Layout::PerQueue => mediated,
        Layout::Spdk => spdk,
        Layout::Virtio => virtio,
        Layout::SrIov => direct,
        Layout::K2 => k2,
    };
    let by_key = [
        ("guest_app", &mut guest.app_ns),
        ("guest_submit", &mut guest.submit_ns),
        ("guest_irq", &mut guest.irq_ns),
        ("guest_complete", &mut guest.complete_ns),
        ("poller_pass", &mut path.pass_ns),
        ("poller_look", &mut path.look_ns),
        ("poller_fetch", &mut path.fetch_ns),
        ("poller_complete", &mut path.complete_ns),
        ("poller_doorbell", &mut path.doorbell_ns),
        ("poller_interrupt", &mut path.interrupt_ns),
        ("delivery", &mut path.delivery_ns),
        ("wake", &mut path.wake_ns),
        ("lock", &mut path.lock_ns),
    ];
    for (key, cost_ns) in by_key {
        let range = Nanos(0)..=Nanos(1_000_000_000);
        if let Some(span) = or(sink, section, key, None, |value| span_in(range)(value).map(Some))? {
            *cost_ns = span.0;
            has_poller_costs |= OF_POLLERS.contains(&key);
        }
    }
    Some((costs, has_poller_costs))
}
