//! The papers whose figures are repeated, one module each, beside a file with the words of its figures.

mod bench;
mod cloud;
mod fairnvme;
mod lpns;
mod policy;
pub mod qos;
mod vbmq;

use crate::paper::Paper::{self, Cloud, FairNvme, Lpns, Policy, Qos, Vbmq};
use crate::runner::Measure;

/// Every experiment in the report's order: what it is about in a line, and what runs it and draws the figures.
pub const EXPERIMENTS: [(Paper, &str, Measure); 33] = [
    (Lpns, "What a neighbour costs without a policy", lpns::alone::measure),
    (Lpns, "One neighbour, P5800X", lpns::beside::one_p5800x),
    (Lpns, "One neighbour, PM1735", lpns::beside::one_pm1735),
    (Lpns, "Two to seven neighbours", lpns::beside::more),
    (Lpns, "Tails beside one heavy neighbour", lpns::beside::tails),
    (Lpns, "A web server beside three writers, PM1735", lpns::web::fig9),
    (Lpns, "A web server beside one to six writers, P5800X", lpns::web::fig10),
    (Lpns, "The choice of Ω", lpns::omega::measure),
    (Lpns, "Queue scheduling where HWQs are scarce", lpns::queues::measure),
    (FairNvme, "One VM alone under five systems", fairnvme::sweeps::table2),
    (FairNvme, "Twelve cases with eight VMs, P3520", fairnvme::cases::p3520),
    (FairNvme, "Twelve cases with eight VMs, PM1735", fairnvme::cases::pm1735),
    (FairNvme, "From 1 to 16 VMs", fairnvme::sweeps::scale),
    (FairNvme, "Block sizes", fairnvme::sweeps::blocks),
    (Qos, "Deficit round robin: the paper's model and the drive", qos::arbitrated::fig7),
    (Qos, "Deficit round robin among tenants: planned and simulated", qos::tenants::fig7),
    (Qos, "Two jobs under three ways of arbitration", qos::arbitrated::fig8),
    (Qos, "Two jobs, arbitrated by the host", qos::tenants::fig8),
    (Qos, "Arbitration and the depth of queues", qos::arbitrated::fig8_depth),
    (Qos, "A rogue on a drive that is booked out", qos::rogue::booked_out),
    (Qos, "A rogue on a drive with room to spare", qos::rogue::idle),
    (Qos, "Random mixes of tenants: planned and simulated", qos::mixes::measure),
    (Vbmq, "Submission queues of one VM", vbmq::queues::fig7),
    (Vbmq, "Events or polling", vbmq::queues::modes),
    (Vbmq, "Four systems, null block device", vbmq::jobs::null),
    (Vbmq, "Four systems, SM1715", vbmq::jobs::sm1715),
    (Cloud, "Three ways to give a VM a drive", cloud::scaling),
    (Cloud, "32 synchronous jobs through vhost", cloud::table2),
    (Cloud, "Erasing a drive", cloud::erase),
    (Policy, "What a promise costs the others", policy::price::measure),
    (Policy, "Equal tenants beside a promise", policy::fairness::measure),
    (Policy, "How soon a policy follows", policy::reaction::measure),
    (Policy, "From one moment to the next", policy::steadiness::measure),
];
