//! Rules across sections: names, room on the drive, places, queues, sockets; and what is allowed but odd.

use std::collections::HashMap;
use std::ops::Range;

use io_model::units::{Rate, Size};
use policy::Settings;
use policy::{Class, TenantPriority};
use toml::Spanned;

use crate::config::{Backend, Device};
use crate::demand::DemandLoad;
use crate::draft::{Draft, TenantDraft};
use crate::frontend::{Frontend, Serving};
use crate::groups;
use crate::images;
use crate::memory::{ALL_MAPS, ALL_MEMORY, MemoryDraft};
use crate::namespace_rules;
use crate::plan::{self, Load, Poller};
use crate::problem::{Problem, Sink};
use crate::values::Mode;
use crate::{POLLERS_MAX, RANGE_STEP_BYTES, SOCKET_PATH_MAX_BYTES};

/// Notes every problem in `sink`; gives the warnings.
pub(crate) fn check(sink: &mut Sink<'_>, draft: &Draft) -> Vec<Problem> {
    let tenants = draft.tenants.iter().map(|tenant| ("tenant", &tenant.name));
    let namespaces = draft.namespaces.iter().map(|namespace| ("namespace", &namespace.name));
    let named = tenants.chain(namespaces).filter_map(|(kind, name)| Some((kind, name.as_ref()?)));
    names(sink, named.map(|(kind, name)| (kind, name.get_ref().as_str(), name.span())));
    check_each(sink, draft);
    let (plan, few) = check_together(sink, draft);
    let mut warnings = Sink::new(sink.text);
    targets(&mut warnings, draft);
    demands_within_limits(&mut warnings, draft);
    priorities(&mut warnings, draft);
    if few {
        cpus(&mut warnings, draft, &plan);
        modes(&mut warnings, draft, &plan);
    }
    warnings.into_problems()
}

/// The rules between disks that have names of their own. Gives the pollers, and whether they are few enough to look at
/// each beside each.
pub(crate) fn check_together(sink: &mut Sink<'_>, draft: &Draft) -> (Vec<Poller>, bool) {
    room(sink, draft);
    overlaps(sink, &draft.tenants);
    memory_sums(sink, draft);
    namespace_rules::check(sink, draft);
    let plan = pollers(draft).unwrap_or_default();
    let few = poller_total(sink, &plan);
    queues(sink, draft, &plan);
    (plan, few)
}

/// The rules for each tenant by itself.
pub(crate) fn check_each(sink: &mut Sink<'_>, draft: &Draft) {
    if let Some(known) = &draft.groups {
        let named = draft
            .tenants
            .iter()
            .filter_map(|tenant| Some((tenant.name.as_ref()?.get_ref().as_str(), tenant.group.as_ref()?.as_ref()?)));
        groups::refuse_unknown(sink, known, named);
    }
    steps(sink, draft);
    sockets(sink, draft);
    images::check(sink, draft);
}

/// No two disks have one name. `named`: what each is, its name, and where that stands.
pub(crate) fn names<'n>(sink: &mut Sink<'_>, named: impl Iterator<Item = (&'n str, &'n str, Range<usize>)>) {
    let mut first: HashMap<&str, (&str, usize)> = HashMap::new();
    for (kind, name, span) in named {
        if let Some((other, at)) = first.get(name) {
            // Lines are counted from the text's start: not for each of a thousand tenants.
            let what = format!("{other} {name:?} is already on line {}", sink.text.line(*at));
            sink.at(&span, what, format!("give each {kind} a name of its own"));
        } else {
            first.insert(name, (kind, span.start));
        }
    }
}

/// The sizes that disks are to have.
fn sizes(draft: &Draft) -> impl Iterator<Item = &Spanned<Size>> {
    let tenants = draft.tenants.iter().filter_map(|tenant| tenant.size.as_ref());
    tenants.chain(draft.namespaces.iter().filter_map(|namespace| namespace.size.as_ref()))
}

/// Sizes and places are whole steps: a range must hold whole LBAs of either size.
fn steps(sink: &mut Sink<'_>, draft: &Draft) {
    let device = draft.device.as_ref().and_then(|device| device.size).zip(draft.marks.size.clone());
    let disks = sizes(draft).map(|size| (*size.get_ref(), size.span()));
    for (size, span) in device.into_iter().chain(disks) {
        if size.0 == 0 {
            sink.at(&span, "the size is 0", "write a size such as \"16GiB\"");
        } else {
            step(sink, "size", size, &span);
        }
    }
    for offset in draft.tenants.iter().filter_map(|tenant| tenant.offset.as_ref()) {
        step(sink, "offset", *offset.get_ref(), &offset.span());
    }
}

