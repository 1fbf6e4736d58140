//! `--add`: a configuration with tenants that are not in its file, checked as if they were.

use std::path::{Path, PathBuf};

use config::{Config, ConfigErrors, Drives, Problem, RANGE_STEP_BYTES, Tenant, read_text};
use promises::drive_profile;
use promises::forecasts::Forecasts;
use promises::placing::{self, Site};
use ssd_model::Profile;

/// Keys of an inline tenant that belong under `[tenant.demand]`; all others belong to the `[[tenant]]` itself.
const DEMAND: [&str; 7] = ["rw", "rwmixread", "bs", "iodepth", "numjobs", "rate_iops", "first_writes"];

/// What one drive has of a configuration, and which of its tenants were added.
pub struct Enlarged {
    /// With the added tenants at the end.
    pub config: Config,
    /// How many tenants it has of the file itself.
    pub present: usize,
    sources: Vec<Source>,
    /// What is said of added tenants that are on a drive which nobody asked for.
    elsewhere: Vec<String>,
}

/// Part of the text that was checked.
#[derive(Clone)]
struct Source {
    name: PathBuf,
    /// From 1, in the whole text.
    first_line: usize,
    /// Whether its lines are those of a file that the operator can look at.
    has_lines: bool,
}

/// Reads a configuration and what to add to it, for each of its drives or one. What is
/// wrong with an addition is told with its own name and line.
///
/// # Errors
/// Everything that is wrong with the file, or with the first addition that has problems; or there is no such drive.
pub fn load(path: &Path, additions: &[String], drive: Option<&str>) -> Result<Vec<Enlarged>, ConfigErrors> {
    let mut text = read_text(path, "a configuration file")?;
    let before = placed(Drives::parse(path, &text, "")?)?;
    let mut sources = vec![Source { name: path.to_owned(), first_line: 1, has_lines: true }];
    for addition in additions {
        let (name, more, has_lines) = match addition.contains('=') {
            true => (PathBuf::from("--add"), inline(addition)?, false),
            false => (PathBuf::from(addition), file(Path::new(addition))?, true),
        };
        text.push('\n');
        sources.push(Source { name, first_line: text.matches('\n').count() + 1, has_lines });
        text += &more;
    }
    let all = Drives::parse(path, &text, "").and_then(placed);
    let all = all.map_err(|errors| errors_at(&sources, errors.problems))?;
    let is_wanted = |config: &Config| drive.is_none_or(|name| name == config.device.name);
    let elsewhere: Vec<String> = before
        .iter()
        .zip(&all)
        .filter(|(_, config)| !is_wanted(config))
        .flat_map(|(before, config)| config.tenants.iter().map(move |tenant| (before, config, tenant)))
        .filter(|(before, _, tenant)| before.tenants.iter().all(|it| it.name != tenant.name))
        .map(|(_, config, tenant)| went_elsewhere(tenant, &config.device.name, drive.unwrap_or_default()))
        .collect();
    let enlarged = |(before, mut config): (&Config, Config)| {
        let was_there = |tenant: &Tenant| before.tenants.iter().any(|it| it.name == tenant.name);
        config.tenants.sort_by_key(|tenant| !was_there(tenant));
        let present = config.tenants.iter().filter(|tenant| was_there(tenant)).count();
        Enlarged { config, present, sources: sources.clone(), elsewhere: elsewhere.clone() }
    };
    let each: Vec<Enlarged> = before.iter().zip(all).filter(|(_, config)| is_wanted(config)).map(enlarged).collect();
    if each.is_empty() {
        Drives::load(path)?.one(drive)?;
    }
    Ok(each)
}

fn went_elsewhere(tenant: &Tenant, on: &str, asked: &str) -> String {
    format!(
        "tenant {:?} went to drive {on:?}, and is no part of this plan; say drive={asked} in its --add to plan for it \
         here",
        tenant.name
    )
}

