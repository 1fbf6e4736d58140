//! Why a tenant was slow at some time: answered from the summaries that are kept, on a thread of its own.

mod evidence;
mod hour;
mod story;

#[cfg(test)]
pub(crate) use story::tell;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use anyhow::{Context, Result};
use api::{Event, EventKind, LastHour, MAX_WHY_MS, Why, WhyAsked};
use confine::ThreadKind;
use history::{Comparison, NoComparison, Past};

use crate::events::{EventLog, Happened};
use crate::summaries::{Summaries, unix_ms};
use crate::{Daemon, DriveView};
use api::{DiskError, Reason};

/// Questions that wait at a time. Further clients are told to come later.
const MOST_QUESTIONS: usize = 16;

/// How much earlier time shows the usual load.
const USUAL_MS: u64 = 30 * 60_000;

/// How far back an event may have to do with it.
const EVENTS_MS: u64 = 60_000;

/// Events in an answer, the last ones.
const MOST_EVENTS: usize = 50;

/// How old an answer to [`Asker::last_hour`] may be. Many pages then cost no more than one.
const HOUR_AGE_MS: u64 = 30_000;

/// A question, with the receiver of its answer.
enum Question {
    Why { tenant: String, asked: WhyAsked, reply: Box<dyn FnOnce(Result<Why, DiskError>) + Send> },
    LastHour(Box<dyn FnOnce(Arc<LastHour>) + Send>),
}

/// The handle of the thread. The thread ends when no handle is left.
#[derive(Clone)]
pub struct Asker {
    questions: SyncSender<Question>,
}

impl Asker {
    /// Starts it.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(daemon: impl Daemon, summaries: Summaries, events: Arc<EventLog>) -> Result<Self> {
        let (questions, asked) = sync_channel(MOST_QUESTIONS);
        let run = move || run(&asked, &daemon, &Kept { summaries, events });
        let thread = std::thread::Builder::new().name("why".into()).spawn(run);
        thread.context("can't start the thread that answers why")?;
        Ok(Self { questions })
    }

    /// Asks. `reply` hears the answer, or is dropped if the daemon ends.
    ///
    /// # Errors
    /// The question makes no sense, or too many others wait.
    pub fn ask(
        &self,
        tenant: String,
        asked: WhyAsked,
        reply: impl FnOnce(Result<Why, DiskError>) + Send + 'static,
    ) -> Result<(), DiskError> {
        let WhyAsked { from_unix_ms, to_unix_ms } = asked;
        let invalid = |title: String, remedy: &str| Err(DiskError::new(Reason::Invalid, title, remedy));
        if to_unix_ms <= from_unix_ms {
            return invalid("to_unix_ms is not after from_unix_ms".to_owned(), "ask for a span longer than 0");
        }
        if to_unix_ms - from_unix_ms > MAX_WHY_MS {
            let title = format!("{} s are too long a time", (to_unix_ms - from_unix_ms) / 1000);
            return invalid(title, "ask for an hour at most");
        }
        self.put(Question::Why { tenant, asked, reply: Box::new(reply) })
    }

    /// Asks for the last hour of all tenants. The daemon drops `reply` if it ends.
    ///
    /// # Errors
    /// Too many questions wait.
    pub fn last_hour(&self, reply: impl FnOnce(Arc<LastHour>) + Send + 'static) -> Result<(), DiskError> {
        self.put(Question::LastHour(Box::new(reply)))
    }

    fn put(&self, question: Question) -> Result<(), DiskError> {
        self.questions.try_send(question).map_err(|error| match error {
            TrySendError::Full(_) => {
                let title = format!("{MOST_QUESTIONS} others ask already");
                DiskError::new(Reason::TooManyAsk, title, "ask again in a moment")
            }
            TrySendError::Disconnected(_) => DiskError::new(Reason::Ending, "the daemon is ending", "try again later"),
        })
    }
}

/// What is known of the past.
struct Kept {
    summaries: Summaries,
    events: Arc<EventLog>,
}

fn run(questions: &Receiver<Question>, daemon: &impl Daemon, kept: &Kept) {
    daemon.begin(ThreadKind::Why);
    let mut hour = Arc::new(LastHour { to_unix_ms: 0, tenants: Vec::new() });
    for question in questions {
        match question {
            Question::Why { tenant, asked, reply } => {
                let (Some(views), Some(declared)) = (daemon.views(), daemon.declared()) else { return };
                reply(answer(&tenant, asked, &views, &declared, kept));
            }
            Question::LastHour(reply) => {
                let now = unix_ms();
                if now.abs_diff(hour.to_unix_ms) > HOUR_AGE_MS {
                    let (past, _) = kept.read(now.saturating_sub(hour::HOUR_MS)..now, now);
                    hour = Arc::new(hour::last_hour(&past.intervals, now));
                }
                reply(Arc::clone(&hour));
            }
        }
    }
}

impl Kept {
    /// What is known of `span`, with the interval that goes on, and what is wrong with it, in words.
    fn read(&self, span: Range<u64>, now: u64) -> (Past, Vec<String>) {
        let (mut notes, summaries) = (Vec::new(), &self.summaries);
        let current = summaries.current();
        let written = current.as_ref().and_then(|it| it.written);
        let mut past = history::read(summaries.directory(), span, now, written).unwrap_or_else(|error| {
            notes.push(format!("{} can't be read: {error}", summaries.directory().display()));
            Past::default()
        });
        if let Some(current) = current {
            past.intervals.extend(current.intervals);
            notes.extend(current.trouble.map(|why| format!("no summaries are written now: {why}")));
        }
        notes.extend(past.flaws.iter().map(ToString::to_string));
        (past, notes)
    }
}

