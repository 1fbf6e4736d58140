//! Whether the promises of a configuration can be kept, before anybody is served.

use std::fmt;

use config::{Backend, Config, ConfigErrors, Problem};
use planner::{FloorsForecast, Planner, Promise, Tenant, Unmodelled, Verdict, advise, judge_floors};
use policy::PolicyConfig;
use serde::Serialize;
use ssd_model::Profile;

use crate::planning::{self, Question};
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

/// One promise. Times in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromiseRow {
    /// To whom.
    pub tenant: String,
    /// The target of a guaranteed tenant.
    pub latency_target_us: Option<f64>,
    /// What a best-effort one gets at least.
    pub floor: Option<String>,
    /// certain, expected, not kept or impossible.
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
    /// Judges every promise on the drive that the file names. Pure.
    pub fn new(config: &Config, profile: &Profile) -> Self {
        if !config.tenants.iter().any(config::Tenant::is_promised) || is_no_drive(config) {
            return Self::default();
        }
        if let Some(why) = Self::unchecked(config) {
            return Self { warnings: vec![why], ..Self::default() };
        }
        Assessment::new(config, planning::of_config(config, profile)).assess()
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
    matches!(config.device.backend, Backend::Memory { .. } | Backend::Null)
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
    floors: FloorsForecast,
}

/// What a promise can't be beside floors.
const LOWER_FLOORS: &str = "write a larger latency_target, or lower min_iops and min_bandwidth of others";

impl<'a> Assessment<'a> {
    fn new(config: &'a Config, question: Question) -> Self {
        // A demand that is not known is told of with the targets.
        let floors = judge_floors(&question.site, &question.policy, &question.tenants).unwrap_or_default();
        Self { config, question, floors }
    }

    fn assess(&self) -> Admission {
        let mut admission = self.assess_targets();
        self.assess_floors(&mut admission);
        admission
    }

    /// All floors at once, and the targets beside nothing but them.
    fn assess_floors(&self, admission: &mut Admission) {
        for floor in &self.floors.floors {
            let Some(tenant) = self.config.tenants.get(floor.tenant) else { continue };
            let Some(asks) = self.question.tenants.get(floor.tenant) else { continue };
            let (kept, overcommits) = (floor.is_kept(), self.config.overcommits(tenant));
            let assumed = self.question.assumed.get(floor.tenant).copied().unwrap_or(true);
            let reason = words::floor(floor, asks);
            let what = format!("tenant {:?} can't be promised {}: {reason}", tenant.name, tenant.terms.floor);
            admission.promises.push(PromiseRow {
                tenant: tenant.name.clone(),
                latency_target_us: None,
                floor: tenant.terms.floor.in_words(),
                verdict: if kept { Verdict::Expected } else { Verdict::NotKept }.name(),
                reason,
                demand: words::demand(asks),
                assumed,
                overcommitted: !kept && overcommits,
            });
            if !kept {
                self.refuse(admission, floor.tenant, what, &words::floor_remedy(floor, asks, assumed));
            }
        }
        let is_told = |at: &usize| {
            let row = admission.promises.iter().find(|row| self.config.tenants[*at].name == row.tenant);
            row.is_some_and(|row| !matches!(row.verdict, "certain" | "expected"))
        };
        let late: Vec<usize> = self.floors.late.iter().copied().filter(|at| !is_told(at)).collect();
        for at in late {
            let name = &self.config.tenants[at].name;
            let what = format!("tenant {name:?} can't be promised its latency beside the floors of others");
            self.refuse(admission, at, what, LOWER_FLOORS);
        }
    }

    /// A promise that can't be kept: refused, or told of where the tenant is served all the same.
    fn refuse(&self, admission: &mut Admission, tenant: usize, what: String, remedy: &str) {
        if self.config.tenants.get(tenant).is_some_and(|tenant| self.config.overcommits(tenant)) {
            let remedy = "it is served all the same, as overcommit = true says";
            return admission.warnings.push(self.config.promise_problem(tenant, what, remedy));
        }
        let remedy = format!("{remedy}; or serve it all the same with overcommit = true");
        admission.refused.push(self.config.promise_problem(tenant, what, remedy));
    }

    fn assess_targets(&self) -> Admission {
        let planner = Planner::new(&self.question.site);
        let Question { policy, tenants, .. } = &self.question;
        let mut admission = Admission::default();
        let outcome = match planner.outcome(policy, tenants) {
            Ok(outcome) => outcome,
            Err(why) => {
                self.assess_alone(&planner, &mut admission);
                let remedy = match why {
                    Unmodelled::Policy { .. } => "use one of these to have them checked, or try with `evenkeel sim`",
                    Unmodelled::Demand { .. } => "correct its [tenant.demand]",
                };
                let what = format!("promises are not checked beside their neighbours: {why}");
                admission.warnings.push(self.config.drive_problem(what, remedy));
                return admission;
            }
        };
        let advice = advise(&planner, policy, tenants, &outcome);
        let change = advice.first().map(|advice| words::change(&advice.change, tenants));
        for promise in &outcome.promises {
            self.add(&mut admission, promise, change.as_deref());
        }
        admission
    }