/// Every tenant on a drive, as if nobody had been there before.
fn placed(drives: Drives) -> Result<Vec<Config>, ConfigErrors> {
    let Drives { mut each, unplaced, .. } = drives;
    let load = |config: &Config| drive_profile::load(&config.device.profile, |why| config.no_profile(why));
    let profiles: Vec<Profile> = each.iter().map(load).collect::<Result<_, _>>()?;
    let sites = each.iter_mut().zip(&profiles).map(|(config, profile)| {
        // Where nobody said how large the drive is, it is as large as is needed.
        let size_bytes = config.device.size.map_or(u64::MAX, |size| size.0);
        let asked = config.tenants.iter().map(|tenant| tenant.size.0);
        let free_bytes = Some(asked.fold(size_bytes, u64::saturating_sub));
        Site { config, profile, free_bytes }
    });
    placing::place(&mut sites.collect::<Vec<_>>(), &unplaced, &Forecasts::default())?;
    Ok(each)
}

impl Enlarged {
    /// Problems that were found later, as an error: those of the part of the text that has the first of them.
    pub fn errors(&self, problems: Vec<Problem>) -> ConfigErrors {
        errors_at(&self.sources, problems)
    }

    /// What is allowed but probably not meant, with names and lines.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.config.warnings.iter().cloned();
        warnings
            .map(|warning| {
                let (source, problem) = locate(&self.sources, warning);
                problem.in_file(&source.name)
            })
            .chain(self.elsewhere.iter().cloned())
            .collect()
    }
}

fn errors_at(sources: &[Source], problems: Vec<Problem>) -> ConfigErrors {
    let mut file = None;
    let mut kept = Vec::new();
    for problem in problems {
        let (source, problem) = locate(sources, problem);
        let file = file.get_or_insert_with(|| source.name.clone());
        if *file == source.name {
            kept.push(problem);
        }
    }
    ConfigErrors { file: file.unwrap_or_default(), problems: kept }
}

/// Which part of the text a problem is in, and the problem with that part's own lines.
fn locate(sources: &[Source], mut problem: Problem) -> (&Source, Problem) {
    let line = problem.place.as_ref().map_or(1, |place| place.line);
    // The first source begins at line 1, so there is one.
    let source = sources.iter().rev().find(|source| source.first_line <= line).unwrap_or(&sources[0]);
    if !source.has_lines {
        problem.place = None;
    } else if let Some(place) = &mut problem.place {
        place.line -= source.first_line - 1;
    }
    (source, problem)
}

fn wrong(file: &Path, what: impl Into<String>, remedy: impl Into<String>) -> ConfigErrors {
    let problem = Problem { place: None, what: what.into(), remedy: remedy.into() };
    ConfigErrors { file: file.to_owned(), problems: vec![problem] }
}

/// The text of a file that has `[[tenant]]` sections and nothing else: other keys would land in the configuration's
/// last section, and be told there.
fn file(path: &Path) -> Result<String, ConfigErrors> {
    let text = read_text(path, "a file with [[tenant]] sections, or name=web,class=guaranteed,... itself")?;
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let remedy = "leave only [[tenant]] sections, as a configuration has them";
    match lines().next() {
        None => return Err(wrong(path, "has no [[tenant]] section", remedy)),
        Some(first) if !first.starts_with('[') => return Err(wrong(path, "begins with a key of no section", remedy)),
        Some(_) => {}
    }
    match lines().find(|line| line.starts_with('[') && !is_tenant(line)) {
        // A heading is shown, not reproduced.
        Some(other) => {
            let shown: String = other.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect();
            Err(wrong(path, format!("has something else than tenants: {shown}"), remedy))
        }
        None => Ok(text),
    }
}

fn is_tenant(heading: &str) -> bool {
    let name = heading.trim_start_matches('[').trim_start();
    name.starts_with("tenant")
}

