//! Every kind of mistake with the exact message that the operator sees: `bad_configs.txt` has cases of
//! `=== title`, the file, `---`, what is printed. `EVENKEEL_BLESS=1` writes the present messages into it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use config::Config;

fn printed(text: &str) -> String {
    match Config::parse(Path::new("ek.toml"), text) {
        Err(errors) => errors.to_string(),
        Ok(config) => {
            let warnings: Vec<String> = config.warnings.iter().map(|w| w.in_file(Path::new("ek.toml"))).collect();
            format!("good, with warnings:\n{}", warnings.join("\n"))
        }
    }
}

#[test]
fn messages_are_as_written_down() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/bad_configs.txt");
    let table = std::fs::read_to_string(&path).expect("the table");
    let mut now = String::new();
    let mut count = 0;
    for case in table.split("=== ").skip(1) {
        let (title, rest) = case.split_once('\n').expect("a title");
        let (text, _) = rest.split_once("---\n").expect("a message");
        writeln!(now, "=== {title}\n{text}---\n{}\n", printed(text)).expect("written");
        count += 1;
    }
    assert!(count > 40, "{count} cases");
    if std::env::var_os("EVENKEEL_BLESS").is_some() {
        std::fs::write(&path, &now).expect("blessed");
    }
    for (have, want) in now.split("=== ").zip(table.split("=== ")) {
        assert_eq!(have, want);
    }
}
