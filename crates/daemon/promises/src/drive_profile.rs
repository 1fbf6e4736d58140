//! The drive that a configuration or a scenario names, and what policies must know about it.

use config::{ConfigErrors, Place, Problem, read_text};
use io_model::Nanos;
use policy::{COST_UNIT, Cost, Curve, DriveFigures, FairConfig, LpnsConfig};
use ssd_model::{Profile, Writes};

/// The host's part of a lone command's latency: 37.5 % of 11.9 µs (LPNS Table 1). A drive model is without it.
const HOST_NS: u64 = 4_460;

/// Ω for a drive that nobody chose one for: the PM1735's, the flash drive of LPNS §5.5.
const OMEGA: f64 = 100.0;

/// Below this, a drive that is faster than its profile would idle between two commands.
const IN_FLIGHT_MIN: f64 = 8.0;

/// FairNVMe's upper threshold on the P3520 (3500 µs) over that drive's lone read (100 µs).
const SATURATION_FACTOR: u64 = 35;

/// Reads the profile that was named. `unusable` makes the error for a file that can't be read, at the line that
/// names it; what is wrong inside of the file is told with the file's own name and line.
pub fn load(named: &config::Profile, unusable: impl FnOnce(&str) -> ConfigErrors) -> Result<Profile, ConfigErrors> {
    let path = match named {
        config::Profile::BuiltIn(drive) => {
            return Profile::by_name(drive.name()).ok_or_else(|| unusable("this build does not have it"));
        }
        config::Profile::File(path) => path,
    };
    let text = read_text(path, "a drive profile").map_err(|errors| {
        let why = errors.problems.first().map_or("", |problem| problem.what.as_str());
        unusable(&format!("{} {why}", path.display()))
    })?;
    Profile::from_toml(&text).map_err(|error| {
        let excerpt = text.lines().nth(error.line.saturating_sub(1)).unwrap_or_default();
        // Control characters must not reach a terminal, and nobody reads lines of kilobytes.
        let excerpt = excerpt.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let place = Place { line: error.line, column: error.column, width: 1, excerpt };
        let problem = Problem { place: Some(place), what: error.what, remedy: error.remedy };
        ConfigErrors { file: path.clone(), problems: vec![problem] }
    })
}

/// What policies must know about a drive.
pub fn figures(profile: &Profile) -> DriveFigures {
    DriveFigures { lpns: lpns(profile), fair: fair(profile), max_in_flight: saturating_in_flight(profile) }
}

/// The drive's figures for `lpns`: as printed where the paper chose them, else what follows from the profile. R is the
/// rate of 4 KiB random writes that can go on for ever, L_h a lone read or write, whichever is slower, with the
/// host's part.
fn lpns(profile: &Profile) -> LpnsConfig {
    match &*profile.name {
        "p5800x" => return LpnsConfig::p5800x(),
        "pm1735" => return LpnsConfig::pm1735(),
        _ => {}
    }
    let (writes, reads) = (write_iops(profile), read_iops(profile));
    // As many commands as keep every unit busy several times over, in the range of the two drives above.
    let saturation_factor = (256 / profile.units.max(1)).clamp(8, 32);
    LpnsConfig {
        omega: OMEGA,
        r_iops: writes,
        l_h: Nanos(lone_read_ns(profile).max(lone_write_ns(profile))),
        parallelism: profile.units.clamp(1, 65_536),
        saturation_factor,
        floor_in_flight: (profile.units / 32).max(1),
        cost: cost(writes, reads),
        ..LpnsConfig::p5800x()
    }
}

/// What `lpns` takes a drive for that nobody chose figures for, in words.
pub fn assumed(drive: &str, lpns: &LpnsConfig) -> String {
    format!(
        "lpns takes {drive} for a drive of {:.0} commands/s (R), {} µs (L_h) and omega {:.0}: from its profile, but for \
         what [policy] says",
        lpns.r_iops,
        lpns.l_h.as_micros_f64(),
        lpns.omega
    )
}

/// The drive's figures for `fair`: printed or chosen by its authors' rule where there are any, else by the same rule.
fn fair(profile: &Profile) -> FairConfig {
    match &*profile.name {
        "p5800x" => FairConfig::p5800x(),
        "pm1735" => FairConfig::pm1735(),
        "p3520" => FairConfig::p3520(),
        _ => {
            let alone_ns = lone_read_ns(profile);
            let cost = cost(write_iops(profile), read_iops(profile));
            let saturated = Nanos(alone_ns.saturating_mul(SATURATION_FACTOR));
            FairConfig::for_drive(Nanos(alone_ns), saturated, profile.units.clamp(1, 65_536), cost)
        }
    }
}

