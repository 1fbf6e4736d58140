//! Runs jobs against a drive of fixed latency, for tests.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use io_model::Nanos;

use crate::{Action, Job, Operation, Shape};

/// One I/O that a job submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Submitted {
    pub(super) job: usize,
    pub(super) at: Nanos,
    pub(super) shape: Shape,
    pub(super) since: Option<Nanos>,
}

/// What happened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) submitted: Vec<Submitted>,
    pub(super) operations: Vec<Operation>,
    /// By job: the most I/Os outstanding.
    pub(super) deepest: Vec<u32>,
    /// When the last event happened.
    pub(super) end: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Completed {
        job: usize,
        io: usize,
    },
    /// Holds unless the job was asked in between: then it named another time.
    Ask {
        job: usize,
        turn: u64,
    },
}

/// Runs the jobs until `until`: each I/O takes `latency_ns`.
pub(super) fn drive(jobs: &mut [Box<dyn Job>], latency_ns: u64, until: Nanos) -> Run {
    let mut run = Run { deepest: vec![0; jobs.len()], ..Run::default() };
    let mut outstanding = vec![0u32; jobs.len()];
    let mut turns = vec![0u64; jobs.len()];
    let mut events = BinaryHeap::new();
    let mut order = 0u64;
    let mut asked: VecDeque<usize> = (0..jobs.len()).collect();
    let mut now = Nanos(0);
    loop {
        while let Some(job) = asked.pop_front() {
            turns[job] += 1;
            loop {
                let (at, event) = match jobs[job].next(now) {
                    Action::Submit { shape, since } => {
                        let io = run.submitted.len();
                        run.submitted.push(Submitted { job, at: now, shape, since });
                        outstanding[job] += 1;
                        run.deepest[job] = run.deepest[job].max(outstanding[job]);
                        (now + Nanos(latency_ns), Event::Completed { job, io })
                    }
                    Action::WaitUntil(at) => {
                        assert!(at > now, "job {job} waits for the past");
                        (at, Event::Ask { job, turn: turns[job] })
                    }
                    Action::WaitCompletion | Action::Done => break,
                };
                events.push(Reverse((at, order, event)));
                order += 1;
                if matches!(event, Event::Ask { .. }) {
                    break;
                }
            }
            while let Some(operation) = jobs[job].take_operation() {
                run.operations.push(operation);
            }
        }
        let Some(Reverse((at, _, event))) = events.pop() else { break };
        if at > until {
            break;
        }
        now = at;
        run.end = now;
        match event {
            Event::Ask { job, turn } => {
                if turns[job] == turn {
                    asked.push_back(job);
                }
            }
            Event::Completed { job, io } => {
                let Submitted { at, shape, since, .. } = run.submitted[io];
                outstanding[job] -= 1;
                jobs[job].completed(&shape, now - since.unwrap_or(at), now);
                asked.push_back(job);
            }
        }
    }
    run
}
