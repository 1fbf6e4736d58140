//! Settings of disks that were created over the API, as the version before this one stored them.

use std::borrow::Cow;

/// Replaces keys that the version before had: `isolation`, which is a case of `threads` now, and `queue_depth`.
///
/// Each key has a line of its own, as the API writes them.
pub(crate) fn of_today(stored: &str) -> Cow<'_, str> {
    let key = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    if !stored.lines().any(|line| matches!(&*key(line), "isolation" | "queue_depth")) {
        return Cow::Borrowed(stored);
    }
    let is_alone = stored.lines().any(|line| key(line) == "isolation" && line.contains("own-poller"));
    let has_threads = stored.lines().any(|line| key(line) == "threads" && !line.contains("\"shared\""));
    let mut settings = String::new();
    for line in stored.lines() {
        match &*key(line) {
            "queue_depth" => {}
            "threads" if is_alone && !has_threads => {}
            "isolation" if is_alone && !has_threads => settings.push_str("threads = \"dedicated\"\n"),
            "isolation" => {}
            _ => settings.extend([line, "\n"]),
        }
    }
    Cow::Owned(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that is left makes the daemon refuse its own layout after an upgrade.
    #[test]
    fn keys_of_the_version_before_are_replaced() {
        let disk = "[[tenant]]\nname = \"a\"\n";
        for (stored, today) in [
            ("queues = 2\n", "queues = 2\n"),
            ("isolation = \"own-poller\"\nqueues = 2\n", "threads = \"dedicated\"\nqueues = 2\n"),
            ("isolation = \"own-poller\"\nthreads = \"shared\"\n", "threads = \"dedicated\"\n"),
            ("isolation = \"own-poller\"\nthreads = \"per-queue\"\n", "threads = \"per-queue\"\n"),
            ("isolation = \"shared\"\nqueue_depth = 64\n", ""),
        ] {
            assert_eq!(of_today(&format!("{disk}{stored}")), format!("{disk}{today}"));
        }
    }
}
