//! From a comparison to an answer: whose fault it was, in words.

use std::collections::BTreeSet;

use api::{BlameRow, NeighbourThen, Why};
use history::{Change, Comparison, Did, Promise};
use io_model::Nanos;
use io_model::units::Size;
use planner::Culprit;
use policy::Percentile;

use super::model::{Scene, lateness};
use super::remedies::{self, Fault};
use crate::foresight::Foresight;

/// All but the events. `is_restarted`: a daemon came in that time. `foresight`: of the drive, if that is there still.
/// `declared`: the tenants that the configuration file declares.
pub fn tell(
    tenant: &str,
    comparison: &Comparison,
    is_restarted: bool,
    foresight: Option<&Foresight>,
    declared: &BTreeSet<String>,
    notes: &mut Vec<String>,
) -> Why {
    let scene = foresight.and_then(|foresight| Scene::of(tenant, comparison, foresight));
    if scene.is_none() {
        notes.push(no_model(comparison, foresight));
    }
    let then = &comparison.then;
    let limits = foresight.and_then(|it| it.held_by(tenant, then.iops, then.bytes_s, then.read_share));
    let is_slow = comparison.spell.is_slow == Some(true);
    let found = is_slow.then(|| find(comparison, is_restarted, scene.as_ref(), limits)).flatten();
    let fault = found.as_ref().map(|(fault, _)| *fault);
    let remedies =
        fault.map(|fault| remedies::of(tenant, fault, comparison, scene.as_ref(), declared)).unwrap_or_default();
    let promised = |promise| match promise {
        Promise::Target { ns, late_ppm } => {
            Some((Nanos(ns).as_micros_f64(), Percentile::from_late_ppm(late_ppm).percent()))
        }
        Promise::Unnamed | Promise::None => None,
    };
    let target = |promise| promised(promise).map(|(target_us, _)| target_us);
    let labels = |name: &str| foresight.map(|foresight| foresight.labels_of(name)).unwrap_or_default();
    let neighbours = comparison.neighbours.iter().map(|it| NeighbourThen {
        name: it.name.clone(),
        labels: labels(&it.name),
        latency_target_us: target(it.promise),
        then: row(&it.then),
        usual: it.usual.as_ref().map(row),
        grew: it.is_grown(),
    });
    let spell = &comparison.spell;
    Why {
        tenant: tenant.to_owned(),
        labels: labels(tenant),
        drive: comparison.drive.clone(),
        policy: comparison.policy.clone(),
        latency_target_us: target(comparison.promise),
        latency_percentile: promised(comparison.promise).map(|(_, percent)| percent),
        weight: (comparison.promise == Promise::None).then_some(comparison.weight),
        from_unix_ms: spell.from_unix_ms,
        to_unix_ms: spell.to_unix_ms,
        slow: spell.is_slow,
        summaries: spell.intervals as u64,
        summaries_asked: spell.of as u64,
        summaries_usual: spell.usual as u64,
        then: row(&comparison.then),
        usual: comparison.usual.as_ref().map(row),
        alone_mean_us: scene.as_ref().and_then(Scene::alone).map(Nanos::as_micros_f64),
        cpu_wait_percent: comparison.starved * 100.0,
        cpu_wait_usual_percent: comparison.usual_starved.map(|starved| starved * 100.0),
        neighbours: neighbours.collect(),
        blame: found.map(|(fault, why)| blame_row(fault, why, comparison)),
        remedies,
        events: Vec::new(),
        notes: Vec::new(),
    }
}

fn no_model(comparison: &Comparison, foresight: Option<&Foresight>) -> String {
    let why = match foresight.and_then(Foresight::model) {
        None if foresight.is_none() => format!("drive {:?} is not served now", comparison.drive),
        None => "the configuration does not name the drive's profile".to_owned(),
        Some((_, now)) => format!("the policy was {}, and is {} now", comparison.policy, now.name()),
    };
    format!("no model was asked: {why}")
}

/// The cause, and the evidence. A tenant's own limits come first: no other tenant imposes them. Then pollers that stood
/// still, if most late commands are theirs. Then what else there is, with their part if they have one.
fn find(
    comparison: &Comparison,
    is_restarted: bool,
    scene: Option<&Scene<'_>>,
    limits: Option<&str>,
) -> Option<(Fault, String)> {
    let (waited_ns, served_ns) = (comparison.then.waited_ns(), comparison.then.served_ns);
    if let Some(limits) = limits.filter(|_| waited_ns > served_ns) {
        let why = format!("its commands waited {} in its queue, and it is held to {limits}", time(waited_ns));
        return Some((Fault::Limits, why));
    }
    let lateness = lateness(&comparison.then);
    let parts = lateness.in_words();
    if let Promise::Target { late_ppm, .. } = comparison.promise
        && lateness.is_hosts(Percentile::from_late_ppm(late_ppm).late())
    {
        // Of the tenant itself the model says so only where it does more than it declared.
        let own = scene.and_then(Scene::blame).filter(|blame| blame.culprit == Culprit::Own);
        return Some(own.map_or_else(|| (Fault::Host, parts.unwrap_or_default()), |own| (Fault::Own, own.why)));
    }
    let (fault, why) = for_another_reason(comparison, is_restarted, scene)?;
    // The model says so itself.
    let parts = parts.filter(|parts| !why.ends_with(parts.as_str()));
    Some((fault, parts.into_iter().fold(why, |why, parts| format!("{why}; {parts}"))))
}

