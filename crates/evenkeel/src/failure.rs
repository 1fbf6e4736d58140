//! How a command tells that it failed: in words, or with `--json` as the API tells it; and its exit status.

use std::io::Write;
use std::process::ExitCode;

use api::{NoDaemon, Problem};

/// The operator gave bad input. All other failures exit with 1.
const EXIT_BAD_INPUT: u8 = 2;

/// Each exit status, and its meaning.
pub const STATUSES: [(u8, &str); 4] = [
    (0, "done"),
    (1, "failure of the daemon, the drive or the host"),
    (EXIT_BAD_INPUT, "bad input, a refused request, no daemon, or (`check`) a promise that can't be kept"),
    (crate::plan::EXIT_NOT_KEPT, "`plan` found a promise that can't be kept"),
];

/// Tells `error` on standard error. A reader that closed our output (`evenkeel stats | head`) is no failure.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    let json = is_json.then(|| api::document(&problem(error)).ok()).flatten();
    // Not eprintln: it panics where standard error can't be written.
    let _ = match json {
        Some(json) => writeln!(std::io::stderr(), "{json}"),
        None => writeln!(std::io::stderr(), "evenkeel: {error:#}"),
    };
    ExitCode::from(if is_bad_input(error) { EXIT_BAD_INPUT } else { 1 })
}

/// The error as the API would tell it.
fn problem(error: &anyhow::Error) -> Problem {
    if let Some(problem) = error.downcast_ref::<Problem>() {
        return problem.clone();
    }
    let title = format!("{error:#}");
    if error.is::<NoDaemon>() {
        return Problem::new(503, "no-daemon", title, "start `evenkeel serve`, or name the daemon's socket: --socket");
    }
    if let Some(config::ConfigErrors { file, problems }) = error.downcast_ref() {
        let title = format!("{}: bad configuration", file.display());
        let remedies: Vec<&str> = problems.iter().map(|problem| problem.remedy.as_str()).collect();
        let details = problems.iter().map(|problem| problem.in_file(file)).collect();
        return Problem { details, ..Problem::new(422, "bad-configuration", title, remedies.join("; ")) };
    }
    let (status, code) = if is_bad_input(error) { (422, "bad-input") } else { (500, "failed") };
    Problem::new(status, code, title, "the title says what failed; --help says what the command takes")
}

fn is_bad_input(error: &anyhow::Error) -> bool {
    error.is::<config::ConfigErrors>()
        || error.is::<trace::TraceError>()
        || error.is::<crate::why::BadTime>()
        || error.is::<::sim::ScenarioError>()
        || error.is::<NoDaemon>()
        || error.downcast_ref::<Problem>().is_some_and(|problem| problem.status < 500)
        || error.is::<crate::calibrate::Refused>()
        || error.downcast_ref().is_some_and(load::Error::is_bad_input)
}