fn answer(
    tenant: &str,
    asked: WhyAsked,
    views: &[DriveView],
    declared: &BTreeSet<String>,
    kept: &Kept,
) -> Result<Why, DiskError> {
    let now = unix_ms();
    let window = asked.from_unix_ms..asked.to_unix_ms.min(now.saturating_add(1));
    if window.is_empty() {
        let remedy = "ask for a time that has been";
        return Err(DiskError::new(Reason::Invalid, "that time has not come yet", remedy));
    }
    let (past, mut notes) = kept.read(window.start.saturating_sub(USUAL_MS)..window.end, now);
    let compared = Comparison::of(&past.intervals, tenant, window.clone());
    let comparison = compared.map_err(|none| nothing(none, tenant, views, &notes))?;
    let events = all_events(&past, &kept.events);
    if comparison.spell.others > 0 {
        let others = comparison.spell.others;
        notes.push(format!("{others} more slow spells in that time cost less: ask for a shorter time"));
    }
    notes.extend(former(tenant, &comparison, &events));
    let view = views.iter().find(|view| *view.name == *comparison.drive);
    let spell = comparison.spell.from_unix_ms..=comparison.spell.to_unix_ms;
    let is_restarted = is_restarted(&events, spell, &past);
    let foresight = view.map(|view| &*view.foresight);
    let story = story::tell(tenant, &comparison, is_restarted, foresight, declared, &mut notes);
    let since = comparison.spell.from_unix_ms.saturating_sub(EVENTS_MS);
    let mut told: Vec<Event> =
        events.into_iter().filter(|it| (since..=comparison.spell.to_unix_ms).contains(&it.at_unix_ms)).collect();
    told.drain(..told.len().saturating_sub(MOST_EVENTS));
    Ok(Why { events: told, notes, ..story })
}

/// Whether a daemon came in that spell after another one, which had told of its start or has figures from before: the
/// first of all makes nobody wait.
fn is_restarted(events: &[Event], spell: RangeInclusive<u64>, past: &Past) -> bool {
    let started = || events.iter().filter(|it| it.kind == EventKind::Started).map(|it| it.at_unix_ms);
    let ended = || past.intervals.iter().map(|it| it.at_unix_ms + u64::from(it.span_ms));
    let had_one = |at: &u64| started().chain(ended()).any(|before| before < *at);
    started().filter(|at| spell.contains(at)).any(|at| had_one(&at))
}

/// The events in the files, and those not written yet, in order.
fn all_events(past: &Past, log: &EventLog) -> Vec<Event> {
    let kept = past.events.iter().filter_map(|it| serde_json::from_slice::<Event>(&it.what).ok());
    let mut all: BTreeMap<u64, Event> = kept.map(|it| (it.number, it)).collect();
    let mut told = log.all(Happened::in_full);
    while !told.events.is_empty() {
        all.extend(told.events.into_iter().map(|it| (it.number, it)));
        told = log.after(told.next, Happened::in_full);
    }
    all.into_values().collect()
}

/// A disk that was deleted after it was slow, while there is another one of that name.
fn former(tenant: &str, comparison: &Comparison, events: &[Event]) -> Option<String> {
    let is_deletion = |it: &&Event| it.kind == EventKind::Deleted && it.tenant.as_deref() == Some(tenant);
    let deleted = events.iter().filter(is_deletion).find(|it| it.at_unix_ms >= comparison.spell.from_unix_ms)?;
    let after = deleted.at_unix_ms.saturating_sub(comparison.spell.to_unix_ms) / 1000;
    Some(format!("this is about a former disk of that name, which was deleted {after} s later"))
}

fn nothing(none: NoComparison, tenant: &str, views: &[DriveView], notes: &[String]) -> DiskError {
    let is_there = views.iter().any(|view| view.foresight.asks(tenant).is_some());
    let because = |remedy: &str| match notes {
        [] => remedy.to_owned(),
        notes => format!("{remedy}; {}", notes.join("; ")),
    };
    match none {
        NoComparison::Idle if !is_there => DiskError::no_such_disk(tenant),
        NoComparison::Idle => {
            let title = format!("{tenant:?}: {none}");
            DiskError::new(Reason::Idle, title, because("ask for a time at which its guest used it"))
        }
        NoComparison::Hung => {
            let title = format!("{tenant:?}: {none}, so the drive hung");
            DiskError::new(
                Reason::Hung,
                title,
                because("see `evenkeel drive list`, and what the kernel's log says of it"),
            )
        }
        NoComparison::NoSummaries => {
            let remedy = "ask for a time in the last day at which the daemon ran";
            DiskError::new(Reason::NoSummaries, none.to_string(), because(remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use history::Interval;

    use super::*;

    #[test]
    fn the_first_start_is_no_restart() {
        let started = |number: u64, at_unix_ms: u64| Event {
            number,
            at_unix_ms,
            kind: EventKind::Started,
            tenant: None,
            labels: BTreeMap::new(),
            what: None,
        };
        let past = |at_unix_ms: u64| Past {
            intervals: vec![Interval { at_unix_ms, span_ms: 10_000, ..Interval::default() }],
            ..Past::default()
        };
        let first = [started(1, 50_000)];
        assert!(!is_restarted(&first, 45_000..=55_000, &past(50_010)));
        assert!(is_restarted(&first, 45_000..=55_000, &past(35_000)), "figures of one before");
        let second = [started(1, 20_000), started(2, 50_000)];
        assert!(is_restarted(&second, 45_000..=55_000, &past(50_010)));
        assert!(!is_restarted(&second, 15_000..=25_000, &past(20_010)));
    }
}
