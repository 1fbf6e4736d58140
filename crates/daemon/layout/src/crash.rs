//! Where a test has the process end, to see what the next one makes of what is left.

/// All points, in the order in which one change passes them.
pub const CRASH_POINTS: [&str; 5] = ["before-write", "half-written", "written", "renamed", "recorded"];

/// In debug builds, ends the process at once where `EVENKEELD_CRASH_AT=POINT:N` asks for it: when it passes that point
/// for the Nth time, counted from 1.
pub(crate) fn pass(point: &str) {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::{AtomicU32, Ordering};

        static PASSED: [AtomicU32; CRASH_POINTS.len()] = [const { AtomicU32::new(0) }; CRASH_POINTS.len()];
        let at = CRASH_POINTS.iter().position(|known| *known == point);
        let passed = at.map_or(0, |at| PASSED[at].fetch_add(1, Ordering::Relaxed) + 1);
        if std::env::var("EVENKEELD_CRASH_AT").is_ok_and(|wanted| wanted == format!("{point}:{passed}")) {
            std::process::abort();
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = point;
}