/// The cause, if it is not that pollers stood still. Load that grew comes first: other changes may follow from it. Then
/// the model's view of a promise. Last, what no load explains.
fn for_another_reason(
    comparison: &Comparison,
    is_restarted: bool,
    scene: Option<&Scene<'_>>,
) -> Option<(Fault, String)> {
    match comparison.grown() {
        Some(Change::Neighbour(at)) => {
            let neighbour = comparison.neighbours.get(at)?;
            let usual = neighbour.usual.as_ref().map(load).unwrap_or_default();
            let why = format!("it did {}, usually {usual}", load(&neighbour.then));
            return Some((Fault::Neighbour(at), why + &starved_too(comparison)));
        }
        Some(Change::Own) => {
            let usual = comparison.usual.as_ref().map(load).unwrap_or_default();
            let why = format!("it did {} itself, usually {usual}", load(&comparison.then));
            return Some((Fault::Own, why + &starved_too(comparison)));
        }
        _ => {}
    }
    if is_restarted {
        let why = "restart: another daemon came then, and commands waited for it; nobody did more than usual";
        return Some((Fault::Restart, why.to_owned()));
    }
    if let Some(blame) = scene.and_then(Scene::blame) {
        let fault = match blame.culprit {
            Culprit::Own => Fault::Own,
            // The tenant itself is the first.
            Culprit::Neighbour(at) => Fault::Neighbour(at.checked_sub(1)?),
            Culprit::Drive => Fault::Drive,
            Culprit::Host => Fault::Host,
        };
        return Some((fault, blame.why));
    }
    let (then, usual) = (&comparison.then, comparison.usual.as_ref()?);
    match comparison.change() {
        Some(Change::Host) => Some((Fault::Host, format!("{}, and nobody did more than usual", starved(comparison)))),
        Some(Change::Drive) => {
            let [now, before] = [then.served_ns, usual.served_ns].map(time);
            let why = format!("it took {now} for a command, usually {before}");
            Some((Fault::Drive, format!("{why}, and nobody did more than usual")))
        }
        _ => None,
    }
}

fn starved(comparison: &Comparison) -> String {
    let [now, before] = [comparison.starved, comparison.usual_starved.unwrap_or(0.0)].map(|part| part * 100.0);
    format!("pollers waited {now:.1} % of the time for a CPU, usually {before:.1} %")
}

/// More load takes more CPU, so that one may follow from the other; on a host with too few CPUs it is the larger part.
fn starved_too(comparison: &Comparison) -> String {
    if comparison.is_starved() { format!("; and {}", starved(comparison)) } else { String::new() }
}

fn blame_row(fault: Fault, why: String, comparison: &Comparison) -> BlameRow {
    let (culprit, neighbour) = match fault {
        Fault::Own | Fault::Limits => ("own", None),
        Fault::Neighbour(at) => ("neighbour", comparison.neighbours.get(at).map(|it| it.name.clone())),
        Fault::Drive => ("drive", None),
        Fault::Host | Fault::Restart => ("host", None),
    };
    BlameRow { culprit: culprit.to_owned(), neighbour, why }
}

/// `410 MB/s in commands of 128KiB`, or commands per second if they are small.
pub fn load(did: &Did) -> String {
    if did.is_idle() {
        return "nothing".to_owned();
    }
    let len = Size(((did.mean_len_bytes() / 512.0).round() * 512.0) as u64);
    format!("{:.0} commands a second of {len} ({:.1} MB/s)", did.iops, did.bytes_s / 1e6)
}

fn time(ns: f64) -> String {
    match ns {
        _ if ns >= 1e7 => format!("{:.0} ms", ns / 1e6),
        _ => format!("{:.0} µs", ns / 1e3),
    }
}

fn row(did: &Did) -> api::Did {
    api::Did {
        iops: did.iops,
        bw_bytes: did.bytes_s,
        read_percent: did.read_share * 100.0,
        mean_len_bytes: did.mean_len_bytes(),
        outstanding: did.outstanding(),
        mean_us: did.mean_ns / 1e3,
        waited_us: did.waited_ns() / 1e3,
        served_us: did.served_ns / 1e3,
        p99_us: Nanos(did.p99_ns).as_micros_f64(),
        at_percentile_us: Nanos(did.at_percentile_ns).as_micros_f64(),
        max_us: Nanos(did.max_ns).as_micros_f64(),
        late: did.late,
        stalled_percent: did.stalled * 100.0,
        errors: did.errors,
    }
}

