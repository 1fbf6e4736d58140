//! The program `evenkeel-keeper`. See the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use keeper::args::{Args, HELP};

/// What was typed is wrong, and will be the next time.
const USAGE: u8 = 2;

/// The answer of a program that can't go on with what another one has.
const NO: u8 = 3;

fn main() -> ExitCode {
    match Args::parse(std::env::args_os().skip(1)) {
        Ok(Args::Help) => print!("{HELP}"),
        Ok(Args::Version) => println!("evenkeel-keeper {}", env!("CARGO_PKG_VERSION")),
        Ok(Args::CanResume { version, unconfined }) => {
            return if keeper::can_resume(version, unconfined) { ExitCode::SUCCESS } else { NO.into() };
        }
        Ok(Args::Gate(walls)) => return keeper::as_gate(walls),
        Ok(Args::Keep(options)) => {
            if let Err(error) = keeper::run(&options) {
                eprintln!("evenkeel-keeper: {error}");
                return ExitCode::FAILURE;
            }
        }
        Err(wrong) => {
            eprintln!("evenkeel-keeper: {wrong}; see evenkeel-keeper --help");
            return ExitCode::from(USAGE);
        }
    }
    ExitCode::SUCCESS
}
