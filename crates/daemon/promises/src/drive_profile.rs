//! The drive that a configuration or a scenario names.

use config::{ConfigErrors, Place, Problem, read_text};
use policy::LpnsConfig;
use ssd_model::Profile;

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

/// What `lpns` takes a drive for that nobody chose figures for, in words.
pub fn assumed(drive: &str, lpns: &LpnsConfig) -> String {
    format!(
        "lpns takes {drive} for a drive of {:.0} commands/s (R) and {} µs (L_h): from its profile, but for what \
         [policy] says",
        lpns.r_iops,
        lpns.l_h.as_micros_f64()
    )
}

#[cfg(test)]
mod tests {
    use config::BuiltIn;
    use policy::DriveFigures;

    use super::*;

    /// What a configuration assumes about a drive is what its profile says.
    #[test]
    fn built_in_figures_follow_from_the_profiles() {
        for drive in BuiltIn::all() {
            let named = config::Profile::BuiltIn(drive);
            let profile = load(&named, |why| panic!("{drive:?}: {why}")).expect("built in");
            let (DriveFigures { lpns, fair, .. }, figures) = (planner::drive_figures(&profile), drive.figures());
            let rate = figures.rate_iops.0 as f64;
            assert!((lpns.r_iops / rate - 1.0).abs() < 0.03, "{drive:?}: R {} and {rate}", lpns.r_iops);
            let latency = figures.min_latency.0 as f64;
            assert!((lpns.l_h.0 as f64 / latency - 1.0).abs() < 0.03, "{drive:?}: L_h {} and {latency}", lpns.l_h.0);
            fair.validate().expect("in range");
        }
        assert_eq!(BuiltIn::all().count(), Profile::built_in().len(), "each has a name in a configuration");
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
