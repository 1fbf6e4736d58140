//! From a scenario's text to a [`Scenario`].

use std::ops::Range;

use config::reading::{
    Items, Schema, Section, Sink, THE_TOP, TenantRules, Text, boolean, choice, count, integer, kind, name, or,
    parse_document, profile, read_terms, seed, size, small_integer, span_in,
};
use config::{ConfigErrors, Profile, TENANTS_MAX};
use io_model::Nanos;
use io_model::units::Size;
use policy::PolicyKind;
use rivals::LabSettings;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{self, FaultDraft};
use crate::host;
use crate::policies::{self, policy_name, policy_with_defaults, read_policy};
use crate::rules::{self, TenantDraft};
use crate::workload::{self, Work};
use crate::{Drive, Run, Scenario};

const SCENARIO: Schema = &[
    (THE_TOP, TOP),
    ("[drive]", DRIVE),
    ("[host]", host::KEYS),
    ("[policy]", policies::KEYS),
    ("[run]", RUN),
    ("[[tenant]]", TENANT),
    ("[tenant.workload]", workload::KEYS),
    ("[[fault]]", fault::KEYS),
];
const TOP: &[&str] = &["drive", "host", "policy", "policies", "run", "tenant", "fault"];
const DRIVE: &[&str] = &["profile", "size", "queues", "queue_depth"];
const RUN: &[&str] = &["warmup", "duration", "seed", "alone"];
const TENANT: &[&str] = &[
    "name",
    "count",
    "class",
    "latency_target",
    "latency_percentile",
    "weight",
    "priority",
    "min_iops",
    "min_bandwidth",
    "rw_iops",
    "r_iops",
    "w_iops",
    "rw_bandwidth",
    "r_bandwidth",
    "w_bandwidth",
    "burst",
    "vcpus",
    "queues",
    "size",
    "encryption",
    "workload",
];

/// The drive where the file gives no size, unless its tenants need more.
const DRIVE_DEFAULT: Size = Size(400_000_000_000);
const TENANT_DEFAULT: Size = Size(16 << 30);
const FAULTS_MAX: usize = 1024;
/// A day of virtual time is more than anyone waits for.
pub(crate) const RUN_MAX: Nanos = Nanos(86_400_000_000_000);

/// What was read so far: `None` where a problem was noted.
pub(crate) struct Draft {
    pub drive: Option<Drive>,
    pub drive_size: Option<Spanned<Size>>,
    pub policies: Option<Vec<LabSettings>>,
    pub policy_mark: Option<Range<usize>>,
    pub run: Option<Run>,
    pub tenants: Vec<TenantDraft>,
    pub faults: Vec<FaultDraft>,
}

pub(crate) fn check(source: Text) -> Result<Scenario, ConfigErrors> {
    let document = parse_document(&source)?;
    let mut sink = Sink::new(&source);
    let top = Section::new(SCENARIO, THE_TOP, TOP, None, Some(document.get_ref()));
    top.reject_unknown(&mut sink);
    let drive_section = section(&mut sink, &top, "drive", DRIVE);
    let (drive, drive_size) = read_drive(&mut sink, &drive_section);
    let host_section = top.table(&mut sink, "host", host::KEYS);
    let host = host::read(&mut sink, &host_section);
    let drive_profile = drive.as_ref().map_or(Profile::DEFAULT, |drive| drive.profile.clone());
    let policies = read_policies(&mut sink, &top, &drive_profile);
    let one = |does: fn(PolicyKind) -> bool| {
        policies.as_ref().is_none_or(|policies| policies.iter().any(|policy| policy.does(does)))
    };
    let rules = TenantRules { priorities: one(PolicyKind::has_priorities), floors: one(PolicyKind::keeps_floors) };
    let run_section = top.table(&mut sink, "run", RUN);
    let run = read_run(&mut sink, &run_section);
    let draft = Draft {
        drive,
        drive_size,
        policies,
        policy_mark: ["policies", "policy"].iter().find_map(|key| top.entry(key)).map(|(name, _)| name.span()),
        run,
        tenants: read_tenants(&mut sink, &top, rules),
        faults: read_faults(&mut sink, &top),
    };
    let (tenants, faults, warnings) = rules::check(&mut sink, &draft);
    sink.finish()?;
    let (Some(drive), Some(host), Some(policies), Some(run)) = (draft.drive, host, draft.policies, draft.run) else {
        let remedy = "please report it with the file";
        return Err(ConfigErrors::one(&source.file, "can't be used, and no check says why", remedy));
    };
    let asked = tenants.iter().map(|tenant| tenant.size_bytes).fold(0, u64::saturating_add);
    let default = Size(DRIVE_DEFAULT.0.max(asked));
    let drive = Drive { size: draft.drive_size.map_or(default, Spanned::into_inner), ..drive };
    let fault_marks = draft.faults.into_iter().map(|fault| fault.span).collect();
    let policy_mark = draft.policy_mark;
    Ok(Scenario { drive, host, policies, run, tenants, faults, warnings, policy_mark, fault_marks, text: source })
}

