//! `evenkeeld`: the daemon. Serves the tenants of a configuration until a signal ends it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use client_socket::gate;
use confine::ErasingAllocator;
use evenkeeld::serve;
use runtime::stderr;

/// Requests may hold keys.
#[global_allocator]
static ALLOCATOR: ErasingAllocator = ErasingAllocator;

/// The daemon. `evenkeel serve` starts it too; all other commands are in `evenkeel`.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    serve: serve::Args,
}

/// Exit status for an operator's mistake. All other errors exit with 1.
const EXIT_BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(gate::ARGUMENT) => return serve::as_gate(arguments.next().is_none()),
        Some(asked) if asked.starts_with(serve::CAN_TAKE_OVER) => return serve::can_take_over(asked),
        Some(ublk::ARGUMENT) => return serve::as_ublk_helper(arguments.next().is_none()),
        _ => {}
    }
    let arguments = Cli::parse().serve;
    match serve::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            stderr::say(&arguments.last_words(&serve::in_words(&error)));
            ExitCode::from(if serve::is_bad_input(&error) { EXIT_BAD_INPUT } else { 1 })
        }
    }
}
