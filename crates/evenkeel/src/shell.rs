//! `evenkeel completions`: generated from the definition of the command line.

use std::io::Write;

use anyhow::Result;
use clap::ValueEnum;

/// The program's name on the command line.
pub const NAME: &str = "evenkeel";

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

/// Runs `completions` for the command line `evenkeel`.
///
/// # Errors
/// Standard output can't be written.
pub fn run_completions(args: &CompletionsArgs, evenkeel: clap::Command) -> Result<()> {
    Ok(std::io::stdout().write_all(&completions(args.shell, evenkeel))?)
}

fn completions(shell: Shell, mut evenkeel: clap::Command) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut evenkeel, NAME, &mut script);
    script
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "shells parse what is written for them")]

    use std::process::{Command, Stdio};

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_shell_completes_each_subcommand_and_parses_its_script() {
        for (shell, program) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let script = completions(shell, crate::Cli::command());
            let text = String::from_utf8(script.clone()).expect("text");
            for words in crate::man::tests::subcommands() {
                assert!(words.split(' ').all(|word| text.contains(word)), "{program}: {words}");
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