/// A section that must be there.
fn section<'t, 'i>(
    sink: &mut Sink<'_>,
    top: &Section<'t, 'i>,
    key: &str,
    known: &'static [&'static str],
) -> Section<'t, 'i> {
    if top.lacks(key) {
        sink.whole(format!("there is no [{key}] section"), "add one: [drive] with profile = \"p5800x\"");
    }
    top.table(sink, key, known)
}

fn read_drive(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> (Option<Drive>, Option<Spanned<Size>>) {
    section.reject_unknown(sink);
    let file = sink.text.file.clone();
    let found = match section.span {
        Some(_) => section.require(sink, "profile", "add profile = \"p5800x\"", profile(&file)),
        None => None,
    };
    let drive_size = section.get(sink, "size", size);
    let size_wrong = section.has("size") && drive_size.is_none();
    let queues = count(sink, section, "queues", 1..=1024);
    let queue_depth = or(sink, section, "queue_depth", 1024, small_integer(2..=4096));
    let (Some(found), Some(queues), Some(queue_depth), false) = (found, queues, queue_depth, size_wrong) else {
        return (None, drive_size);
    };
    let profile_mark = Some(found.span());
    let drive = Drive { profile: found.into_inner(), size: Size(0), queues, queue_depth, profile_mark };
    (Some(drive), drive_size)
}

/// `policies = ["lpns", …]`, or `[policy]`, or several `[[policy]]`.
fn read_policies(sink: &mut Sink<'_>, top: &Section<'_, '_>, drive: &Profile) -> Option<Vec<LabSettings>> {
    if let (Some((key, _)), Some(_)) = (top.entry("policies"), top.entry("policy")) {
        let what = "there are `policies` and [policy]";
        sink.at(&key.span(), what, "to compare policies with settings of their own, write [[policy]] for each");
        return None;
    }
    let policies = if let Some((key, value)) = top.entry("policies") {
        read_names(sink, key.span(), value, drive)?
    } else if let Some((_, DeValue::Array(_))) = top.entry("policy").map(|(key, value)| (key, value.get_ref())) {
        let words = Items { one: "policy", each: "each policy", keys: "name", most: 64, why: "can be compared" };
        let mut found = Vec::new();
        for (span, table) in top.tables(sink, "policy", &words) {
            let section = Section::new(SCENARIO, "[[policy]]", policies::KEYS, Some(span.clone()), Some(table));
            found.push((span, read_policy(sink, &section, drive)?));
        }
        found
    } else {
        let section = top.table(sink, "policy", policies::KEYS);
        vec![(section.span.clone().unwrap_or(0..0), read_policy(sink, &section, drive)?)]
    };
    let mut distinct: Vec<LabSettings> = Vec::with_capacity(policies.len());
    for (span, policy) in policies {
        if distinct.contains(&policy) {
            sink.at(&span, format!("{} is there twice, with the same settings", policy.name()), "remove one of them");
            return None;
        }
        distinct.push(policy);
    }
    // An empty list was told.
    (!distinct.is_empty()).then_some(distinct)
}

fn read_names(
    sink: &mut Sink<'_>,
    key: Range<usize>,
    value: &Spanned<DeValue<'_>>,
    drive: &Profile,
) -> Option<Vec<(Range<usize>, LabSettings)>> {
    let example = "write a list of names: policies = [\"passthrough\", \"lpns\"]";
    let DeValue::Array(items) = value.get_ref() else {
        sink.at(&value.span(), format!("`policies` is {}", kind(value.get_ref())), example);
        return None;
    };
    if items.is_empty() || items.len() > 64 {
        sink.at(&key, format!("`policies` has {} names", items.len()), example);
        return None;
    }
    let mut found = Vec::with_capacity(items.len());
    for item in items.iter() {
        match policy_name(item.get_ref()) {
            Ok(word) => found.push((item.span(), policy_with_defaults(sink, word, drive)?)),
            Err(wrong) => sink.at(&item.span(), format!("a policy {}", wrong.what), wrong.remedy),
        }
    }
    (found.len() == items.len()).then_some(found)
}

fn read_run(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Run> {
    section.reject_unknown(sink);
    let spans = |min| span_in(Nanos(min)..=RUN_MAX);
    let warmup = or(sink, section, "warmup", Nanos(200_000_000), spans(0));
    let duration = or(sink, section, "duration", Nanos(2_000_000_000), spans(1_000_000));
    let seed = or(sink, section, "seed", 1, seed);
    let alone = or(sink, section, "alone", true, boolean);
    Some(Run { warmup: warmup?, duration: duration?, seed: seed?, alone: alone? })
}

fn read_tenants(sink: &mut Sink<'_>, top: &Section<'_, '_>, rules: TenantRules) -> Vec<TenantDraft> {
    if top.lacks("tenant") {
        sink.whole("there is no [[tenant]] section", "add one for each VM: [[tenant]] with name and a workload");
    }
    let words = Items {
        one: "tenant",
        each: "each VM",
        keys: "name and a workload",
        most: TENANTS_MAX,
        why: "can share a drive",
    };
    let items = top.tables(sink, "tenant", &words);
    items.into_iter().map(|(span, table)| read_tenant(sink, span, table, rules)).collect()
}

fn read_tenant(sink: &mut Sink<'_>, span: Range<usize>, table: &DeTable<'_>, rules: TenantRules) -> TenantDraft {
    let mut section = Section::new(SCENARIO, "[[tenant]]", TENANT, Some(span.clone()), Some(table));
    let name = section.require(sink, "name", "add name = \"db\"", name);
    if let Some(name) = &name {
        section.label = format!("tenant {:?}", name.get_ref());
    }
    let section = section;
    section.reject_unknown_but(sink, &["threads"]);
    let remedy = "write layout = \"per-queue\" under [host] for a thread for each queue, or best_effort_pollers = 2 \
                  there for several that tenants share; the threads of a workload belong under [tenant.workload]";
    section.forbid(sink, "threads", "a scenario has one way for all tenants to be parted among pollers", remedy);
    let copies = or(sink, &section, "count", 1, integer(1..=TENANTS_MAX as u32));
    let vcpus = or(sink, &section, "vcpus", 4, small_integer(1..=1024));
    // One of the controller's 128 queues is its admin queue.
    let queues = or(sink, &section, "queues", vcpus.unwrap_or(4).min(127), small_integer(1..=127));
    let size = match section.get(sink, "size", size) {
        Some(size) => Some(size),
        None if section.has("size") => None,
        None => Some(Spanned::new(span.clone(), TENANT_DEFAULT)),
    };
    let encryption = [("none", false), ("host", true), ("tenant", true)];
    let is_encrypted = or(sink, &section, "encryption", false, choice(&encryption, &[]));
    let no_client = ("a scenario's tenants ask for none", "write urgent, high, medium or low");
    let terms = read_terms(sink, &section, rules, Some(no_client));
    let work = read_workload(sink, &section, vcpus.unwrap_or(4), size.as_ref());
    TenantDraft { span, name, copies, terms, vcpus, queues, size, is_encrypted, work }
}

fn read_workload(
    sink: &mut Sink<'_>,
    tenant: &Section<'_, '_>,
    vcpus: u16,
    disk: Option<&Spanned<Size>>,
) -> Option<Work> {
    if tenant.lacks("workload") {
        let remedy = "add a [tenant.workload] section with kind = \"fio\" and rw = \"randread\", or kind = \"idle\"";
        sink.maybe_at(tenant.span.as_ref(), format!("{} has no workload", tenant.label), remedy);
    }
    let (key, value) = tenant.entry("workload")?;
    let DeValue::Table(table) = value.get_ref() else {
        let what = format!("`workload` in {} is {}, not a section", tenant.label, kind(value.get_ref()));
        sink.at(&key.span(), what, "write it below the [[tenant]] as a heading of its own: [tenant.workload]");
        return None;
    };
    let label = format!("the workload of {}", tenant.label);
    let section = Section::new(SCENARIO, &label, workload::KEYS, Some(key.span()), Some(table));
    let found = workload::read(sink, &section, vcpus)?;
    let used = found.demand.as_ref().and_then(|demand| demand.rw.working_set);
    let disk = disk.map(|disk| *disk.get_ref());
    if let (Some(used), Some(disk), Some((_, value))) = (used, disk, section.entry("size"))
        && used > disk
    {
        let what = format!("the workload uses {used}, the tenant has {disk}");
        sink.at(&value.span(), what, "write a smaller size, or give the tenant more");
    }
    Some(found)
}

fn read_faults(sink: &mut Sink<'_>, top: &Section<'_, '_>) -> Vec<FaultDraft> {
    let words = Items { one: "fault", each: "each fault", keys: "kind", most: FAULTS_MAX, why: "can be injected" };
    let mut found = Vec::new();
    for (span, table) in top.tables(sink, "fault", &words) {
        let section = Section::new(SCENARIO, "[[fault]]", fault::KEYS, Some(span), Some(table));
        found.extend(fault::read(sink, &section));
    }
    found
}
