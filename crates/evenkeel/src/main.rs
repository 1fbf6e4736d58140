//! The command line `evenkeel`: starts and asks the daemon, plans, simulates and measures.
//!
//! Each subcommand has a module of its own.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "calibration measures")]

mod apply;
mod assign;
mod calibrate;
mod check;
mod demo;
mod disk;
mod drive;
mod erase;
mod events;
mod failure;
mod host;
mod image;
mod man;
mod output;
mod plan;
mod progress;
mod record;
mod reproduce;
mod serve;
mod serving;
mod shell;
mod sim;
mod stats;
mod storage_provider;
mod table;
mod top;
mod upgrade;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Shares a host's local NVMe drives among VMs, containers and host processes. Keeps promised latencies and divides
/// the rest fairly.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Apply(apply::Args),
    Calibrate(calibrate::Args),
    Check(check::Args),
    Completions(shell::CompletionsArgs),
    Demo(demo::Args),
    Disk(disk::Args),
    Drive(drive::Args),
    Events(events::Args),
    Export(apply::ExportArgs),
    Load(load::cli::Args),
    #[command(hide = true)]
    Man(man::Args),
    Operations(disk::OperationsArgs),
    Plan(plan::Args),
    Reproduce(reproduce::Args),
    Sim(sim::Args),
    Stats(stats::Args),
    #[command(hide = true)]
    StorageProvider(storage_provider::Args),
    Top(top::Args),
    Trace(record::Args),
    Upgrade(upgrade::Args),
    Why(why::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args).map(|never| match never {}),
        Command::Apply(args) => apply::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => shell::run_completions(&args, Cli::command()),
        Command::Demo(args) => demo::run(&args),
        Command::Disk(args) => disk::run(args),
        Command::Drive(args) => drive::run(args),
        Command::Events(args) => events::run(&args),
        Command::Export(args) => apply::run_export(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Operations(args) => disk::run_operations(&args),
        Command::Load(args) => match load::cli::main(&args, env!("CARGO_PKG_VERSION"), api::document) {
            Ok(code) => return code,
            Err(error) => Err(error.into()),
        },
        Command::Plan(args) => match plan::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::StorageProvider(args) => storage_provider::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => record::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Why(args) => why::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::tell(&error),
    }
}
