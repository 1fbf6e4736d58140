//! Rules across a scenario's sections: names and copies, room, faults; and what is allowed but odd.

use std::collections::HashMap;
use std::ops::Range;

use config::reading::{Sink, TermsDraft};
use config::{Problem, RANGE_STEP_BYTES, TENANTS_MAX};
use io_model::Nanos;
use io_model::units::Size;
use policy::Class;
use rivals::LabSettings;
use sim::Fault;
use toml::Spanned;

use crate::ScenarioTenant;
use crate::fault::KindDraft;
use crate::read::Draft;
use crate::workload::Work;

/// The sectors of encrypted disks by default.
const SECTOR_BYTES: u32 = 4096;

/// A tenant as far as it could be read.
pub(crate) struct TenantDraft {
    pub span: Range<usize>,
    pub name: Option<Spanned<String>>,
    pub copies: Option<u32>,
    pub terms: TermsDraft,
    pub vcpus: Option<u16>,
    pub queues: Option<u16>,
    pub size: Option<Spanned<Size>>,
    pub is_encrypted: Option<bool>,
    pub work: Option<Work>,
}

/// Notes every problem in `sink`; gives the tenants with their copies, the faults, and the warnings.
pub(crate) fn check(sink: &mut Sink<'_>, draft: &Draft) -> (Vec<ScenarioTenant>, Vec<Fault>, Vec<Problem>) {
    let names = names(sink, &draft.tenants);
    sizes(sink, draft);
    let tenants = if names.is_some() { tenants(&draft.tenants) } else { Vec::new() };
    room(sink, draft, &tenants);
    let faults = faults(sink, draft, names.as_ref());
    let mut warnings = Sink::new(sink.text);
    targets(&mut warnings, draft);
    late_faults(&mut warnings, draft);
    limits(&mut warnings, draft);
    (tenants, faults, warnings.into_problems())
}

/// The name of one copy.
fn copy_name(name: &str, copies: u32, number: u32) -> String {
    if copies == 1 { name.to_owned() } else { format!("{name}-{number}") }
}

/// Each tenant's index by its name; `None` where there are too many.
fn names(sink: &mut Sink<'_>, tenants: &[TenantDraft]) -> Option<HashMap<String, usize>> {
    let mut lines: HashMap<String, usize> = HashMap::new();
    let mut indexes = HashMap::new();
    let all: u64 = tenants.iter().map(|tenant| u64::from(tenant.copies.unwrap_or(1))).sum();
    if let Some(first) = tenants.first().filter(|_| all > TENANTS_MAX as u64) {
        let remedy = format!("at most {TENANTS_MAX} can share a drive: lower their count");
        sink.at(&first.span, format!("there are {all} tenants with their copies"), remedy);
        return None;
    }
    for tenant in tenants {
        let copies = tenant.copies.unwrap_or(1);
        for number in 1..=copies {
            let index = indexes.len();
            // A tenant without a name has an index too: faults are not told of a second problem.
            let Some(written) = &tenant.name else {
                indexes.insert(format!("\0{index}"), index);
                continue;
            };
            let name = copy_name(written.get_ref(), copies, number);
            let line = sink.text.line(written.span().start);
            if let Some(first) = lines.insert(name.clone(), line) {
                let what = format!("tenant {name:?} is already on line {first}");
                sink.at(&written.span(), what, "give each tenant a name of its own");
                break;
            }
            indexes.insert(name, index);
        }
    }
    Some(indexes)
}

fn sizes(sink: &mut Sink<'_>, draft: &Draft) {
    let tenants = draft.tenants.iter().filter_map(|tenant| tenant.size.as_ref());
    for size in tenants.chain(&draft.drive_size) {
        let bytes = size.get_ref().0;
        if bytes == 0 || !bytes.is_multiple_of(RANGE_STEP_BYTES) {
            let what = format!("the size {} is not a multiple of {RANGE_STEP_BYTES} bytes above 0", size.get_ref());
            sink.at(&size.span(), what, "write a size such as \"16GiB\"");
        }
    }
}

