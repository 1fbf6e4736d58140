//! Answers to questions: known ones, and how others come to be.
//!
//! A play takes up to a second. The daemon's owner and the thread that answers `stats` never play: they look up what is
//! known, and one thread of the lowest priority plays the rest.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use planner::{Outcome, Planner, Price, Unmodelled, prices};

use crate::judged::{Judged, Remedies, limited};
use crate::planning::Question;

/// Answers that are kept, the latest ones.
const KEPT: usize = 64;
/// Wishes that wait at most.
const WISHES: usize = 4;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// What becomes of the promises.
    Judged(Box<Question>),
    /// What would help those that are broken.
    Remedies(Box<Question>),
    /// What promises cost others.
    Prices(Box<Question>),
}

impl Asked {
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Judged(one), Self::Judged(other)) | (Self::Prices(one), Self::Prices(other)) => one.is_like(other),
            _ => false,
        }
    }
}

#[derive(Clone)]
enum Answer {
    Judged(Arc<Judged>),
    Remedies(Arc<Remedies>),
    Prices(Arc<Vec<Price>>),
}

/// What to do about a question without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnMiss {
    /// Play it here.
    Play,
    /// Note it: see [`Forecasts::take_missing`].
    Note,
    /// Have it played, and go on without an answer; played here where no thread plays.
    Wish,
}

/// Answers, shared by all that ask. By default questions are played where they are asked.
#[derive(Clone)]
pub struct Forecasts {
    shared: Arc<Shared>,
    on_miss: OnMiss,
}

struct Shared {
    known: Mutex<VecDeque<(Asked, Answer)>>,
    missing: Mutex<Vec<Asked>>,
    jobs: OnceLock<Sender<Job>>,
    /// Wishes that are not played yet. Beyond some they are dropped, and come again.
    wishes: AtomicUsize,
}

/// Questions to be played, and what comes after.
struct Job {
    asked: Vec<Asked>,
    then: Box<dyn FnOnce() + Send>,
}

impl Default for Forecasts {
    fn default() -> Self {
        let shared = Shared {
            known: Mutex::default(),
            missing: Mutex::default(),
            jobs: OnceLock::new(),
            wishes: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared), on_miss: OnMiss::Play }
    }
}

impl std::fmt::Debug for Forecasts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forecasts").field("on_miss", &self.on_miss).finish_non_exhaustive()
    }
}

