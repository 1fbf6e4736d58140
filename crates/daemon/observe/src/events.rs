//! The event log.
//!
//! No thread waits for a reader: a slow reader loses events, and is told so. Clients that attach and detach fill a ring
//! of their own, so that one that does so all the time costs no other event. No poller comes here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{Disk, Event, EventKind, Events};
use tokio::sync::watch;

/// How many are kept, of clients that come and go and of everything else.
const CLIENTS: usize = 1024;
const OTHERS: usize = 4096;

/// How many go into one answer.
const TOLD: usize = 1000;

/// Numbers of a daemon that started later are larger, as long as less happens in a millisecond.
const NUMBERS_PER_MS: u64 = 1000;

/// What happened, from any thread.
pub struct EventLog {
    rings: Mutex<Rings>,
    newest: watch::Sender<u64>,
}

/// An event as it is kept.
#[derive(Debug, Clone)]
pub struct Happened {
    event: Event,
    /// Other tenants that its text names.
    names: Vec<String>,
}

impl Happened {
    /// For clients that see all.
    pub fn in_full(self) -> Option<Event> {
        Some(self.event)
    }

    /// For clients that see these disks alone: `None` if the event is about other disks, and without its text if the
    /// text names other disks too.
    pub fn within(mut self, disks: &[Disk]) -> Option<Event> {
        let is_own = |name: &String| disks.iter().any(|disk| disk.name == *name);
        let own = self.names.iter().filter(|name| is_own(name)).count();
        let is_of_others = own == 0 && !self.names.is_empty();
        if is_of_others || !self.event.tenant.as_ref().is_some_and(is_own) {
            return None;
        }
        // Why a promise failed names neighbours.
        if own < self.names.len() || self.event.kind == EventKind::PromiseBroken {
            self.event.what = None;
        }
        Some(self.event)
    }
}

struct Rings {
    clients: VecDeque<Happened>,
    others: VecDeque<Happened>,
    /// By tenant, for its events to come. Tenants without labels are not there.
    labels: BTreeMap<String, BTreeMap<String, String>>,
    /// Before the first.
    origin: u64,
    newest: u64,
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Default for EventLog {
    /// Nothing yet; the numbers begin after those of any daemon before.
    fn default() -> Self {
        Self::from(unix_ms() * NUMBERS_PER_MS)
    }
}

impl EventLog {
    fn from(origin: u64) -> Self {
        let (clients, others, labels) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        let rings = Rings { clients, others, labels, origin, newest: origin };
        Self { rings: Mutex::new(rings), newest: watch::Sender::new(origin) }
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The labels of a tenant's events from now on.
    pub fn set_labels(&self, tenant: &str, labels: &BTreeMap<String, String>) {
        let mut rings = self.rings();
        match labels.is_empty() {
            true => rings.labels.remove(tenant),
            false => rings.labels.insert(tenant.to_owned(), labels.clone()),
        };
    }

    /// Something happened.
    pub fn tell(&self, kind: EventKind, tenant: Option<&str>, what: Option<String>) {
        self.keep(kind, tenant, what, Vec::new());
    }

    /// Something happened to a namespace, in words that name these tenants.
    pub fn tell_naming<'a>(
        &self,
        kind: EventKind,
        namespace: &str,
        what: String,
        names: impl Iterator<Item = &'a str>,
    ) {
        self.keep(kind, Some(namespace), Some(what), names.map(str::to_owned).collect());
    }

    fn keep(&self, kind: EventKind, tenant: Option<&str>, what: Option<String>, names: Vec<String>) {
        let at_unix_ms = unix_ms();
        let mut rings = self.rings();
        rings.newest += 1;
        let number = rings.newest;
        let labels = tenant.and_then(|tenant| rings.labels.get(tenant)).cloned().unwrap_or_default();
        let is_client = matches!(kind, EventKind::Attached | EventKind::Detached);
        let (ring, most) = if is_client { (&mut rings.clients, CLIENTS) } else { (&mut rings.others, OTHERS) };
        if ring.len() >= most {
            ring.pop_front();
        }
        let event = Event { number, at_unix_ms, kind, tenant: tenant.map(str::to_owned), labels, what };
        ring.push_back(Happened { event, names });
        drop(rings);
        self.newest.send_replace(number);
    }