/// Every copy of every tenant that could be read whole.
fn tenants(drafts: &[TenantDraft]) -> Vec<ScenarioTenant> {
    let whole = |draft: &TenantDraft| {
        let Work { workload, demand, trace } = draft.work.clone()?;
        let name = draft.name.as_ref()?;
        let tenant = sim::Tenant {
            name: name.get_ref().clone(),
            terms: draft.terms.finish()?,
            vcpus: draft.vcpus?,
            vqs: draft.queues?,
            queue_priorities: Vec::new(),
            size_bytes: draft.size.as_ref()?.get_ref().0,
            encrypted_sector_bytes: draft.is_encrypted?.then_some(SECTOR_BYTES),
            first_writes: None,
            workload,
        };
        Some(ScenarioTenant { tenant, demand, trace, mark: name.span() })
    };
    let copies = |draft: &TenantDraft| {
        let (whole, copies) = (whole(draft), draft.copies.unwrap_or(1));
        whole.into_iter().flat_map(move |first| {
            (1..=copies).map(move |number| {
                let name = copy_name(&first.name, copies, number);
                ScenarioTenant { tenant: sim::Tenant { name, ..first.tenant.clone() }, ..first.clone() }
            })
        })
    };
    drafts.iter().flat_map(copies).collect()
}

fn room(sink: &mut Sink<'_>, draft: &Draft, tenants: &[ScenarioTenant]) {
    let asked: u128 = tenants.iter().map(|tenant| u128::from(tenant.size_bytes)).sum();
    let shown = |bytes: u128| u64::try_from(bytes).map_or_else(|_| format!("{bytes} bytes"), |b| Size(b).to_string());
    let remedy = "make tenants smaller, or the drive larger";
    match &draft.drive_size {
        Some(size) if asked > u128::from(size.get_ref().0) => {
            let what = format!("the tenants have {} in all, the drive {}", shown(asked), size.get_ref());
            sink.at(&size.span(), what, remedy);
        }
        None if asked > i64::MAX as u128 => sink.whole(format!("the tenants have {} in all", shown(asked)), remedy),
        _ => {}
    }
}

fn faults(sink: &mut Sink<'_>, draft: &Draft, names: Option<&HashMap<String, usize>>) -> Vec<Fault> {
    let mut found = Vec::with_capacity(draft.faults.len());
    for fault in &draft.faults {
        let kind = match &fault.kind {
            KindDraft::Plain(kind) => *kind,
            KindDraft::Of(of, tenant) => {
                let Some(names) = names else { continue };
                let Some(index) = names.get(tenant.get_ref()) else {
                    no_tenant(sink, draft, tenant);
                    continue;
                };
                of(*index)
            }
        };
        found.push(Fault { at: fault.at, kind });
    }
    found
}

fn no_tenant(sink: &mut Sink<'_>, draft: &Draft, tenant: &Spanned<String>) {
    let shown: String = tenant.get_ref().chars().take(64).collect();
    let several = draft.tenants.iter().find(|other| {
        other.copies.unwrap_or(1) > 1 && other.name.as_ref().is_some_and(|name| name.get_ref() == tenant.get_ref())
    });
    let remedy = match several {
        Some(_) => format!("it has copies: write tenant = \"{shown}-1\""),
        None => "write the name of a [[tenant]]".to_owned(),
    };
    sink.at(&tenant.span(), format!("there is no tenant {shown:?}"), remedy);
}

/// A target that the drive can't keep even alone.
fn targets(warnings: &mut Sink<'_>, draft: &Draft) {
    let Some(figures) = draft.drive.as_ref().and_then(|drive| drive.profile.figures()) else { return };
    let name = draft.drive.as_ref().map(|drive| drive.profile.name()).unwrap_or_default();
    for tenant in &draft.tenants {
        let Some(target) = tenant.terms.class.and_then(Class::latency_target) else { continue };
        let alone = figures.alone_latency;
        if target < alone {
            let what = format!("the target {target} is below what a {name} gives a guest that has it alone ({alone})");
            warnings.at(
                tenant.terms.target_mark.as_ref().unwrap_or(&tenant.span),
                what,
                "choose a larger latency_target",
            );
        }
    }
}

fn late_faults(warnings: &mut Sink<'_>, draft: &Draft) {
    let Some(run) = &draft.run else { return };
    let end = Nanos(run.warmup.0.saturating_add(run.duration.0));
    for fault in draft.faults.iter().filter(|fault| fault.at >= end) {
        let what = format!("the fault comes at {}, the run ends at {end}", fault.at);
        warnings.at(&fault.span, what, "write an earlier time, or a longer duration");
    }
}

fn limits(warnings: &mut Sink<'_>, draft: &Draft) {
    let caps = draft.policies.as_ref().is_some_and(|policies| policies.contains(&LabSettings::Caps));
    if caps && draft.tenants.iter().all(|tenant| tenant.terms.is_unlimited()) {
        let remedy = "add rw_iops, rw_bandwidth or another limit to a [[tenant]]";
        warnings.maybe_at(draft.policy_mark.as_ref(), "caps limits nobody: no tenant has a limit", remedy);
    }
}