impl Forecasts {
    /// The work of the thread that plays; call once. It ends with the last of these values.
    pub fn player(&self) -> impl FnOnce() + Send + 'static {
        let (jobs, wanted) = channel();
        let _ = self.shared.jobs.set(jobs);
        let known = Arc::downgrade(&self.shared);
        move || play_all(&wanted, &|asked| known.upgrade().is_some_and(|shared| shared.play(asked)))
    }

    /// For a thread that must not wait: what is missing is noted.
    #[must_use]
    pub fn noting(&self) -> Self {
        Self { on_miss: OnMiss::Note, ..self.clone() }
    }

    /// For answers about measured loads, which may lack a forecast: that of about the same loads will do, and what is
    /// missing is there the next time.
    #[must_use]
    pub fn wishing(&self) -> Self {
        Self { on_miss: OnMiss::Wish, ..self.clone() }
    }

    /// Whether something was missing that was noted.
    pub fn is_missing(&self) -> bool {
        !lock(&self.shared.missing).is_empty()
    }

    /// The questions that were noted.
    pub fn take_missing(&self) -> Vec<Asked> {
        std::mem::take(&mut lock(&self.shared.missing))
    }

    /// Has these played, and then does that; at once where nobody plays.
    pub fn play(&self, asked: Vec<Asked>, then: impl FnOnce() + Send + 'static) {
        let job = Job { asked, then: Box::new(then) };
        match self.shared.jobs.get() {
            Some(jobs) => {
                // Nobody plays any more: the daemon is ending, and nobody waits.
                let _ = jobs.send(job);
            }
            None => (job.then)(),
        }
    }

    /// What becomes of the promises that a question is about.
    pub(crate) fn judged(&self, question: &Question) -> Option<Arc<Judged>> {
        match self.ask(Asked::Judged(Box::new(question.clone())))? {
            Answer::Judged(judged) => Some(judged),
            _ => None,
        }
    }

    /// What would help the broken promises of a question.
    pub(crate) fn remedies(&self, question: &Question) -> Option<Arc<Remedies>> {
        match self.ask(Asked::Remedies(Box::new(question.clone())))? {
            Answer::Remedies(remedies) => Some(remedies),
            _ => None,
        }
    }

    /// What all get. `None`: the answer is not there yet.
    pub fn outcome(&self, question: &Question) -> Option<Result<Outcome, Unmodelled>> {
        self.judged(question).map(|judged| judged.outcome.clone())
    }

    /// What promises cost others. `None`: the answer is not there yet.
    pub fn prices(&self, question: &Question) -> Option<Arc<Vec<Price>>> {
        match self.ask(Asked::Prices(Box::new(question.clone())))? {
            Answer::Prices(prices) => Some(prices),
            _ => None,
        }
    }

    /// What to do about a target that the drive can't keep even alone.
    pub fn instead_of_impossible(&self, question: &Question, at: usize) -> String {
        self.remedies(question).map_or_else(String::new, |remedies| remedies.instead_of_impossible(at))
    }

    fn ask(&self, asked: Asked) -> Option<Answer> {
        let known = match self.on_miss {
            OnMiss::Wish => self.shared.find_by(&|known| known.is_like(&asked)),
            OnMiss::Play | OnMiss::Note => self.shared.find(&asked),
        };
        if known.is_some() {
            return known;
        }
        match self.on_miss {
            OnMiss::Note => lock(&self.shared.missing).push(asked),
            OnMiss::Wish if self.shared.jobs.get().is_some() => self.wish(asked),
            OnMiss::Play | OnMiss::Wish => {
                self.shared.play(&asked);
                return self.shared.find(&asked);
            }
        }
        None
    }
}

impl Forecasts {
    fn wish(&self, asked: Asked) {
        if self.shared.wishes.fetch_add(1, Ordering::Relaxed) >= WISHES {
            self.shared.wishes.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let shared = Arc::downgrade(&self.shared);
        self.play(vec![asked], move || {
            if let Some(shared) = shared.upgrade() {
                shared.wishes.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }
}

impl Shared {
    fn find(&self, asked: &Asked) -> Option<Answer> {
        self.find_by(&|known| known == asked)
    }

    fn find_by(&self, is_it: &dyn Fn(&Asked) -> bool) -> Option<Answer> {
        lock(&self.known).iter().find(|(known, _)| is_it(known)).map(|(_, answer)| answer.clone())
    }

    /// Answers a question, unless it is known by now. Always `true`.
    fn play(&self, asked: &Asked) -> bool {
        if self.find(asked).is_none() {
            let answer = answer(asked);
            let mut known = lock(&self.known);
            known.truncate(KEPT - 1);
            known.push_front((asked.clone(), answer));
        }
        true
    }
}

fn play_all(wanted: &Receiver<Job>, play: &dyn Fn(&Asked) -> bool) {
    while let Ok(Job { asked, then }) = wanted.recv() {
        if !asked.iter().all(play) {
            return;
        }
        then();
    }
}

fn answer(asked: &Asked) -> Answer {
    match asked {
        Asked::Judged(question) => Answer::Judged(Arc::new(Judged::new(question))),
        Asked::Remedies(question) => Answer::Remedies(Arc::new(Remedies::new(question))),
        Asked::Prices(question) => {
            let is_over = limited();
            let planner = Planner::within(&question.site, &is_over);
            let Question { policy, tenants, .. } = &**question;
            let outcome = planner.outcome(policy, tenants);
            let prices = outcome.map_or_else(|_| Vec::new(), |outcome| prices(&planner, policy, tenants, &outcome));
            Answer::Prices(Arc::new(prices))
        }
    }
}

/// What is behind is whole between any two calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
