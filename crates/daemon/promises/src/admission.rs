//! Whether the promises of a configuration can be kept, before anybody is served.

use std::fmt;
use std::sync::Arc;

use config::{Backend, Config, ConfigErrors, Problem};
use io_model::Nanos;
use planner::{Promise, Tenant, Unmodelled, Verdict};
use serde::Serialize;
use ssd_model::Profile;

use crate::forecasts::Forecasts;
use crate::judged::Judged;
use crate::planning::{self, Question};
use crate::standing::{self, Before, Kind};
use crate::words;

/// What becomes of a configuration's promises.
#[derive(Debug, Default)]
pub struct Admission {
    /// Each guaranteed tenant's and then each floor, in the file's order; none where they can't be judged.
    pub promises: Vec<PromiseRow>,
    /// What the operator should know: promises that nobody checked, or that are made although they can't be kept.
    pub warnings: Vec<Problem>,
    refused: Vec<Problem>,
}

/// A promise that can't be kept, of a tenant that is not served all the same.
struct Broken {
    tenant: usize,
    kind: Kind,
    /// What was promised, and why it can't be kept.
    promised: String,
}

/// One promise. Times in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromiseRow {
    /// To whom.
    pub tenant: String,
    /// The target of a guaranteed tenant.
    pub latency_target_us: Option<f64>,
    /// What a best-effort one gets at least.
    pub floor: Option<String>,
    /// certain, expected, not kept or impossible; stands, if it was made before and is not judged again.
    pub verdict: &'static str,
    /// Why.
    pub reason: String,
    /// What it is taken to ask for.
    pub demand: String,
    /// Nobody declared that.
    pub assumed: bool,
    /// It is served although its promise can't be kept.
    pub overcommitted: bool,
}

impl Admission {
    /// Judges every promise on the drive that the file names, each as a new one.
    pub fn new(config: &Config, profile: &Profile, forecasts: &Forecasts) -> Self {
        Self::at_start(config, profile, &|_| false, forecasts)
    }

    /// For a start. `is_there` says which tenants had a disk on the drive before, so that their promises stand: these
    /// are not judged, unless there are new ones beside them.
    pub fn at_start(
        config: &Config,
        profile: &Profile,
        is_there: &dyn Fn(&str) -> bool,
        forecasts: &Forecasts,
    ) -> Self {
        let stands: Vec<bool> = config.tenants.iter().map(|tenant| is_there(&tenant.name)).collect();
        let mut promised = config.tenants.iter().zip(&stands).filter(|(tenant, _)| tenant.is_promised());
        if promised.all(|(_, stands)| *stands) && !is_no_drive(config) && Self::unchecked(config).is_none() {
            return Self::standing(config, profile);
        }
        Self::judge(config, profile, stands, forecasts)
            .map_or_else(|admission| admission, |assessment| assessment.conclude(|_| true))
    }

    /// For a change of what is served, `before`. Existing promises stand, and the change is not judged by promises that
    /// it makes no worse.
    pub fn of_change(config: &Config, profile: &Profile, before: &Config, forecasts: &Forecasts) -> Self {
        let stands = config.tenants.iter().map(|tenant| standing::was_promised(before, tenant)).collect();
        let assessment = match Self::judge(config, profile, stands, forecasts) {
            Ok(assessment) => assessment,
            Err(admission) => return admission,
        };
        if !assessment.is_refused() {
            return assessment.conclude(|_| true);
        }
        let Some(before) = Before::new(before, profile, forecasts) else { return Self::unknown(config) };
        let Assessment { question, judged, stands, .. } = &assessment;
        let is_worse = |broken: &Broken| {
            !stands[broken.tenant] || before.was_better(&question.tenants, judged, broken.tenant, broken.kind)
        };
        let is_worse: Vec<bool> = assessment.broken.iter().map(is_worse).collect();
        let mut each = is_worse.into_iter();
        assessment.conclude(|_| each.next().unwrap_or(true))
    }

