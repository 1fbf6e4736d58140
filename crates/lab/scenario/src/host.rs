//! `[host]`: who moves commands, and what that costs.

use config::reading::{Section, Sink, choice, or, small_integer, span_in};
use io_model::Nanos;
use sim::Layout;

use crate::Host;

/// Costs of the host that a scenario sets itself; `None`: the layout's own. Each 0 to 1 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostCosts {
    /// The application between one I/O and the next; not part of a latency.
    pub guest_app: Option<Nanos>,
    /// From the start of an I/O to its doorbell.
    pub guest_submit: Option<Nanos>,
    /// Taking an interrupt.
    pub guest_irq: Option<Nanos>,
    /// Handling one completion.
    pub guest_complete: Option<Nanos>,
    /// One look of the poller at the doorbells.
    pub poller_pass: Option<Nanos>,
    /// What each tenant that it looks at adds.
    pub poller_look: Option<Nanos>,
    /// Fetching, translating and submitting one command.
    pub poller_fetch: Option<Nanos>,
    /// Reaping and posting one completion.
    pub poller_complete: Option<Nanos>,
    /// Ringing one HWQ's doorbell.
    pub poller_doorbell: Option<Nanos>,
    /// Raising one interrupt.
    pub poller_interrupt: Option<Nanos>,
    /// From the raised interrupt until the guest's CPU takes it.
    pub delivery: Option<Nanos>,
    /// From an event until a sleeping loop runs; 0: it polls.
    pub wake: Option<Nanos>,
    /// A lock that every submission and every completion takes.
    pub lock: Option<Nanos>,
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
    let mut cost = |key| {
        let range = Nanos(0)..=Nanos(1_000_000_000);
        or(sink, section, key, None, |value| span_in(range)(value).map(Some))
    };
    let costs = HostCosts {
        guest_app: cost("guest_app")?,
        guest_submit: cost("guest_submit")?,
        guest_irq: cost("guest_irq")?,
        guest_complete: cost("guest_complete")?,
        poller_pass: cost("poller_pass")?,
        poller_look: cost("poller_look")?,
        poller_fetch: cost("poller_fetch")?,
        poller_complete: cost("poller_complete")?,
        poller_doorbell: cost("poller_doorbell")?,
        poller_interrupt: cost("poller_interrupt")?,
        delivery: cost("delivery")?,
        wake: cost("wake")?,
        lock: cost("lock")?,
    };
    let best_effort_pollers = or(sink, section, "best_effort_pollers", 1, small_integer(1..=64));
    if layout.is_some_and(|layout| layout != Layout::Evenkeel) {
        let why = "only layout = \"evenkeel\" has pollers for best-effort tenants";
        section.forbid(sink, "best_effort_pollers", why, "remove it, or write that layout");
    }
    Some(Host { layout: layout?, best_effort_pollers: best_effort_pollers?, costs })
}
