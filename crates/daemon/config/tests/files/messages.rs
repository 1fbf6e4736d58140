//! Tables of mistakes with the exact message that the operator sees: cases of `=== title`, the file, `---`, what is
//! printed. `EVENKEEL_BLESS=1` writes the present messages into them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use config::{ConfigErrors, Problem};

fn printed(checked: Result<Vec<Problem>, ConfigErrors>) -> String {
    match checked {
        Err(errors) => errors.to_string(),
        Ok(warnings) => {
            let warnings: Vec<String> = warnings.iter().map(|w| w.in_file(Path::new("ek.toml"))).collect();
            format!("good, with warnings:\n{}", warnings.join("\n"))
        }
    }
}

/// Whether each case of a table beside the test says what `check` says.
pub fn are_as_written_down(table: &str, check: impl Fn(&str) -> Result<Vec<Problem>, ConfigErrors>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(table);
    let table = std::fs::read_to_string(&path).expect("the table");
    let mut now = String::new();
    let mut count = 0;
    for case in table.split("=== ").skip(1) {
        let (title, rest) = case.split_once('\n').expect("a title");
        let (text, _) = rest.split_once("---\n").expect("a message");
        writeln!(now, "=== {title}\n{text}---\n{}\n", printed(check(text))).expect("written");
        count += 1;
    }
    assert!(count > 30, "{count} cases");
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        std::fs::write(&path, &now).expect("blessed");
    }
    for (have, want) in now.split("=== ").zip(table.split("=== ")) {
        assert_eq!(have, want);
    }
}