    /// Hears of the number of each that comes.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// The events after a number, as far as `seen` allows.
    pub fn after(&self, since: u64, seen: impl Fn(Happened) -> Option<Event>) -> Events {
        let rings = self.rings();
        // A number of a daemon before, or of nobody.
        let is_other_run = since < rings.origin || since > rings.newest;
        let since = if is_other_run { rings.origin } else { since };
        let later = |ring: &VecDeque<Happened>| {
            let from = ring.partition_point(|it| it.event.number <= since);
            ring.iter().skip(from).take(TOLD).cloned().collect::<Vec<_>>()
        };
        let mut events = [later(&rings.clients), later(&rings.others)].concat();
        events.sort_by_key(|it| it.event.number);
        events.truncate(TOLD);
        // Without a gap, the last one is as far from `since` as there are of them.
        let next = events.last().map_or(rings.newest, |it| it.event.number);
        let lost = is_other_run || events.len() as u64 != next - since;
        Events { events: events.into_iter().filter_map(seen).collect(), lost, next }
    }

    /// The last ones, the oldest first, but for clients that came and went: one of those alone could push out the rest.
    pub fn last(&self, most: usize) -> Vec<Event> {
        let rings = self.rings();
        let from = rings.others.len().saturating_sub(most);
        rings.others.iter().skip(from).map(|it| it.event.clone()).collect()
    }

    /// All known events, for a reader without a number: events lost before are not reported to it.
    pub fn all(&self, seen: impl Fn(Happened) -> Option<Event>) -> Events {
        let origin = self.rings().origin;
        Events { lost: false, ..self.after(origin, seen) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(told: &Events) -> Vec<u64> {
        told.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn who_reads_in_time_misses_nothing_and_who_does_not_is_told() {
        let log = EventLog::from(100);
        assert_eq!(log.after(100, Happened::in_full), Events { events: Vec::new(), lost: false, next: 100 });
        log.tell(EventKind::Created, Some("a"), None);
        log.tell(EventKind::Attached, Some("a"), None);
        log.tell(EventKind::Changed, Some("b"), None);
        let told = log.after(100, Happened::in_full);
        assert_eq!((numbers(&told), told.lost, told.next), (vec![101, 102, 103], false, 103));
        assert_eq!(numbers(&log.after(102, Happened::in_full)), [103]);
        // A reader that sees one tenant gets the numbers of other tenants' events, and nothing else of them.
        let told = log.after(100, |it| it.in_full().filter(|event| event.tenant.as_deref() == Some("b")));
        assert_eq!((numbers(&told), told.lost, told.next), (vec![103], false, 103));
        // Another daemon's numbers, and nobody's.
        for since in [7, 999] {
            let told = log.after(since, Happened::in_full);
            assert_eq!((numbers(&told), told.lost), (vec![101, 102, 103], true));
        }
    }

    #[test]
    fn an_event_has_the_labels_of_its_tenant_and_of_no_other() {
        let log = EventLog::from(0);
        let labels = BTreeMap::from([("pvc".to_owned(), "data-0".to_owned())]);
        log.set_labels("a", &labels);
        log.tell(EventKind::Attached, Some("a"), None);
        log.tell_naming(EventKind::Changed, "logs", "for a".to_owned(), std::iter::once("a"));
        log.set_labels("a", &BTreeMap::new());
        log.tell(EventKind::Detached, Some("a"), None);
        let told = log.after(0, Happened::in_full).events;
        let told: Vec<_> = told.into_iter().map(|event| event.labels).collect();
        assert_eq!(told, [labels, BTreeMap::new(), BTreeMap::new()]);
    }

    #[test]
    fn a_client_that_comes_and_goes_without_end_costs_nobody_the_rest() {
        let log = EventLog::from(0);
        log.tell(EventKind::Created, Some("a"), None);
        for _ in 0..5_000 {
            log.tell(EventKind::Attached, Some("a"), None);
            log.tell(EventKind::Detached, Some("a"), None);
        }
        let told = log.after(0, Happened::in_full);
        assert_eq!((told.events[0].kind, told.lost, told.events.len()), (EventKind::Created, true, TOLD));
        let told = log.after(told.next, Happened::in_full);
        assert_eq!((told.lost, told.next), (false, 10_001));
        assert_eq!(log.last(50).iter().map(|event| event.number).collect::<Vec<_>>(), [1]);
        for _ in 0..OTHERS {
            log.tell(EventKind::Changed, None, None);
        }
        let mut since = 10_001;
        let mut all = 0;
        while all < OTHERS {
            let told = log.after(since, Happened::in_full);
            assert!(!told.lost && !told.events.is_empty());
            (since, all) = (told.next, all + told.events.len());
        }
        assert!(!log.all(Happened::in_full).lost);
    }
}
