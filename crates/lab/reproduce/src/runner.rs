//! Runs experiments, many simulations at a time.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use io_model::Nanos;

use crate::paper::Paper;
use crate::papers::EXPERIMENTS;
use crate::report::{Figure, Report};
use crate::words::uncovered;

/// A quick run's share of the virtual time.
const QUICK_DIVISOR: u64 = 20;
/// Shorter than this, nothing settles.
const QUICK_LEAST: Nanos = Nanos::from_millis(20);

/// Runs the simulations that one or more figures and tables of a paper are drawn from, and draws them.
pub(crate) type Measure = fn(&Context<'_>) -> Result<Vec<Figure>, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A simulation could not be run, or one of its checkers found the simulated system at fault.
    #[error("{}: {experiment}: {run}: {reason}", paper.key())]
    Simulation {
        /// The paper.
        paper: Paper,
        /// The experiment's title.
        experiment: &'static str,
        /// Which of its runs.
        run: String,
        /// Why.
        reason: String,
    },
}

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What every random choice comes from.
    pub seed: u64,
    /// Cut the virtual time short: a look at the report, not at the numbers.
    pub quick: bool,
    /// Simulations at a time; the report does not depend on it.
    pub threads: NonZeroUsize,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The paper whose figures are being measured.
    pub paper: Paper,
    /// What is being measured.
    pub experiment: &'static str,
    /// Experiments that are done, and all.
    pub experiments: (usize, usize),
    /// Of this experiment's simulations, those that are done, and all. `(0, 0)` before it knows.
    pub runs: (usize, usize),
}

/// Runs the experiments of some papers one after another, the simulations of each side by side. `progress` hears
/// of every simulation that ends, from any thread.
///
/// # Errors
/// The first simulation that failed.
pub fn run(papers: &[Paper], options: Options, progress: &(dyn Fn(&Progress) + Sync)) -> Result<Report, Error> {
    let experiments = || EXPERIMENTS.into_iter().filter(|(paper, ..)| papers.contains(paper));
    let mut figures = Vec::new();
    for (done, (paper, experiment, measure)) in experiments().enumerate() {
        let at = Progress { paper, experiment, experiments: (done, experiments().count()), runs: (0, 0) };
        progress(&at);
        figures.extend(measure(&Context { options, at, progress })?);
    }
    figures.iter_mut().for_each(Figure::explain);
    Ok(Report { seed: options.seed, quick: options.quick, figures, uncovered: uncovered(papers) })
}

/// What an experiment runs its simulations with.
pub(crate) struct Context<'a> {
    options: Options,
    at: Progress,
    progress: &'a (dyn Fn(&Progress) + Sync),
}

impl Context<'_> {
    /// The seed of every simulation. The same for all, so that systems are compared under the same load.
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Whether a look at the report is all that is wanted.
    pub fn is_quick(&self) -> bool {
        self.options.quick
    }

    /// How long to simulate what should run for `full`.
    pub fn span(&self, full: Nanos) -> Nanos {
        if self.options.quick { Nanos(full.0 / QUICK_DIVISOR).max(QUICK_LEAST).min(full) } else { full }
    }

    /// A figure of this paper with its words.
    pub fn figure(&self, id: &'static str) -> Figure {
        Figure::of(self.at.paper, id)
    }

    /// Runs `simulate` on every item, on all threads, and returns each with what came of it, in the items' order. An
    /// error names its item. Of several errors the first in the items' order is returned that was found before the
    /// others stopped.
    pub fn all<T: Debug + Sync, R: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        simulate: impl Fn(&T) -> Result<R, String> + Sync,
    ) -> Result<Vec<(T, R)>, Error> {
        let items: Vec<T> = items.into_iter().collect();
        let (next, ended, failed) = (AtomicUsize::new(0), Mutex::new(0), AtomicBool::new(false));
        let results: Vec<Mutex<Option<Result<R, String>>>> = items.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let (Some(item), Some(place)) = (items.get(index), results.get(index)) else { return };
                let result = simulate(item);
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                *held(place) = Some(result);
                // Told under the lock, so that progress never goes back.
                let mut ended = held(&ended);
                *ended += 1;
                (self.progress)(&Progress { runs: (*ended, items.len()), ..self.at });
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.options.threads.get().min(items.len()) {
                scope.spawn(work);
            }
            work();
        });
        let mut all = Vec::with_capacity(items.len());
        for (item, place) in items.into_iter().zip(results) {
            match place.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
                Some(Ok(result)) => all.push((item, result)),
                Some(Err(reason)) => {
                    return Err(Error::Simulation {
                        paper: self.at.paper,
                        experiment: self.at.experiment,
                        run: format!("{item:?}"),
                        reason,
                    });
                }
                // Left out because a run after it failed.
                None => {}
            }
        }
        Ok(all)
    }
}

/// A thread that panics takes the scope down with it, so a poisoned lock is never looked at.
fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(threads: usize, progress: &(dyn Fn(&Progress) + Sync)) -> Context<'_> {
        let options = Options { seed: 7, quick: true, threads: NonZeroUsize::new(threads).unwrap() };
        let at = Progress { paper: Paper::Qos, experiment: "x", experiments: (0, 1), runs: (0, 0) };
        Context { options, at, progress }
    }

    #[test]
    fn results_keep_the_items_order_on_any_number_of_threads() {
        let items: Vec<u64> = (0..50).collect();
        for threads in [1, 2, 7] {
            let seen = Mutex::new(Vec::new());
            let progress = |p: &Progress| seen.lock().unwrap().push(p.runs.0);
            let squares = context(threads, &progress).all(items.clone(), |i| Ok(i * i)).unwrap();
            assert_eq!(squares, items.iter().map(|i| (*i, i * i)).collect::<Vec<_>>());
            assert_eq!(*seen.lock().unwrap(), (1..=50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_run_that_fails_is_named() {
        let fails = |i: &u64| if *i == 3 { Err("lost a command".to_owned()) } else { Ok(*i) };
        let error = context(3, &|_| ()).all((0..50).map(|i| ("run", i)), |(_, i)| fails(i)).unwrap_err();
        assert_eq!(error.to_string(), "qos: x: (\"run\", 3): lost a command");
    }

    #[test]
    fn quick_is_short_but_not_nothing() {
        let context = context(1, &|_| ());
        assert_eq!(context.span(Nanos::from_millis(4000)), Nanos::from_millis(200));
        assert_eq!(context.span(Nanos::from_millis(30)), Nanos::from_millis(20));
        assert_eq!(context.span(Nanos::from_millis(10)), Nanos::from_millis(10));
        assert_eq!(context.seed(), 7);
    }
}
