//! Repository checks, guest tests, benches and fuzzing: `cargo xtask COMMAND`.

#![forbid(unsafe_code)]

mod bench;
mod check;
mod fuzz;
mod guest;
mod order;
mod sweep;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check                 the repository's own rules (file sizes, unsafe rooms, forbidden words)
  guest-prepare         fetch and build what the guest tests need, into a cache outside of the clone
  guest-test [OPTIONS]  boot stock Linux guests against the daemon
  kill-test [OPTIONS]   kill the daemon under guests that verify: --kills N --seed N --qemu 11.1|7.2 --json FILE
                        --self-check
  guest-bench           what a guaranteed guest sees beside a noisy one, with and without a policy
  bench [OPTIONS]       measure speed, CPU and memory; prints a table and writes JSON
  fuzz [OPTIONS]        run each fuzz target for a while
  order [OPTIONS]       the policies by a guaranteed tenant's p99, in the daemon and in the simulator: --json
                        --seconds N --rounds N --drive PROFILE
  sweep [OPTIONS]       simulate whole scenarios drawn from seeds and check them: --seeds N --seed FIRST
                        --jobs J --canaries";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = args.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let result = match command {
        "bench" => bench::run(rest),
        "check" => check::run(),
        "fuzz" => fuzz::run(rest),
        "guest-bench" => guest::bench(rest),
        "guest-prepare" => guest::prepare(rest),
        "guest-test" => guest::run(rest),
        "kill-test" => guest::kill::run(rest),
        "order" => order::run(rest),
        "sweep" => sweep::run(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