fn step(sink: &mut Sink<'_>, key: &str, size: Size, span: &Range<usize>) {
    if size.0.is_multiple_of(RANGE_STEP_BYTES) {
        return;
    }
    let remedy = match size.round_up(RANGE_STEP_BYTES) {
        Some(rounded) => format!("write {key} = \"{rounded}\" (rounded up)"),
        None => "write a smaller one".to_owned(),
    };
    sink.at(span, format!("the {key} {size} is not a multiple of {RANGE_STEP_BYTES} bytes"), remedy);
}

fn room(sink: &mut Sink<'_>, draft: &Draft) {
    let Some((size, span)) = draft.device.as_ref().and_then(|d| d.size).zip(draft.marks.size.clone()) else { return };
    // Thin disks have the pool's room.
    let ranged = draft.tenants.iter().filter(|tenant| tenant.thin.0 != Some(true)).filter_map(|it| it.size.as_ref());
    let namespaces = draft.namespaces.iter().filter_map(|namespace| namespace.size.as_ref());
    let pool = draft.device.as_ref().and_then(|device| device.pool).map_or(0, |pool| pool.size.0);
    let disks: u128 = ranged.chain(namespaces).map(|size| u128::from(size.get_ref().0)).sum();
    let asked = disks + u128::from(pool);
    if let Some(excess) = asked.checked_sub(u128::from(size.0)).filter(|excess| *excess > 0) {
        let shown =
            |bytes: u128| u64::try_from(bytes).map_or_else(|_| format!("{bytes} bytes"), |b| Size(b).to_string());
        let who = match (draft.namespaces.is_empty(), pool) {
            (true, 0) => "tenants",
            (false, 0) => "tenants and namespaces",
            _ => "pool and all disks that are not thin",
        };
        let what = format!("the {who} ask for {} in all, the device has {size}", shown(asked));
        sink.at(&span, what, format!("make {who} smaller by {}, or the device larger", shown(excess)));
    }
    for tenant in &draft.tenants {
        let (Some(offset), Some(len)) = (&tenant.offset, &tenant.size) else { continue };
        // Both are below 2^63: the sum fits.
        let end = offset.get_ref().0 + len.get_ref().0;
        if end > size.0 {
            let what = format!("the range ends at {}, behind the device's end at {size}", Size(end));
            sink.at(&offset.span(), what, "choose a smaller offset, or remove it to have a place chosen");
        }
    }
}

fn overlaps(sink: &mut Sink<'_>, tenants: &[TenantDraft]) {
    let mut fixed: Vec<(u64, u64, &TenantDraft, Range<usize>)> = Vec::new();
    for tenant in tenants {
        if let (Some(offset), Some(size)) = (&tenant.offset, &tenant.size) {
            fixed.push((offset.get_ref().0, offset.get_ref().0 + size.get_ref().0, tenant, offset.span()));
        }
    }
    fixed.sort_by_key(|(start, ..)| *start);
    let title = |t: &TenantDraft| t.name.as_ref().map_or("without a name".into(), |n| format!("{:?}", n.get_ref()));
    // The range that reaches furthest so far: a neighbour further back may overlap although the last one ended.
    let mut furthest: Option<&(u64, u64, &TenantDraft, Range<usize>)> = None;
    for range in &fixed {
        let (start, end, tenant, span) = range;
        if let Some((other_start, other_end, other, other_span)) = furthest.filter(|f| f.1 > *start) {
            let what = format!(
                "tenant {} ({} to {}) overlaps tenant {} on line {} ({} to {})",
                title(tenant),
                Size(*start),
                Size(*end),
                title(other),
                sink.text.line(other_span.start),
                Size(*other_start),
                Size(*other_end)
            );
            let remedy =
                format!("choose an offset of {} or more, or remove it to have a place chosen", Size(*other_end));
            sink.at(span, what, remedy);
        }
        if furthest.is_none_or(|f| f.1 < *end) {
            furthest = Some(range);
        }
    }
}

/// What the process has is enough for all of them.
fn memory_sums(sink: &mut Sink<'_>, draft: &Draft) {
    let all = |of: fn(&MemoryDraft) -> Option<u64>| {
        draft.tenants.iter().filter_map(|tenant| of(&tenant.memory)).map(u128::from).sum::<u128>()
    };
    let memory = all(|limits| limits.max_memory.map(|size| size.0));
    if memory > ALL_MEMORY.0.into() {
        let what = format!("the tenants' max_memory add up to {} TiB, {ALL_MEMORY} is the most", memory >> 40);
        sink.whole(what, "lower max_memory for some, to the memory of their guests");
    }
    let maps = all(|limits| limits.max_maps.map(u64::from));
    if maps > ALL_MAPS.into() {
        sink.whole(
            format!("the tenants' max_maps add up to {maps}, {ALL_MAPS} is the most"),
            "lower max_maps for some: a virtual machine needs two dozen",
        );
    }
}

