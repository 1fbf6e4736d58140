//! What is served, in one line for people: what a service manager shows.

use crate::served_drive::ServedDrive;

/// Names in a line at most: it is to stay one that fits a screen.
const NAMES_MAX: usize = 3;

/// What is served, and what needs an operator's attention.
pub fn in_words(all: &[&ServedDrive], broken: &[String], missing: &[&str]) -> String {
    let drives = || all.iter().copied();
    let disks = drives().map(|drive| drive.state.disks().iter().count()).sum();
    let zeroing = drives().map(|drive| drive.waiting.len()).sum::<usize>();
    let mut broken: Vec<&str> = broken.iter().map(String::as_str).collect();
    broken.sort_unstable();

    let mut text = format!("Serving {} on {}", counted(disks, "disk"), counted(all.len(), "drive"));
    if zeroing > 0 {
        text += &format!(", {zeroing} of them once zeroed");
    }
    if !broken.is_empty() {
        text += &format!("; promises broken: {}", listed(&broken));
    }
    if !missing.is_empty() {
        text += &format!("; drives missing: {}", listed(missing));
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_one_line() {
        assert_eq!((counted(0, "disk"), counted(1, "disk")), ("0 disks".into(), "1 disk".into()));
        assert_eq!(listed(&["a", "b", "c"]), "a, b, c");
        assert_eq!(listed(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