    /// # Errors
    /// What there is to say without judging.
    fn judge<'a>(
        config: &'a Config,
        profile: &Profile,
        stands: Vec<bool>,
        forecasts: &'a Forecasts,
    ) -> Result<Assessment<'a>, Self> {
        if !config.tenants.iter().any(config::Tenant::is_promised) || is_no_drive(config) {
            return Err(Self::default());
        }
        if let Some(why) = Self::unchecked(config) {
            return Err(Self { warnings: vec![why], ..Self::default() });
        }
        let question = planning::of_config(config, profile);
        let judged = forecasts.judged(&question).ok_or_else(|| Self::unknown(config))?;
        Ok(Assessment::new(config, question, judged, (stands, forecasts)))
    }

    /// What stood before, as it is.
    fn standing(config: &Config, profile: &Profile) -> Self {
        let Question { tenants, assumed, .. } = planning::of_config(config, profile);
        let each = config.tenants.iter().zip(tenants.iter().zip(assumed)).filter(|(tenant, _)| tenant.is_promised());
        let row = |(tenant, (asks, assumed)): (&config::Tenant, (&Tenant, bool))| PromiseRow {
            tenant: tenant.name.clone(),
            latency_target_us: asks.target().map(Nanos::as_micros_f64),
            floor: tenant.terms.floor.in_words(),
            verdict: "stands",
            reason: "it was promised before this start".to_owned(),
            demand: words::demand(asks),
            assumed,
            overcommitted: false,
        };
        Self { promises: each.map(row).collect(), ..Self::default() }
    }

    /// Refused until there is a forecast.
    fn unknown(config: &Config) -> Self {
        let problem = config.drive_problem("there is no forecast of its promises yet", "ask again in a second");
        Self { refused: vec![problem], ..Self::default() }
    }

    /// Why no promise on the drive can be checked, if that is so; what is asked for doesn't matter.
    pub fn unchecked(config: &Config) -> Option<Problem> {
        if config.device.profile_named || is_no_drive(config) {
            return None;
        }
        let what = "promises are not checked: the file does not say which drive this is";
        let section = config.device.section();
        let remedy = format!("measure it with `evenkeel calibrate`, and write profile = \"…\" under {section}");
        Some(config.drive_problem(what, remedy))
    }

    /// # Errors
    /// Each promise that can't be kept and is not overcommitted.
    pub fn refuse(&self, config: &Config) -> Result<(), ConfigErrors> {
        if self.refused.is_empty() {
            return Ok(());
        }
        Err(ConfigErrors { file: config.file().to_owned(), problems: self.refused.clone() })
    }
}

/// Memory and null are no drives: nothing is known of them, and nothing to be measured.
fn is_no_drive(config: &Config) -> bool {
    matches!(config.device.backend, Backend::Memory | Backend::Null)
}

/// What is said of the promises below the table of `check` and `serve`.
impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PromiseRow { tenant, verdict, reason, demand, assumed, overcommitted, .. } in &self.promises {
            let by_whom = if *assumed { "assumed" } else { "declared" };
            let overcommit = if *overcommitted { ", overcommitted" } else { "" };
            writeln!(f, "promise  {tenant} ({demand}, {by_whom}): {verdict}{overcommit}: {reason}")?;
        }
        Ok(())
    }
}

struct Assessment<'a> {
    config: &'a Config,
    question: Question,
    judged: Arc<Judged>,
    /// By tenant.
    stands: Vec<bool>,
    forecasts: &'a Forecasts,
    promises: Vec<PromiseRow>,
    warnings: Vec<Problem>,
    broken: Vec<Broken>,
}

/// What a promise can't be beside floors.
const LOWER_FLOORS: &str = "write a larger latency_target, or lower min_iops and min_bandwidth of others";