fn sockets(sink: &mut Sink<'_>, draft: &Draft) {
    let Some(runtime_dir) = &draft.runtime_dir else { return };
    for tenant in &draft.tenants {
        let (Some(name), Some(frontend)) = (&tenant.name, &tenant.frontend.frontend) else { continue };
        let Some(socket_name) = frontend.socket_name() else { continue };
        let path = runtime_dir.join(name.get_ref()).join(socket_name);
        let len = path.as_os_str().len();
        if len > SOCKET_PATH_MAX_BYTES {
            let what =
                format!("the socket's path {} has {len} bytes, {SOCKET_PATH_MAX_BYTES} is the most", path.display());
            sink.at(&name.span(), what, "choose a shorter name or a shorter runtime_dir");
        }
    }
}

/// The pollers that will run, as far as it can be said.
fn pollers(draft: &Draft) -> Option<Vec<Poller>> {
    let usual = Frontend::VfioUser(Serving::USUAL);
    let loads = draft.tenants.iter().map(|tenant| Load {
        guaranteed: tenant.terms.class.is_some_and(Class::is_guaranteed),
        frontend: tenant.frontend.frontend.as_ref().unwrap_or(&usual),
        queues: tenant.queues.unwrap_or(1),
    });
    Some(plan::plan(draft.policy.as_ref(), draft.pollers.as_ref()?, &loads.collect::<Vec<_>>()))
}

/// Whether a tenant has threads to itself.
fn has_own_threads(tenant: &TenantDraft) -> bool {
    tenant.frontend.frontend.as_ref().is_some_and(Frontend::has_own_threads)
}

/// Whether the pollers are few enough to look at each beside each.
fn poller_total(sink: &mut Sink<'_>, plan: &[Poller]) -> bool {
    let few = plan.len() <= POLLERS_MAX;
    if !few {
        let what = format!("the tenants' threads add up to {}, {POLLERS_MAX} is the most", plan.len());
        sink.whole(what, "write threads = \"shared\" or \"dedicated\" for some, or fewer queues");
    }
    few
}

fn queues(sink: &mut Sink<'_>, draft: &Draft, plan: &[Poller]) {
    let Some(total) = draft.device.as_ref().and_then(|device| device.queues) else { return };
    let pollers = plan.len();
    if pollers > usize::from(total) {
        let what =
            format!("queues = {total} is less than the {pollers} pollers, each of which needs a queue of its own");
        let section = draft.device.as_ref().map_or_else(String::new, Device::section);
        let remedy =
            format!("write queues = {pollers} or more under {section}, or threads = \"shared\" in [[tenant]] sections");
        sink.maybe_at(draft.marks.device.as_ref(), what, remedy);
    }
}

fn targets(warnings: &mut Sink<'_>, draft: &Draft) {
    let (Some(device), Some(policy)) = (&draft.device, &draft.policy) else { return };
    let targets = draft.tenants.iter().filter_map(|tenant| Some((tenant, tenant.terms.class?.latency_target()?)));
    let mut any = false;
    for (tenant, target) in targets {
        any = true;
        // A drive that the file names is planned for, and a promise that it can't keep refused. Memory and null have no
        // latency to compare with.
        let guessed = draft.drive_assumed && !matches!(device.backend, Backend::Memory | Backend::Null);
        let alone = device.profile.figures().map(|figures| figures.alone_latency);
        if let Some(alone) = alone.filter(|alone| guessed && target < *alone) {
            let what = format!(
                "the target {target} is below what a {}, taken as the drive, gives a guest that has it alone ({alone})",
                device.profile.name()
            );
            warnings.at(
                tenant.terms.target_mark.as_ref().unwrap_or(&tenant.span),
                what,
                "choose a larger latency_target",
            );
        }
    }
    if any && !policy.kind().keeps_targets() {
        let what = format!("{} keeps no latency target", policy.name());
        let remedy = "write name = \"evenkeel\" under [policy] to have them kept";
        warnings.maybe_at(draft.policy_mark.as_ref(), what, remedy);
    }
    if let (Settings::Lpns(lpns), true) = (policy, any && draft.drive_assumed)
        && let (Some(rate), Some(latency)) = (lpns.rate_iops, lpns.min_latency)
    {
        let what = format!("lpns takes the drive for a {} ({rate} commands/s, {latency})", device.profile.name());
        let remedy = "set rate_iops and min_latency under [policy] to the drive's own";
        warnings.maybe_at(draft.marks.device.as_ref(), what, remedy);
    }
}