#[cfg(test)]
mod tests {
    use history::{Interval, Summary};

    use super::*;

    #[test]
    fn a_daemon_that_came_meanwhile_explains_what_no_load_does() {
        let tenants = vec![Summary { name: "db".into(), reads: 1, p99_ns: 1, ..Summary::default() }];
        let interval = Interval { span_ms: 10_000, tenants, ..Interval::default() };
        let mut comparison = Comparison::of(&[interval], "db", 0..10_000).expect("it did something");
        comparison.spell.is_slow = Some(true);
        let told = |is_restarted, limits| find(&comparison, is_restarted, None, limits).map(|(fault, _)| fault);
        assert_eq!(told(true, None), Some(Fault::Restart));
        assert_eq!(told(false, None), None);
        let tell = |is_restarted| tell("db", &comparison, is_restarted, None, &BTreeSet::new(), &mut Vec::new());
        let blame = tell(true).blame.expect("a cause");
        assert!(blame.culprit == "host" && blame.why.starts_with("restart: "), "{blame:?}");
        assert!(tell(true).remedies.is_empty() && tell(false).blame.is_none());
    }

    #[test]
    fn a_neighbour_that_grew_is_not_blamed_for_a_poller_that_stood_still() {
        let db = |at_percentile_ns: u64, late: u32, stalled: u32| Summary {
            name: "db".into(),
            promise: Promise::Target { ns: 100_000, late_ppm: 10_000 },
            reads: 1_000,
            read_bytes: 4_096_000,
            latency_sum_ns: 1_000 * at_percentile_ns,
            served_sum_ns: 1_000 * at_percentile_ns,
            at_percentile_ns,
            late,
            stalled,
            ..Summary::default()
        };
        let batch = |reads: u32| Summary {
            name: "batch".into(),
            reads,
            read_bytes: u64::from(reads) * 65_536,
            ..Summary::default()
        };
        let interval = |at_unix_ms, tenants| Interval { at_unix_ms, span_ms: 10_000, tenants, ..Interval::default() };
        let told = |late, stalled| {
            let usual = interval(0, vec![db(50_000, 0, 0), batch(100)]);
            let then = interval(10_000, vec![db(200_000, late, stalled), batch(10_000)]);
            let comparison = Comparison::of(&[usual, then], "db", 10_000..20_000).expect("it did something");
            let told = tell("db", &comparison, false, None, &BTreeSet::new(), &mut Vec::new());
            (told.blame.expect("a cause"), told.remedies)
        };
        let (blame, remedies) = told(500, 470);
        assert_eq!((blame.culprit.as_str(), blame.neighbour), ("host", None), "{}", blame.why);
        assert!(blame.why.contains("94 % were late only because its poller stood still, 6 % for"), "{}", blame.why);
        assert!(remedies.iter().all(|it| !it.what.contains("batch")), "{remedies:?}");
        let (blame, _) = told(500, 25);
        assert_eq!((blame.culprit.as_str(), blame.neighbour.as_deref()), ("neighbour", Some("batch")));
        assert!(blame.why.contains("5 % were late only because its poller stood still"), "{}", blame.why);
        assert_eq!(told(500, 0).1.len(), 1, "a limit for the neighbour");
    }

    #[test]
    fn who_waits_for_its_own_limits_is_not_told_that_it_is_a_neighbour() {
        let did = |name: &str, reads: u32, latency_sum_ns: u64| Summary {
            name: name.into(),
            reads,
            read_bytes: u64::from(reads) * 65_536,
            latency_sum_ns,
            served_sum_ns: u64::from(reads) * 50_000,
            p99_ns: latency_sum_ns / u64::from(reads),
            ..Summary::default()
        };
        let interval = |at_unix_ms, tenants| Interval { at_unix_ms, span_ms: 10_000, tenants, ..Interval::default() };
        let usual = interval(0, vec![did("db", 1_000, 60_000_000), did("n", 100, 6_000_000)]);
        let then = interval(10_000, vec![did("db", 1_000, 6_000_000_000), did("n", 100_000, 6_000_000_000)]);
        let comparison = Comparison::of(&[usual, then], "db", 10_000..20_000).expect("it did something");
        let told = |limits| find(&comparison, false, None, limits).map(|(fault, _)| fault);
        assert_eq!((told(None), told(Some("10MiB/s"))), (Some(Fault::Neighbour(0)), Some(Fault::Limits)));
    }
}