impl<'a> Assessment<'a> {
    fn new(
        config: &'a Config,
        question: Question,
        judged: Arc<Judged>,
        (stands, forecasts): (Vec<bool>, &'a Forecasts),
    ) -> Self {
        let (promises, warnings, broken) = Default::default();
        let mut all = Self { config, question, judged, stands, forecasts, promises, warnings, broken };
        all.assess_targets();
        all.assess_floors();
        all
    }

    fn is_refused(&self) -> bool {
        !self.broken.is_empty()
    }

    /// The admission, with what to do about each broken promise that counts.
    fn conclude(mut self, counts: impl FnMut(&Broken) -> bool) -> Admission {
        self.broken = std::mem::take(&mut self.broken).into_iter().filter(counts).collect();
        let refused = self.broken.iter().map(|broken| self.problem(broken)).collect();
        Admission { promises: self.promises, warnings: self.warnings, refused }
    }

    fn problem(&self, Broken { tenant, kind, promised }: &Broken) -> Problem {
        let name = &self.config.tenants[*tenant].name;
        let what = format!("tenant {name:?} can't be promised {promised}");
        let remedy = format!("{}; or serve {name:?} anyway with overcommit = true", self.remedy(*tenant, *kind));
        self.config.promise_problem(*tenant, what, remedy)
    }

    fn row(&self, at: usize, verdict: Verdict, reason: String) -> Option<PromiseRow> {
        let (tenant, asks) = self.config.tenants.get(at).zip(self.question.tenants.get(at))?;
        Some(PromiseRow {
            tenant: tenant.name.clone(),
            latency_target_us: None,
            floor: None,
            verdict: verdict.name(),
            reason,
            demand: words::demand(asks),
            assumed: self.is_assumed(at),
            overcommitted: !verdict.is_kept() && tenant.overcommit,
        })
    }

    fn is_assumed(&self, at: usize) -> bool {
        self.question.assumed.get(at).copied().unwrap_or(true)
    }

    /// All floors, and the targets that are missed for them.
    fn assess_floors(&mut self) {
        let judged = Arc::clone(&self.judged);
        for floor in &judged.floors.floors {
            let Some(asks) = self.question.tenants.get(floor.tenant) else { continue };
            let verdict = if floor.is_kept() { Verdict::Expected } else { Verdict::NotKept };
            let reason = words::floor(floor, asks);
            let Some(row) = self.row(floor.tenant, verdict, reason.clone()) else { continue };
            let terms = self.config.tenants[floor.tenant].terms;
            self.promises.push(PromiseRow { floor: terms.floor.in_words(), ..row });
            if !floor.is_kept() {
                self.breaks(floor.tenant, Kind::Floor, format!("{}: {reason}", terms.floor));
            }
        }
    }

    /// A promise that can't be kept: refused, or told of where the tenant is served all the same.
    fn breaks(&mut self, tenant: usize, kind: Kind, promised: String) {
        let Some(asked) = self.config.tenants.get(tenant) else { return };
        let served_as = match () {
            () if asked.overcommit => Some(("can't be promised", "it is served anyway, as overcommit = true says")),
            () if self.stands[tenant] && self.is_near(tenant, kind) => {
                Some(("was promised", "it stands: the difference is within the forecasts' accuracy"))
            }
            () => None,
        };
        match served_as {
            Some((can, remedy)) => {
                let what = format!("tenant {:?} {can} {promised}", asked.name);
                self.warnings.push(self.config.promise_problem(tenant, what, remedy));
            }
            None => self.broken.push(Broken { tenant, kind, promised }),
        }
    }

    /// Whether what a tenant gets is enough for a promise that was made before.
    fn is_near(&self, tenant: usize, kind: Kind) -> bool {
        match kind {
            Kind::Target => {
                let target = self.question.tenants[tenant].target();
                target
                    .zip(self.judged.latency(tenant))
                    .is_some_and(|(target, latency)| standing::is_within(latency, target))
            }
            Kind::Floor => self.judged.floor(tenant).is_some_and(standing::is_enough),
        }
    }

    fn assess_targets(&mut self) {
        let judged = Arc::clone(&self.judged);
        for Promise { tenant, target, verdict, reason, .. } in judged.promises() {
            let Some(row) = self.row(*tenant, *verdict, reason.clone()) else { continue };
            self.promises.push(PromiseRow { latency_target_us: Some(target.as_micros_f64()), ..row });
            if !verdict.is_kept() {
                self.breaks(*tenant, Kind::Target, format!("{target}: {reason}"));
            }
        }
        if let Err(why) = &judged.outcome {
            let remedy = match why {
                Unmodelled::Drive => "name its profile",
                Unmodelled::Demand { .. } => "correct its [tenant.demand]",
                Unmodelled::Unplayable(_) | Unmodelled::TooLong => "have fewer tenants on one drive",
            };
            let what = format!("promises are not checked beside their neighbours: {why}");
            self.warnings.push(self.config.drive_problem(what, remedy));
        }
    }

    fn remedy(&self, tenant: usize, kind: Kind) -> String {
        if kind == Kind::Floor {
            let (floor, asks) = (self.judged.floor(tenant), &self.question.tenants[tenant]);
            return floor.map_or_else(String::new, |it| words::floor_remedy(it, asks, self.is_assumed(tenant)));
        }
        if self.judged.floors.late.contains(&tenant) {
            return format!("{LOWER_FLOORS}, beside which alone it can't be kept");
        }
        let Some(remedies) = self.forecasts.remedies(&self.question) else { return String::new() };
        let promise = self.judged.promises().iter().find(|promise| promise.tenant == tenant);
        if promise.is_some_and(|promise| matches!(promise.verdict, Verdict::Impossible { .. })) {
            return remedies.instead_of_impossible(tenant);
        }
        let mut remedy = match &remedies.change {
            Some(change) => words::change(change, &self.question.tenants),
            None => "no single change is enough: write a larger latency_target, or put tenants on another drive".into(),
        };
        // A guaranteed tenant is taken for the least that there is.
        let greedy = |(tenant, assumed): &(&Tenant, &bool)| **assumed && tenant.target().is_none();
        let each = self.question.tenants.iter().zip(&self.question.assumed);
        let assumed: Vec<&str> = each.filter(greedy).map(|(tenant, _)| tenant.name.as_str()).collect();
        let less = "if it is less than assumed, in [tenant.demand]";
        match assumed[..] {
            [] => {}
            [one] => remedy += &format!("; or declare what {one:?} asks for, {less}"),
            [first, ..] => {
                let others = assumed.len() - 1;
                remedy += &format!("; or declare what {first:?} and {others} more ask for, {less}");
            }
        }
        remedy
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::drive_profile;

    fn assess(text: &str) -> (Config, Admission) {
        let config = Config::parse(Path::new("ek.toml"), text).unwrap_or_else(|e| panic!("{e}"));
        let profile = drive_profile::load(&config.device.profile, |why| panic!("{why}")).expect("built in");
        let admission = Admission::new(&config, &profile, &Forecasts::default());
        (config, admission)
    }

    fn model(policy: &str, db: &str, batch: &str) -> String {
        format!(
            "[device]\nbackend = \"model\"\nsize = \"1GiB\"\n[policy]\nname = \"{policy}\"\n\
             [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\n{db}\n\
             [[tenant]]\nname = \"batch\"\nsize = \"4MiB\"\n{batch}\n"
        )
    }

    const LIGHT: &str = "[tenant.demand]\nrw = \"randread\"\nrate_iops = 1000";

    #[test]
    fn a_promise_that_holds_is_admitted() {
        let (config, admission) = assess(&model("passthrough", "latency_target = \"1ms\"", LIGHT));
        let [promise] = &admission.promises[..] else { panic!("{admission:?}") };
        assert_eq!((promise.tenant.as_str(), promise.assumed, promise.overcommitted), ("db", true, false));
        assert!(["certain", "expected"].contains(&promise.verdict), "{promise:?}");
        assert!(admission.warnings.is_empty(), "{admission:?}");
        admission.refuse(&config).expect("admitted");
    }

    #[test]
    fn evenkeel_admits_what_it_can_keep_beside_a_greedy_neighbour() {
        let (config, admission) = assess(&model("evenkeel", "latency_target = \"60us\"", ""));
        let [promise] = &admission.promises[..] else { panic!("{admission:?}") };
        assert!(promise.verdict == "expected" && admission.warnings.is_empty(), "{admission:?}");
        admission.refuse(&config).expect("admitted");
    }

    #[test]
    fn a_promise_that_fails_is_refused_with_the_reason_and_the_way_out() {
        let (config, admission) = assess(&model("passthrough", "latency_target = \"20us\"", ""));
        let told = admission.refuse(&config).expect_err("refused").to_string();
        assert!(
            told.starts_with("ek.toml:10:18: tenant \"db\" can't be promised 20us: 99 of 100 commands take"),
            "{told}"
        );
        for part in ["\"batch\"", "overcommit = true", "[tenant.demand]", "latency_target = \"20us\""] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn overcommit_admits_with_a_warning() {
        let (config, admission) = assess(&model("passthrough", "latency_target = \"20us\"\novercommit = true", ""));
        assert!(admission.promises[0].overcommitted && admission.promises[0].verdict == "not kept");
        assert!(admission.warnings[0].remedy.contains("served anyway"), "{admission:?}");
        admission.refuse(&config).expect("admitted");
    }

    /// The target that a refusal of the first tenant says to write.
    fn told_target(refused: &ConfigErrors) -> Option<Nanos> {
        let of_first = refused.problems.iter().find(|problem| problem.what.starts_with("tenant \"db\""))?;
        let (_, rest) = of_first.remedy.split_once("latency_target = \"")?;
        rest.split_once('"')?.0.parse().ok()
    }

    #[test]
    fn a_target_below_what_the_drive_takes_alone_is_told_the_lowest_one() {
        for policy in ["passthrough", "fair"] {
            let (config, admission) = assess(&model(policy, "latency_target = \"5us\"", LIGHT));
            let refused = admission.refuse(&config).expect_err("refused");
            assert!(refused.to_string().contains("even alone on the drive"), "{refused}");
            assert!((7_400..20_000).contains(&told_target(&refused).expect("a target").0), "{refused}");
        }
    }

    #[test]
    fn a_target_that_a_refusal_names_is_accepted_when_it_is_tried() {
        const HEAVY: &str = "[tenant.demand]\nrw = \"randread\"\nrate_iops = \"100k\"";
        let floor = |ios: &str| format!("[[tenant]]\nname = \"log\"\nsize = \"1MiB\"\nmin_iops = \"{ios}\"\n");
        let mut cases: Vec<(&str, String)> = ["passthrough", "evenkeel"].map(|policy| (policy, String::new())).into();
        cases.push(("evenkeel", floor("300k")));
        let mut named = 0;
        for (policy, floor) in cases {
            for (target, demand) in [("5us", HEAVY), ("20us", "")] {
                let refused = |target: &str| {
                    let db = format!("latency_target = \"{target}\"\n{demand}");
                    let (config, admission) = assess(&(model(policy, &db, "") + &floor));
                    admission.refuse(&config).err()
                };
                let Some(told) = refused(target).as_ref().and_then(told_target) else { continue };
                named += 1;
                let again = refused(&told.to_string());
                let problems = again.iter().flat_map(|errors| &errors.problems);
                let of_db: Vec<_> = problems.filter(|problem| problem.what.starts_with("tenant \"db\"")).collect();
                assert!(of_db.is_empty(), "{policy} {target} {demand} {floor}: {told}: {of_db:?}");
            }
        }
        assert!(named >= 3, "{named}");
    }

    /// `db` at the edge of what it was promised, beside a neighbour of that weight.
    fn at_the_edge(db: &str, weight: u32) -> String {
        let more = "[[tenant]]\nname = \"web\"\nsize = \"4MiB\"\n\
                    [tenant.demand]\nrw = \"randrw\"\nrwmixread = 70\nbs = \"64k\"\niodepth = 16\n";
        model("fair", db, &format!("weight = {weight}")) + more
    }

    fn change(before: &str, now: &str) -> Result<(), ConfigErrors> {
        let [before, now] = [before, now].map(|text| assess(text).0);
        let profile = drive_profile::load(&now.device.profile, |why| panic!("{why}")).expect("built in");
        Admission::of_change(&now, &profile, &before, &Forecasts::default()).refuse(&now)
    }

    #[test]
    fn a_drive_that_nobody_named_is_not_judged() {
        let text = model("passthrough", "latency_target = \"20us\"", "");
        let text = text.replace("backend = \"model\"", "backend = \"block\"\npath = \"/dev/x\"");
        let (config, admission) = assess(&text);
        assert!(admission.warnings[0].remedy.contains("evenkeel calibrate"), "{admission:?}");
        admission.refuse(&config).expect("admitted");
        let (_, admission) = assess(&text.replace("backend = \"block\"\npath = \"/dev/x\"", "backend = \"memory\""));
        assert!(admission.warnings.is_empty() && admission.promises.is_empty());
    }

    #[test]
    fn floors_are_judged_all_at_once_and_beside_the_targets() {
        let floor = |ios: &str| {
            let batch = format!("[[tenant]]\nname = \"log\"\nsize = \"1MiB\"\nmin_iops = \"{ios}\"\n");
            assess(&(model("evenkeel", "latency_target = \"60us\"", LIGHT) + &batch))
        };
        let (config, admission) = floor("50k");
        let row = admission.promises.last().expect("a floor");
        assert_eq!((row.tenant.as_str(), row.floor.as_deref(), row.verdict), ("log", Some("50k IOPS"), "expected"));
        admission.refuse(&config).expect("admitted");
        let (config, admission) = floor("5M");
        let told = admission.refuse(&config).expect_err("refused").to_string();
        for part in ["\"log\" can't be promised 5M IOPS", "\"db\" can't be promised 60us", "lower min_iops"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn who_can_t_have_its_floor_is_told_why_and_what_could_be_promised() {
        let told = |floor: &str| {
            let log = format!("[[tenant]]\nname = \"log\"\nsize = \"1MiB\"\n{floor}\n");
            let (config, admission) = assess(&(model("evenkeel", "latency_target = \"1ms\"", LIGHT) + &log));
            admission.refuse(&config).expect_err("refused").to_string()
        };
        let lone = told("min_iops = \"200k\"\n[tenant.demand]\nrw = \"randread\"\niodepth = 1");
        assert!(
            lone.contains("with one command at a time, even alone") && lone.contains("or less, or let it"),
            "{lone}"
        );
        let held = told("min_iops = \"20k\"\nrw_bandwidth = \"10MiB/s\"");
        assert!(held.contains("its own limits allow 2560") && held.contains("[tenant.demand]"), "{held}");
        // What is advised is admitted.
        let most = lone.split_once("write min_iops = \"").and_then(|(_, rest)| rest.split_once('"')).expect("a rate").0;
        let floor = format!("min_iops = \"{most}\"\n[tenant.demand]\nrw = \"randread\"\niodepth = 1");
        let log = format!("[[tenant]]\nname = \"log\"\nsize = \"1MiB\"\n{floor}\n");
        let (config, admission) = assess(&(model("evenkeel", "latency_target = \"1ms\"", LIGHT) + &log));
        admission.refuse(&config).expect("admitted");
    }

    /// A light and a heavy neighbour's weight, and what `db` takes beside each.
    fn edges() -> [(u32, Nanos); 2] {
        let of = |weight: u32| {
            let config = assess(&at_the_edge("latency_target = \"1s\"", weight)).0;
            let profile = drive_profile::load(&config.device.profile, |why| panic!("{why}")).expect("built in");
            let outcome = Forecasts::default().outcome(&planning::of_config(&config, &profile)).expect("played");
            (weight, outcome.expect("playable").forecast.tenants[0].at_percentile)
        };
        [5, 100].map(of)
    }

    #[test]
    fn a_promise_that_stands_is_not_refused_for_what_forecasts_cant_tell() {
        let [(light, takes), (heavy, takes_long)] = edges();
        let edge = |target: Nanos, weight: u32| at_the_edge(&format!("latency_target = \"{target}\""), weight);
        let target = Nanos(takes.0 * 11 / 10);
        let (config, admission) = assess(&edge(target, light));
        admission.refuse(&config).expect("it takes less");
        change(&edge(target, light), &edge(target, heavy)).expect_err("that breaks it");
        // Within what a play can tell.
        let (config, admission) = assess(&edge(takes_long, heavy));
        admission.refuse(&config).expect_err("nothing to promise anew");
        change(&edge(takes_long, light), &edge(takes_long, heavy)).expect("it was promised");
        // The next start does not judge it.
        let (config, _) = assess(&edge(target, heavy));
        let profile = drive_profile::load(&config.device.profile, |why| panic!("{why}")).expect("built in");
        let admission = Admission::at_start(&config, &profile, &|name| name == "db", &Forecasts::default());
        admission.refuse(&config).expect("it was there");
        assert_eq!(admission.promises[0].verdict, "stands", "{admission:?}");
    }

    #[test]
    fn a_change_is_not_refused_for_a_promise_that_it_makes_no_worse() {
        let edges = edges();
        let [low, high] = edges;
        assert!(high.1.0 as f64 > low.1.0 as f64 * 1.2, "{edges:?}");
        let target = Nanos(low.1.0 * 9 / 10);
        let with = |target: Nanos, weight: u32| at_the_edge(&format!("latency_target = \"{target}\""), weight);
        let edge = |weight: u32| with(target, weight);
        // What it takes already, for whatever reason: more than what was promised.
        let missed = edge(low.0);
        change(&missed, &missed.replace("name = \"web\"\nsize = \"4MiB\"", "name = \"web\"\nsize = \"8MiB\""))
            .expect("nobody's promise is touched");
        change(&edge(high.0), &missed).expect("it is missed by less");
        change(&missed, &edge(high.0)).expect_err("it is missed by more");
        // A promise is judged anew where more is asked for, and where none was made.
        change(&missed, &with(Nanos(target.0 - 1_000), low.0)).expect_err("more is promised");
        let overcommitted = missed.replace(
            &format!("latency_target = \"{target}\""),
            &format!("latency_target = \"{target}\"\novercommit = true"),
        );
        change(&overcommitted, &missed).expect_err("nothing was promised");
    }

    #[test]
    fn floors_stand_as_targets_do() {
        let text = |weight: u32, floor: &str| {
            let log = format!("[[tenant]]\nname = \"log\"\nsize = \"1MiB\"\nmin_iops = \"{floor}\"\n");
            model("evenkeel", "latency_target = \"60us\"", &format!("weight = {weight}\n{LIGHT}")) + &log
        };
        let (config, admission) = assess(&text(1, "5M"));
        admission.refuse(&config).expect_err("far too much");
        change(&text(1, "5M"), &text(2, "5M")).expect("no floor and no target gets less");
        let told = change(&text(1, "5M"), &text(1, "6M")).expect_err("more is promised").to_string();
        assert!(told.contains("\"log\""), "{told}");
        let told = change(&text(1, "50k"), &text(1, "5M")).expect_err("the target is missed beside it").to_string();
        assert!(told.contains("\"log\" can't be promised 5M") && told.contains("\"db\" can't be promised"), "{told}");
    }
}
