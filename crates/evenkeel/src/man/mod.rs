//! `evenkeel man`: manual pages, from the definitions of the command line and of the configuration's keys.

mod examples;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::disk::DEFAULT_SOCKET;
use crate::failure::STATUSES;
use crate::shell;
use crate::upgrade::PACKAGED_CONFIG;

/// The page of the daemon's file.
const FILE_PAGE: &str = "evenkeel.toml";
/// The pages of the other programs, and of that file.
const OTHERS: [(&str, char); 3] = [(FILE_PAGE, '5'), ("evenkeeld", '8'), ("evenkeel-keeper", '8')];
const MOST_EXAMPLES: usize = 3;
/// A file for which no drive is needed.
const CONFIG_EXAMPLE: &str = include_str!("../../../../examples/model.toml");
const SOURCE: &str = concat!("evenkeel ", env!("CARGO_PKG_VERSION"));

/// Write manual pages: one per command, and one of the daemon's configuration file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory to write to; created if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs `man` for the command line `evenkeel`.
///
/// # Errors
/// The directory or a page can't be written.
pub fn run(args: &Args, evenkeel: clap::Command) -> Result<()> {
    let dir = &args.out;
    let cannot = || format!("can't write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(cannot)?;
    pages(evenkeel)?.into_iter().try_for_each(|(name, page)| std::fs::write(dir.join(name), page)).with_context(cannot)
}

/// All pages, with the names of their files.
fn pages(evenkeel: clap::Command) -> Result<Vec<(String, Vec<u8>)>> {
    let mut evenkeel = evenkeel.disable_help_subcommand(true);
    evenkeel.build();
    // `evenkeel serve` becomes the daemon, with the same arguments.
    let daemon = ".so man1/evenkeel-serve.1\n".as_bytes().to_vec();
    let mut pages = vec![(format!("{FILE_PAGE}.5"), file_page().into_bytes()), ("evenkeeld.8".to_owned(), daemon)];
    add_pages(&mut pages, &evenkeel, shell::NAME)?;
    Ok(pages)
}

/// The page of a command, which is typed as `words`, and those of its subcommands.
fn add_pages(pages: &mut Vec<(String, Vec<u8>)>, command: &clap::Command, words: &str) -> Result<()> {
    let man = Man::new(command.clone()).source(SOURCE).manual("Evenkeel");
    let mut page = Vec::new();
    man.render(&mut page)?;
    sections_for_all(words).to_writer(&mut page)?;
    pages.push((man.get_filename(), page));
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| add_pages(pages, command, &format!("{words} {}", command.get_name())))
}

/// The end of a command's page: what clap does not know of it.
fn sections_for_all(words: &str) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in STATUSES {
        entry(&mut page, &status.to_string(), meaning);
    }
    page.control("SH", ["FILES"]);
    for (path, about) in [
        (PACKAGED_CONFIG, "The daemon's configuration, where the package has it."),
        (DEFAULT_SOCKET, "The daemon's API. `EVENKEEL_SOCKET` names another path."),
        (config::STATE_DIR, "Layouts of drives, and the history that `evenkeel why` reads."),
    ] {
        entry(&mut page, path, about);
    }
    page.control("SH", ["EXAMPLES"]);
    for (line, about) in examples_of(words).take(MOST_EXAMPLES) {
        entry(&mut page, line, about);
    }
    page.control("SH", ["SEE ALSO"]);
    let above = words.rsplit_once(' ').map(|(above, _)| above);
    let commands = [(above != Some(shell::NAME)).then_some(shell::NAME), above].into_iter().flatten();
    let commands = commands.filter(|command| *command != words).map(|command| (command.replace(' ', "-"), '1'));
    see_also(&mut page, commands.chain(OTHERS.map(|(name, section)| (name.to_owned(), section))));
    page
}

/// The examples of a command and of its subcommands.
fn examples_of(words: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_of = move |line: &str| line.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    examples::EXAMPLES.iter().copied().filter(move |(line, _)| is_of(line))
}

/// The page of the daemon's file.
fn file_page() -> String {
    let mut page = Roff::new();
    page.control("TH", [FILE_PAGE, "5", "", SOURCE, "Evenkeel"]);
    page.control("SH", ["NAME"]).text([roman(format!("{FILE_PAGE} - configuration file of evenkeeld"))]);
    page.control("SH", ["DESCRIPTION"]);
    page.text(inlines(&format!(
        "Drives, policies and permanent tenants, as TOML. The package has the file as `{PACKAGED_CONFIG}`. \
         `evenkeel check` reports each problem of a file, and `evenkeel apply` applies a changed file to the daemon."
    )));
    page.control("PP", []).text(inlines(
        "Sizes: `\"16GiB\"` (steps of 1024), `\"1TB\"` (steps of 1000), `4096` (bytes). Times: `\"50us\"`, `\"10ms\"`.",
    ));
    page.control("PP", []).text(inlines(
        "Changes of a key are made at once, also under a client; without a client; or at a start of the daemon.",
    ));
    for (heading, about, lines) in config::settings_sections() {
        page.control("SH", [heading.replace('`', "").to_uppercase().as_str()]);
        if !about.is_empty() {
            page.text(inlines(about));
        }
        for (name, [values, default, changes, about]) in lines {
            entry(&mut page, name, &format!("{about} Values: {values}. Default: {default}. Changes: {changes}."));
        }
    }
    page.control("SH", ["EXAMPLES"]).control("nf", []).text([roman(CONFIG_EXAMPLE.trim_end())]).control("fi", []);
    page.control("SH", ["SEE ALSO"]);
    let others = OTHERS.into_iter().filter(|(name, _)| *name != FILE_PAGE);
    let pages = [(shell::NAME, '1'), ("evenkeel-check", '1'), ("evenkeel-apply", '1')].into_iter().chain(others);
    see_also(&mut page, pages.map(|(name, section)| (name.to_owned(), section)));
    page.render()
}

