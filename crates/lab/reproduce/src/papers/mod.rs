//! The experiments, by paper.

pub mod cloud;
pub mod fairnvme;
pub mod lpns;
pub mod policy;
pub mod qos;
pub mod vbmq;

use crate::paper::Paper;
use crate::report::Uncovered;
use crate::runner::Experiment;

/// The experiments of some papers, in the report's order.
pub fn experiments(papers: &[Paper]) -> Vec<Experiment> {
    let of = |paper| match paper {
        Paper::Lpns => lpns::EXPERIMENTS,
        Paper::FairNvme => fairnvme::EXPERIMENTS,
        Paper::Qos => qos::EXPERIMENTS,
        Paper::Vbmq => vbmq::EXPERIMENTS,
        Paper::Cloud => cloud::EXPERIMENTS,
        Paper::Policy => policy::EXPERIMENTS,
    };
    Paper::ALL.into_iter().filter(|paper| papers.contains(paper)).flat_map(of).copied().collect()
}

/// What of some papers can't be measured.
pub fn uncovered(papers: &[Paper]) -> Vec<Uncovered> {
    let all = lpns::uncovered().into_iter().chain(fairnvme::uncovered());
    let all = all.chain([qos::uncovered(), vbmq::uncovered(), cloud::uncovered()]);
    all.filter(|one| papers.contains(&one.paper)).collect()
}