/// A load that doesn't wait for completions and asks for more than its limits waits longer and longer.
fn demands_within_limits(warnings: &mut Sink<'_>, draft: &Draft) {
    for tenant in &draft.tenants {
        let TenantDraft { name: Some(name), demand: Some(Some(demand)), terms, .. } = tenant else { continue };
        let Some(limits) = &terms.limits else { continue };
        let DemandLoad::Open { rate_iops } = demand.load else { continue };
        if let Some(most) = demand.most_iops(limits).map(|most| most as u64).filter(|most| *most < rate_iops.0) {
            let what = format!(
                "tenant {:?} asks for {rate_iops} commands a second, but its limits allow {}",
                name.get_ref(),
                Rate(most)
            );
            warnings.at(&tenant.span, what, "write higher limits, or a lower rate_iops in its demand");
        }
    }
}

fn priorities(warnings: &mut Sink<'_>, draft: &Draft) {
    let Some(policy) = &draft.policy else { return };
    let (Settings::Wrr(weights) | Settings::Drr(weights)) = policy else { return };
    let name = policy.name();
    if draft.tenants.iter().all(|tenant| tenant.terms.priority == Some(TenantPriority::default())) {
        let what = format!("{name} treats all tenants alike: none has a priority");
        warnings.maybe_at(draft.policy_mark.as_ref(), what, "add priority = \"high\" or \"low\" to a [[tenant]]");
    }
    let classes = [("high", weights.high_weight), ("medium", weights.medium_weight), ("low", weights.low_weight)];
    for ((above, more), (below, less)) in classes.into_iter().zip(classes.into_iter().skip(1)) {
        if less > more {
            let what = format!("the {below} class weighs more ({less}) than the {above} one ({more})");
            warnings.maybe_at(draft.policy_mark.as_ref(), what, format!("write a larger {above}_weight, if not meant"));
        }
    }
}

/// CPUs that `[pollers]` and tenants name, against the threads that there are for them.
fn cpus(warnings: &mut Sink<'_>, draft: &Draft, plan: &[Poller]) {
    let own = |poller: &Poller| {
        let tenant = poller.serves.first().and_then(|serves| draft.tenants.get(serves.tenant));
        tenant.filter(|tenant| has_own_threads(tenant))
    };
    if let (Some(mark), Some(pollers)) = (&draft.marks.cpus, &draft.pollers) {
        let (given, count) = (pollers.cpus.len(), plan.iter().filter(|poller| own(poller).is_none()).count());
        if (1..count).contains(&given) {
            let what =
                format!("{count} pollers share {given} CPUs, and a poller that waits for its CPU keeps no promise");
            warnings.at(mark, what, format!("name {count} CPUs"));
        }
        spare_cpus(warnings, mark, given, count);
    }
    for (at, tenant) in draft.tenants.iter().enumerate().filter(|(_, tenant)| has_own_threads(tenant)) {
        let (Some(mark), Some(frontend)) = (&tenant.frontend.marks.cpus, &tenant.frontend.frontend) else { continue };
        let its = |poller: &&Poller| poller.serves.iter().any(|serves| serves.tenant == at);
        spare_cpus(warnings, mark, frontend.cpus().len(), plan.iter().filter(its).count());
        let crowded = |poller: &&Poller| {
            let beside = plan.iter().filter(|other| other.cpu == poller.cpu).count();
            poller.mode == Mode::Polling && poller.cpu.is_some() && beside > 1
        };
        if let Some(cpu) = plan.iter().filter(its).find(crowded).and_then(|poller| poller.cpu) {
            let what = format!("several pollers share CPU {cpu}, and one with mode = \"polling\" never leaves it");
            warnings.at(mark, what, "name a CPU for each, or write mode = \"adaptive\"");
        }
    }
}

fn spare_cpus(warnings: &mut Sink<'_>, mark: &Range<usize>, given: usize, count: usize) {
    if given > count {
        let what = format!("{given} CPUs are named, the pollers need {count}");
        warnings.at(mark, what, "remove those that are not meant");
    }
}

/// A mode is the poller's: a neighbour may ask for a more eager one.
fn modes(warnings: &mut Sink<'_>, draft: &Draft, plan: &[Poller]) {
    for poller in plan {
        for tenant in poller.serves.iter().filter_map(|serves| draft.tenants.get(serves.tenant)) {
            let (Some(mark), Some(frontend)) = (&tenant.frontend.marks.mode, &tenant.frontend.frontend) else {
                continue;
            };
            if frontend.mode() < poller.mode {
                let what = format!("the tenant's poller is {}, as its other tenants need it", poller.mode.name());
                let remedy = "remove the line, or write threads = \"dedicated\" where the policy allows it";
                warnings.at(mark, what, remedy);
            }
        }
    }
}
