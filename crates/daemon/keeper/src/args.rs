//! The keeper's arguments. Parsed by hand: a library would be larger than the rest of the program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use client_socket::gate;
use confine::Walls;

/// The text of --help, also printed after a wrong argument.
pub const HELP: &str = "\
Keeps evenkeeld's clients connected during a restart of the daemon

Usage: evenkeel-keeper [OPTIONS] SOCKET

Arguments:
  SOCKET  Unix socket to create, on which the keeper listens for the daemon

Options:
      --give-up-after SECONDS  Disconnect clients that wait this long for a daemon; 0: never [default: 7200]
      --unconfined             For debugging: no system call filters; allow debuggers and core dumps
  -h, --help                   Print help
  -V, --version                Print version
";

const GIVE_UP_AFTER: Duration = Duration::from_secs(7200);

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Args {
    /// Print [`HELP`].
    Help,
    /// Print the version.
    Version,
    /// Say whether this program could go on with a state of that version.
    CanResume {
        /// The version of the state.
        version: u64,
        /// Without confinement.
        unconfined: bool,
    },
    /// Take descriptors from the clients of the keeper that started this process.
    Gate(Walls),
    /// Keep clients.
    Keep(Options),
}

/// The option that passes on the descriptor of the saved state. Internal, as is the next.
pub const RESUME: &str = "--resume=";
/// The option that asks whether the program could go on with a state.
pub const CAN_RESUME: &str = "--can-resume=";
/// What comes after [`gate::ARGUMENT`] where the process's filter forbids whatever the gate need not do.
pub const IS_CONFINED: &str = "--is-confined";
/// The option that goes without confinement.
pub const UNCONFINED: &str = "--unconfined";

/// How to keep clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Path of the socket at which the daemon finds the keeper.
    pub socket: PathBuf,
    /// How long a client waits for a daemon. `None`: for ever.
    pub give_up_after: Option<Duration>,
    /// Without confinement.
    pub unconfined: bool,
    /// The descriptor of the saved state.
    pub resume: Option<u32>,
}

impl Args {
    /// Parses a program's arguments, without its name.
    ///
    /// # Errors
    /// What is wrong with them, for the user.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let (mut socket, mut give_up_after, mut unconfined) = (None, Some(GIVE_UP_AFTER), false);
        let mut resume = None;
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy();
            match &*text {
                "-h" | "--help" => return Ok(Self::Help),
                "-V" | "--version" => return Ok(Self::Version),
                UNCONFINED => unconfined = true,
                gate::ARGUMENT => {
                    return Ok(Self::Gate(match arguments.next() {
                        Some(walls) if walls == UNCONFINED => Walls::None,
                        Some(walls) if walls == IS_CONFINED => Walls::Inner,
                        _ => Walls::All,
                    }));
                }
                "--give-up-after" => {
                    let value = arguments.next().ok_or("--give-up-after wants a number of seconds")?;
                    give_up_after = seconds(&value.to_string_lossy())?;
                }
                option if option.starts_with("--give-up-after=") => {
                    give_up_after = seconds(option.trim_start_matches("--give-up-after="))?;
                }
                option if option.starts_with(RESUME) => resume = Some(number(option)?),
                option if option.starts_with(CAN_RESUME) => {
                    return Ok(Self::CanResume { version: number(option)?, unconfined });
                }
                option if option.starts_with('-') => return Err(format!("there is no option {option}")),
                _ if socket.is_some() => return Err(format!("give one socket only, without {text}")),
                _ => socket = Some(PathBuf::from(argument)),
            }
        }
        let socket = socket.ok_or("the socket's path is missing: evenkeel-keeper SOCKET")?;
        Ok(Self::Keep(Options { socket, give_up_after, unconfined, resume }))
    }
}

fn number<T: std::str::FromStr>(option: &str) -> Result<T, String> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    value.parse().map_err(|_| format!("{name} wants a number, not {value:?}"))
}

fn seconds(value: &str) -> Result<Option<Duration>, String> {
    let seconds: u64 =
        value.parse().map_err(|_| format!("--give-up-after wants a number of seconds, not {value:?}"))?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, String> {
        Args::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn what_is_typed_is_understood() {
        let options =
            Options { socket: "/run/k".into(), give_up_after: Some(GIVE_UP_AFTER), unconfined: false, resume: None };
        assert_eq!(parse(&["/run/k"]), Ok(Args::Keep(options.clone())));
        let other = Options { give_up_after: Some(Duration::from_secs(9)), unconfined: true, ..options.clone() };
        assert_eq!(parse(&["--give-up-after", "9", "/run/k", "--unconfined"]), Ok(Args::Keep(other)));
        let for_ever = Options { give_up_after: None, ..options };
        assert_eq!(parse(&["--give-up-after=0", "/run/k"]), Ok(Args::Keep(for_ever)));
        assert_eq!(parse(&["--frobnicate", "--help"]), Err("there is no option --frobnicate".into()));
        assert_eq!(parse(&["-h"]), Ok(Args::Help));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, wrong) in [
            (&[][..], "the socket's path"),
            (&["/a", "/b"], "without /b"),
            (&["/a", "--give-up-after"], "a number of seconds"),
            (&["/a", "--give-up-after", "soon"], "not \"soon\""),
        ] {
            let told = parse(arguments).unwrap_err();
            assert!(told.contains(wrong), "{arguments:?}: {told}");
        }
    }
}