/// Commands of 4 KiB that keep the drive nine tenths as busy as it can be: so many that those
/// which wait elsewhere lose nothing, and so few that it matters who of them is next.
///
/// A drive of n units to which W reads at random addresses go serves W / (W + n - 1) of what the units can (a closed
/// network of like stations); W follows, with those reads that are in the drive's other stages meanwhile.
fn saturating_in_flight(profile: &Profile) -> u32 {
    const BUSY: f64 = 0.9;
    let units = f64::from(profile.units.max(1));
    let reads = read_iops(profile);
    let part = BUSY * reads / (per_second(profile.read_ns) * units);
    let elsewhere = reads * (profile.controller_ns + profile.pipeline_ns) as f64 / 1e9;
    let in_flight = (units - 1.0) * part / (1.0 - part) + elsewhere;
    in_flight.round().clamp(IN_FLIGHT_MIN, 65_536.0) as u32
}

/// A read in writes of 4 KiB.
fn cost(write_iops: f64, read_iops: f64) -> Cost {
    let read = (f64::from(COST_UNIT) * write_iops / read_iops).round().clamp(1.0, f64::from(COST_UNIT) * 16.0);
    Cost { read: Curve::linear(read as u32), ..Cost::default() }
}

/// 4 KiB over a link of so many MB/s (bytes per µs).
fn link_ns(mb_s: u32) -> u64 {
    4_096_000 / u64::from(mb_s.max(1))
}

fn per_second(ns: u64) -> f64 {
    1e9 / ns.max(1) as f64
}

fn lone_read_ns(profile: &Profile) -> u64 {
    let channel = match profile.writes {
        Writes::Programmed { nand, .. } => link_ns(nand.channel_mb_s),
        _ => 0,
    };
    let link = link_ns(profile.link_read_mb_s);
    HOST_NS + profile.controller_ns + profile.pipeline_ns + profile.read_ns + channel + link
}

fn lone_write_ns(profile: &Profile) -> u64 {
    let medium = match profile.writes {
        Writes::InPlace { write_ns, ack_ns } => write_ns + ack_ns + profile.pipeline_ns,
        Writes::Buffered { ack_ns, .. } | Writes::Programmed { ack_ns, .. } => ack_ns,
    };
    HOST_NS + profile.controller_ns + medium + link_ns(profile.link_write_mb_s)
}

fn read_iops(profile: &Profile) -> f64 {
    let units = per_second(profile.read_ns) * f64::from(profile.units.max(1));
    units.min(per_second(profile.controller_ns)).min(per_second(link_ns(profile.link_read_mb_s)))
}

fn write_iops(profile: &Profile) -> f64 {
    let units = f64::from(profile.units.max(1));
    let medium = match profile.writes {
        Writes::InPlace { write_ns, .. } => per_second(write_ns) * units,
        Writes::Buffered { drain_ns, .. } => per_second(drain_ns),
        Writes::Programmed { nand, .. } => {
            let pages = nand.page_bytes as f64 / 4_096.0;
            let amplification = profile.gc.filter(|gc| gc.enabled).map_or(1.0, |gc| gc.write_amplification());
            per_second(nand.program_ns) * units * pages / amplification
        }
    };
    medium.min(per_second(profile.controller_ns)).min(per_second(link_ns(profile.link_write_mb_s)))
}

#[cfg(test)]
mod tests {
    use config::BuiltIn;

    use super::*;

    /// What a configuration assumes about a drive is what its profile says.
    #[test]
    fn built_in_figures_follow_from_the_profiles() {
        for drive in BuiltIn::all() {
            let named = config::Profile::BuiltIn(drive);
            let profile = load(&named, |why| panic!("{drive:?}: {why}")).expect("built in");
            let (lpns, figures) = (lpns(&profile), drive.figures());
            let rate = figures.rate_iops.0 as f64;
            assert!((lpns.r_iops / rate - 1.0).abs() < 0.03, "{drive:?}: R {} and {rate}", lpns.r_iops);
            let latency = figures.min_latency.0 as f64;
            assert!((lpns.l_h.0 as f64 / latency - 1.0).abs() < 0.03, "{drive:?}: L_h {} and {latency}", lpns.l_h.0);
            assert_eq!(lpns.omega, f64::from(figures.omega), "{drive:?}");
            fair(&profile).validate().expect("in range");
        }
        assert_eq!(BuiltIn::all().count(), Profile::built_in().len(), "each has a name in a configuration");
    }

    #[test]
    fn the_window_is_wide_enough_and_no_wider() {
        let window = |drive: &str| saturating_in_flight(&Profile::by_name(drive).expect("built in"));
        assert_eq!((window("p5800x"), window("pm1735"), window("p3520")), (45, 100, 72));
    }

    #[test]
    fn a_profiles_problem_is_told_with_its_own_line() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("mine.toml");
        let text = Profile::text_of("p3520").expect("built in").replace("units = 36", "units = 0");
        std::fs::write(&path, &text).expect("written");
        let errors = load(&config::Profile::File(path.clone()), |_| unreachable!()).expect_err("no units");
        let line = text.lines().position(|line| line == "units = 0").expect("a line") + 1;
        let shown = errors.to_string();
        assert!(shown.starts_with(&format!("{}:{line}:", path.display())), "{shown}");
        assert!(shown.contains("| units = 0"), "{shown}");
    }
}