/// The section that `name=web,class=guaranteed,latency_target=200us,bs=4k,iodepth=1,rw=randread` stands for.
fn inline(spec: &str) -> Result<String, ConfigErrors> {
    let flag = Path::new("--add");
    let example = "write key=value pairs with commas between, such as name=web,class=guaranteed,latency_target=200us,\
                   rw=randread,bs=4k,iodepth=1; or the path of a file with a [[tenant]] section";
    let (mut tenant, mut demand) = (String::new(), String::new());
    let mut keys: Vec<&str> = Vec::new();
    for pair in spec.split(',') {
        let Some((key, value)) = pair.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            return Err(wrong(flag, format!("{} is no key=value", shown(pair)), example));
        };
        if key.is_empty() || !key.bytes().all(|c| c.is_ascii_lowercase() || c == b'_') {
            return Err(wrong(flag, format!("{} is no key of a tenant", shown(key)), example));
        }
        if keys.contains(&key) {
            return Err(wrong(flag, format!("{key} stands there twice"), "leave one of them"));
        }
        keys.push(key);
        let plain = |c: char| c.is_alphanumeric() || "._:/%-".contains(c);
        if value.is_empty() || !value.chars().all(plain) {
            let remedy = "write letters, digits and . _ : / % - alone";
            return Err(wrong(flag, format!("{key} is {}", shown(value)), remedy));
        }
        let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let is_number = value.len() < 19 && is_digits(whole) && is_digits(fraction);
        let is_bare = key != "name" && (is_number || matches!(value, "true" | "false"));
        // As TOML has it: no leading zeros.
        let zeros = if is_number && is_bare { whole.len() - whole.trim_start_matches('0').len() } else { 0 };
        let value = &value[zeros.min(whole.len().saturating_sub(1))..];
        let line = if is_bare { format!("{key} = {value}\n") } else { format!("{key} = \"{value}\"\n") };
        if DEMAND.contains(&key) { demand += &line } else { tenant += &line }
    }
    if !keys.contains(&"size") {
        // What it will get does not depend on its size; any place on the drive will do.
        tenant += &format!("size = {RANGE_STEP_BYTES}\n");
    }
    let heading = if demand.is_empty() { "" } else { "[tenant.demand]\n" };
    Ok(format!("[[tenant]]\n{tenant}{heading}{demand}"))
}

/// The operator's text, shortened and escaped for a terminal.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inline_tenant_is_a_section() {
        let spec = "name=7,class=guaranteed,latency_target=200us,bs=4k,iodepth=08,rw=randread,overcommit=true";
        let expected = "[[tenant]]\nname = \"7\"\nclass = \"guaranteed\"\nlatency_target = \"200us\"\n\
                        overcommit = true\n\
                        size = 4096\n[tenant.demand]\nbs = \"4k\"\niodepth = 8\nrw = \"randread\"\n";
        assert_eq!(inline(spec).expect("good"), expected);
        assert_eq!(inline("name=a,size=1GiB").expect("good"), "[[tenant]]\nname = \"a\"\nsize = \"1GiB\"\n");
        let fractions = "name=a,size=1GiB,latency_percentile=099.9,iodepth=00,rw=.5";
        let expected = "[[tenant]]\nname = \"a\"\nsize = \"1GiB\"\nlatency_percentile = 99.9\n[tenant.demand]\n\
                        iodepth = 0\nrw = \".5\"\n";
        assert_eq!(inline(fractions).expect("good"), expected);
    }

    #[test]
    fn nothing_but_a_tenant_can_be_smuggled_in() {
        for (spec, says) in [
            ("=", "\"\" is no key"),
            ("name=a,", "\"\" is no key=value"),
            ("name=a\"\n[policy]\nname = \"k2", "name is \"a\\\"\\n[policy]\\nname = \\\"k2\""),
            ("name]=a", "\"name]\" is no key"),
            ("name=a,name=b", "name stands there twice"),
            ("name=", "name is \"\""),
        ] {
            let error = inline(spec).expect_err(spec).to_string();
            assert!(error.starts_with("--add: ") && error.contains(says), "{spec}: {error}");
        }
    }
}
