//! Tenants that may starve, and why.

use io_model::QueuePriority;
use policy::{PolicyConfig, TenantPriority, Terms, Variant};
use rivals::LabConfig::{self, Product};

use crate::grown_fio;
use crate::workload::{Access, Fio, Open, Webuser, Workload};
use crate::{Change, ChangeKind, FaultKind, Report, Rule, Scenario, Violation};

/// Commands of 4 KiB of guaranteed tenants in flight that may saturate a drive.
const SATURATING: u32 = 128;
/// The speed of D2FQ's high class against its low one up to which the low one is not starved.
const PATIENT_RATIO: u32 = 32;

/// Why a rule may be broken. Only starvation is ever excused: by policies that are known to starve, for those whom they
/// starve, and by an HWQ that is lost, for then a policy that bound a VQ to it can't know. `terms`: all that each
/// tenant ever has.
pub(super) fn excuse(
    scenario: &Scenario,
    terms: &[Vec<Terms>],
    report: &Report,
    violation: &Violation,
) -> Option<&'static str> {
    if violation.rule != Rule::NoStarvation {
        return None;
    }
    if scenario.faults.iter().any(|fault| matches!(fault.kind, FaultKind::LoseHwq { .. })) {
        return Some("bound to an HWQ that was lost");
    }
    let own = || violation.tenant.and_then(|tenant| terms.get(usize::from(tenant))).into_iter().flatten();
    let best_effort = || own().any(|terms| !terms.class.is_guaranteed());
    let anybody = |is: fn(&Terms) -> bool| terms.iter().flatten().any(is);
    let is_urgent = |terms: &Terms| terms.priority == TenantPriority::Fixed(QueuePriority::Urgent);
    match &scenario.policy {
        LabConfig::K2(_) if best_effort() && anybody(|terms| terms.class.is_guaranteed()) => {
            Some("k2: guaranteed tenants first, without limit")
        }
        Product(PolicyConfig::Lpns(config)) if config.variant == Variant::Published => {
            Some("lpns as published: all best effort is suspended beside an idle guaranteed tenant")
        }
        Product(PolicyConfig::Lpns(_)) if best_effort() && guaranteed_depth(scenario, terms, report) >= SATURATING => {
            Some("lpns: guaranteed tenants with much in flight leave best effort a command or two at a time")
        }
        Product(PolicyConfig::Fair(config)) if config.variant == Variant::Published => {
            Some("fair as published: the first tenant goes first, and who asks most gets most")
        }
        LabConfig::D2fq(config) if config.adaptive || config.ratio > PATIENT_RATIO => {
            Some("d2fq: the drive fetches from its low class once for so many of its high one")
        }
        Product(PolicyConfig::Wrr(_) | PolicyConfig::Drr(_))
            if anybody(is_urgent) && own().any(|terms| !is_urgent(terms)) =>
        {
            Some("wrr, drr: urgent tenants first, without limit")
        }
        _ => None,
    }
}

/// Commands that all tenants that are guaranteed at some time keep in flight or waiting together. A longer command
/// counts as several of 4 KiB.
fn guaranteed_depth(scenario: &Scenario, terms: &[Vec<Terms>], report: &Report) -> u32 {
    let tenants = scenario.tenants.iter().zip(terms).zip(&report.tenants).enumerate();
    let guaranteed = tenants.filter(|(_, ((_, terms), _))| terms.iter().any(|terms| terms.class.is_guaranteed()));
    let depths = guaranteed.map(|(at, ((tenant, _), seen))| {
        let grows = |change: &&Change| change.tenant == at && matches!(change.kind, ChangeKind::Grows(_));
        let grown = depth(&grown_fio()).saturating_mul(scenario.changes.iter().filter(grows).count() as u32);
        // By Little's law, with the arrivals that wait for their turn to be submitted.
        let asked = (seen.iops * seen.latency.mean_ns / 1e9) as u32;
        let open = |jobs: u32, max_outstanding: u32, access: &Access| {
            asked.min(jobs.saturating_mul(max_outstanding)).saturating_mul(mean_4k(access))
        };
        grown.saturating_add(match &tenant.workload {
            Workload::Fio(fio) => depth(fio),
            Workload::Open(Open { jobs, max_outstanding, access, .. }) => open(*jobs, *max_outstanding, access),
            Workload::Webuser(Webuser { jobs, max_outstanding, access, .. }) => open(*jobs, *max_outstanding, access),
            _ => 0,
        })
    });
    depths.fold(0, u32::saturating_add)
}

/// Commands of 4 KiB that a closed loop keeps in flight.
fn depth(fio: &Fio) -> u32 {
    fio.jobs.saturating_mul(fio.iodepth).saturating_mul(mean_4k(&fio.access))
}

fn mean_4k(access: &Access) -> u32 {
    let weights: u64 = access.block_sizes.iter().map(|size| u64::from(size.weight)).sum();
    let bytes: u64 = access.block_sizes.iter().map(|size| u64::from(size.bytes) * u64::from(size.weight)).sum();
    bytes.div_ceil(weights.max(1)).div_ceil(4096).max(1) as u32
}