/// A name, and below it what it is.
fn entry(page: &mut Roff, name: &str, about: &str) {
    page.control("TP", []).text([bold(name)]).text(inlines(about));
}

fn see_also(page: &mut Roff, pages: impl Iterator<Item = (String, char)>) {
    let pages: Vec<_> = pages.collect();
    for (at, (name, section)) in pages.iter().enumerate() {
        let comma = if at + 1 < pages.len() { "," } else { "" };
        page.text([bold(name), roman(format!("({section}){comma}"))]);
    }
}

/// Text with backquotes around what is bold.
fn inlines(text: &str) -> Vec<Inline> {
    text.split('`').enumerate().map(|(at, part)| if at % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::disallowed_methods, reason = "groff reads what is written for it")]

    use std::collections::BTreeMap;
    use std::process::Command;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    /// Each subcommand, also nested ones, as it is typed after the program's name.
    pub fn subcommands() -> Vec<String> {
        fn below(command: &clap::Command, words: &str, all: &mut Vec<String>) {
            for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                all.push(format!("{words} {}", command.get_name()).trim_start().to_owned());
                below(command, &all[all.len() - 1].clone(), all);
            }
        }
        let mut all = Vec::new();
        below(&Cli::command(), "", &mut all);
        assert!(all.iter().any(|words| words == "disk grow"), "{all:?}");
        all
    }

    fn texts() -> BTreeMap<String, String> {
        let text = |page| String::from_utf8(page).expect("UTF-8");
        pages(Cli::command()).expect("rendered").into_iter().map(|(name, page)| (name, text(page))).collect()
    }

    /// The pages that a page names under SEE ALSO, as names of files.
    fn seen(page: &str) -> Vec<String> {
        let (_, names) = page.split_once(".SH \"SEE ALSO\"\n").expect("SEE ALSO");
        let plain = names.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
        plain.lines().map(|line| line.trim_end_matches(&[')', ','][..]).replace('(', ".")).collect()
    }

    #[test]
    fn each_command_has_a_page_with_all_sections() {
        let pages = texts();
        let commands = subcommands();
        for words in commands.iter().map(String::as_str).chain([""]) {
            let typed = format!("{} {words}", shell::NAME);
            let name = format!("{}.1", typed.trim_end().replace(' ', "-"));
            let page = &pages[&name];
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "\"EXIT STATUS\"", "FILES", "EXAMPLES", "\"SEE ALSO\""] {
                let (_, section) = page.split_once(&format!(".SH {heading}\n")).expect(heading);
                assert!(!section.is_empty() && !section.starts_with(".SH"), "{name}: {heading} is empty");
            }
        }
    }

    #[test]
    fn pages_name_pages_that_exist() {
        let pages = texts();
        for (name, page) in pages.iter().filter(|(_, page)| !page.starts_with(".so ")) {
            let seen = seen(page);
            assert!(seen.len() >= 3, "{name}: {seen:?}");
            for other in seen {
                // `cargo xtask package` writes the keeper's page.
                assert!(pages.contains_key(&other) || other == "evenkeel-keeper.8", "{name} names {other}");
                assert_ne!(&other, name);
            }
        }
    }

    #[test]
    fn each_example_is_a_command_line_that_parses() {
        for (line, about) in examples::EXAMPLES {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(about.ends_with('.'), "{line}: {about}");
        }
    }

    #[test]
    fn the_page_of_the_file_has_each_key() {
        let page = file_page().replace("\\-", "-");
        for (heading, _, lines) in config::settings_sections() {
            for (key, _) in lines {
                assert!(page.contains(&format!(".TP\n\\fB{key}\\fR\n")), "{heading}: {key}");
            }
        }
        assert!(page.contains("latency_target = \"250us\""), "the example");
    }

    #[test]
    fn operating_has_the_same_exit_statuses() {
        let document = include_str!("../../../../docs/OPERATING.md");
        let (_, after) = document.split_once("Exit status:\n\n").expect("the list");
        let (list, _) = after.split_once("\n\n").expect("an end of the list");
        assert_eq!(list, STATUSES.map(|(status, meaning)| format!("- {status}: {meaning}")).join("\n"));
    }

    #[test]
    fn groff_has_nothing_to_say_of_a_page() {
        let dir = tempfile::tempdir().expect("temporary directory");
        run(&Args { out: dir.path().join("man") }, Cli::command()).expect("written");
        // A link is relative to the directory of all manual pages.
        for (name, _) in texts().iter().filter(|(_, page)| !page.starts_with(".so ")) {
            let mut groff = Command::new("groff");
            groff.args(["-man", "-ww", "-z", "-Tutf8", "-Kutf8"]).arg(dir.path().join("man").join(name));
            let Ok(output) = groff.output() else {
                eprintln!("skipped: there is no groff to read pages");
                return;
            };
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        }
    }
}