    /// Where there is no model of the policy, what the drive can't do for a tenant that has it alone is known still.
    fn assess_alone(&self, planner: &Planner<'_>, admission: &mut Admission) {
        for (index, tenant) in self.question.tenants.iter().enumerate() {
            let alone = planner.outcome(&PolicyConfig::Passthrough, std::slice::from_ref(tenant));
            let promise = alone.ok().and_then(|outcome| outcome.promises.into_iter().next());
            if let Some(promise) = promise.filter(|promise| matches!(promise.verdict, Verdict::Impossible { .. })) {
                self.add(admission, &Promise { tenant: index, ..promise }, None);
            }
        }
    }

    fn add(&self, admission: &mut Admission, promise: &Promise, change: Option<&str>) {
        let Some(tenant) = self.config.tenants.get(promise.tenant) else { return };
        let (kept, overcommits) = (promise.verdict.is_kept(), self.config.overcommits(tenant));
        let assumed = |index: usize| self.question.assumed.get(index).copied().unwrap_or(true);
        admission.promises.push(PromiseRow {
            tenant: tenant.name.clone(),
            latency_target_us: Some(promise.target.as_micros_f64()),
            floor: None,
            verdict: promise.verdict.name(),
            reason: promise.reason.clone(),
            demand: self.question.tenants.get(promise.tenant).map(words::demand).unwrap_or_default(),
            assumed: assumed(promise.tenant),
            overcommitted: !kept && overcommits,
        });
        if kept {
            return;
        }
        let what = format!("tenant {:?} can't be promised {}: {}", tenant.name, promise.target, promise.reason);
        self.refuse(admission, promise.tenant, what, &self.remedy(promise, change));
    }

    fn remedy(&self, promise: &Promise, change: Option<&str>) -> String {
        if let Verdict::Impossible { lowest } = promise.verdict {
            return format!("write latency_target = \"{lowest}\" or more");
        }
        if self.floors.late.contains(&promise.tenant) {
            return format!("{LOWER_FLOORS}, beside which alone it can't be kept");
        }
        let mut remedy = match change {
            Some(change) => change.to_owned(),
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

    use io_model::Nanos;

    use super::*;
    use crate::drive_profile;

    fn assess(text: &str) -> (Config, Admission) {
        let config = Config::parse(Path::new("ek.toml"), text).unwrap_or_else(|e| panic!("{e}"));
        let profile = drive_profile::load(&config.device.profile, |why| panic!("{why}")).expect("built in");
        let admission = Admission::new(&config, &profile);
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
        for text in [
            model("passthrough", "latency_target = \"20us\"\novercommit = true", ""),
            format!("overcommit = true\n{}", model("passthrough", "latency_target = \"20us\"", "")),
        ] {
            let (config, admission) = assess(&text);
            assert!(admission.promises[0].overcommitted && admission.promises[0].verdict == "not kept");
            assert!(admission.warnings[0].remedy.contains("served all the same"), "{admission:?}");
            admission.refuse(&config).expect("admitted");
        }
    }

    #[test]
    fn a_target_below_what_the_drive_takes_alone_is_told_the_lowest_one() {
        // Without a model of the policy, too.
        for policy in ["passthrough", "k2"] {
            let (config, admission) = assess(&model(policy, "latency_target = \"5us\"", LIGHT));
            let told = admission.refuse(&config).expect_err("refused").to_string();
            assert!(told.contains("even alone on the drive; the lowest possible target is"), "{told}");
            let lowest = told.split_once("write latency_target = \"").and_then(|(_, rest)| rest.split_once('"'));
            let lowest: Nanos = lowest.expect("a target").0.parse().expect("a time");
            assert!((7_400..9_000).contains(&lowest.0), "{told}");
            // What is advised holds, for a tenant that has the drive alone.
            let target = format!("latency_target = \"{lowest}\"\n[tenant.demand]\nrw = \"randread\"\nrate_iops = 1");
            let (_, admission) = assess(&model(policy, &target, LIGHT));
            assert!(admission.promises.iter().all(|promise| promise.verdict != "impossible"), "{admission:?}");
        }
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
        assert!(held.contains("its own limits let through 2560") && held.contains("[tenant.demand]"), "{held}");
        // What is advised is admitted.
        let most = lone.split_once("write min_iops = \"").and_then(|(_, rest)| rest.split_once('"')).expect("a rate").0;
        let floor = format!("min_iops = \"{most}\"\n[tenant.demand]\nrw = \"randread\"\niodepth = 1");
        let log = format!("[[tenant]]\nname = \"log\"\nsize = \"1MiB\"\n{floor}\n");
        let (config, admission) = assess(&(model("evenkeel", "latency_target = \"1ms\"", LIGHT) + &log));
        admission.refuse(&config).expect("admitted");
    }
}
