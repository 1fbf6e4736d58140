//! Keeps the clients of evenkeeld. See the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use keeper::args::{Args, HELP};

/// What was typed is wrong, and will be the next time.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match Args::parse(std::env::args_os().skip(1)) {
        Ok(Args::Help) => print!("{HELP}"),
        Ok(Args::Version) => println!("evenkeel-keeper {}", env!("CARGO_PKG_VERSION")),
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
