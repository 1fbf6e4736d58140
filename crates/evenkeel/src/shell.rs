//! `evenkeel completions` and `evenkeel man`: generated from the definition of the command line.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{CommandFactory, ValueEnum};

use crate::Cli;

/// The program's name on the command line.
const NAME: &str = "evenkeel";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Print a shell's completion script for evenkeel.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write manual pages: one for evenkeel, and one per subcommand.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Directory to write to; created if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs `completions`.
///
/// # Errors
/// Standard output can't be written.
pub fn run_completions(args: &CompletionsArgs) -> Result<()> {
    Ok(std::io::stdout().write_all(&completions(args.shell))?)
}

/// Runs `man`.
///
/// # Errors
/// The directory or a page can't be written.
pub fn run_man(args: &ManArgs) -> Result<()> {
    let dir = &args.out;
    let cannot = || format!("can't write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(cannot)
}

fn completions(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    script
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "shells parse what is written for them")]

    use std::process::{Command, Stdio};

    use super::*;

    /// The words of each subcommand after the program's name, including nested subcommands.
    fn subcommands(of: &clap::Command, before: &[String]) -> Vec<Vec<String>> {
        let shown = of.get_subcommands().filter(|command| !command.is_hide_set());
        let each = shown.flat_map(|command| {
            let words = [before, &[command.get_name().to_owned()]].concat();
            let deeper = subcommands(command, &words);
            std::iter::once(words).chain(deeper)
        });
        each.collect()
    }

    #[test]
    fn each_subcommand_has_a_page() {
        let dir = tempfile::tempdir().expect("temporary directory");
        run_man(&ManArgs { out: dir.path().join("man1") }).expect("written");
        let page = |words: &[String]| {
            let name = [&[NAME.to_owned()], words].concat().join("-");
            std::fs::read_to_string(dir.path().join("man1").join(format!("{name}.1"))).expect("a page")
        };
        let commands = subcommands(&Cli::command(), &[]);
        assert!(commands.contains(&vec!["disk".to_owned(), "grow".to_owned()]), "{commands:?}");
        for words in &commands {
            let (text, above) = (page(words), page(&words[..words.len() - 1]));
            assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH DESCRIPTION"), "{words:?}: {text}");
            // roff needs hyphens escaped.
            let named = format!("{NAME}\\-{}(1)", words.join("\\-"));
            assert!(above.contains(&named), "{named} in {above}");
        }
    }

    #[test]
    fn each_shell_completes_each_subcommand_and_parses_its_script() {
        for (shell, program) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let script = completions(shell);
            let text = String::from_utf8(script.clone()).expect("text");
            for word in subcommands(&Cli::command(), &[]).iter().flatten() {
                assert!(text.contains(word.as_str()), "{program}: {word}");
            }
            let parser = Command::new(program).arg("-n").stdin(Stdio::piped()).spawn();
            let Ok(mut parser) = parser else {
                eprintln!("skipped: there is no {program} to parse its script");
                continue;
            };
            parser.stdin.take().expect("piped").write_all(&script).expect("written");
            assert!(parser.wait().expect("ended").success(), "{program} parses it");
        }
    }
}
