//! The whole daemon with two tenants, an NVMe one and a virtio-blk one, on real sockets. One has a client that does
//! what it likes; the other one's client does what it should, and comes and goes.
//!
//! What must hold: the data of the second are what it wrote, all its commands complete with success and within seconds,
//! and both tenants can be attached at any time.
//!
//! The daemon lives as long as the process does, so that an input costs milliseconds. What a tenant's disk holds at an
//! input's beginning does not matter: the second one clears its own.

#![allow(clippy::disallowed_methods, reason = "it waits for a real daemon, not for ever")]

mod hostile_client;
mod victim;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arbitrary::{Arbitrary, Result, Unstructured};
use config::{Config, Prepared};
use evenkeeld::daemon::Daemon;
use rustix::event::{EventfdFlags, eventfd};
use ssd_model::Profile;
use test_clients::nvme::Nvme;
use test_clients::virtio::Virtio;

use hostile_client::{Act, HostileClient};
use victim::Victim;

/// Steps of one run at most.
const MAX_STEPS: usize = 100;

/// The tenants, which also name their directories.
const NVME: &str = "nvme";
const VIRTIO: &str = "virtio";

/// What a tenant's protocol is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Nvme,
    Virtio,
}

/// A client that is attached.
enum Client {
    Nvme(Nvme),
    Virtio(Virtio),
}

impl Client {
    /// Attaches, up to a running controller or ring, which must always be possible.
    fn attach(protocol: Protocol, runtime_dir: &Path) -> Self {
        match protocol {
            Protocol::Nvme => Self::Nvme(Nvme::start(&runtime_dir.join(NVME), true).expect("it can attach")),
            Protocol::Virtio => {
                let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
                let virtio = Virtio::start(&runtime_dir.join(VIRTIO), &[], call.as_fd());
                Self::Virtio(virtio.expect("it can attach"))
            }
        }
    }

    fn memory(&self) -> &File {
        match self {
            Self::Nvme(nvme) => &nvme.memory,
            Self::Virtio(virtio) => &virtio.memory,
        }
    }
}

#[derive(Debug, Arbitrary)]
enum Step {
    Hostile(Act),
    /// The other one writes blocks.
    Write {
        block: u8,
        count: u8,
    },
    /// The other one reads blocks.
    Read {
        block: u8,
        count: u8,
    },
    /// The other one's client goes and comes back.
    Return,
    /// The other one clears its disk.
    Clear,
}

/// The directory with the sockets of a daemon that runs until the process ends.
static RUNTIME_DIR: LazyLock<PathBuf> = LazyLock::new(serve);

/// One input at a time: a tenant has one client.
static ALONE: Mutex<()> = Mutex::new(());

fn serve() -> PathBuf {
    let dir = tempfile::tempdir().expect("a directory").keep();
    let text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
         [policy]\nname = \"lpns\"\n[pollers]\nidle_after = \"1ms\"\n\
         [[tenant]]\nname = \"{NVME}\"\nsize = \"4MiB\"\n\
         [[tenant]]\nname = \"{VIRTIO}\"\nsize = \"4MiB\"\nfrontend = \"vhost-user-blk\"\n"
    );
    let config = Config::parse(Path::new("fuzz.toml"), &text).unwrap_or_else(|errors| panic!("{errors}"));
    let prepared = Prepared::new(config).unwrap_or_else(|errors| panic!("{errors}"));
    let profile = Profile::by_name("p5800x").expect("a built-in profile");
    let daemon = Daemon::start(vec![(prepared, profile)], Arc::new(|_, _| ())).expect("the daemon starts");
    // It is never stopped.
    std::mem::forget(daemon);
    dir
}

/// Runs one input.
///
/// # Panics
/// Something did not hold.
pub fn run(data: &[u8]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut u = Unstructured::new(data);
    let (hostile, other) = if u.arbitrary().unwrap_or(false) {
        (Protocol::Nvme, Protocol::Virtio)
    } else {
        (Protocol::Virtio, Protocol::Nvme)
    };
    let mut hostile = HostileClient::new(hostile, &RUNTIME_DIR);
    let mut victim = Victim::attach(other, &RUNTIME_DIR);
    // Running out of input ends the program.
    let _ = play(&mut u, &mut hostile, &mut victim);
    victim.read_all();
    hostile.attach();
}

fn play(u: &mut Unstructured<'_>, hostile: &mut HostileClient, victim: &mut Victim) -> Result<()> {
    for _ in 0..MAX_STEPS {
        if u.is_empty() {
            break;
        }
        match Step::arbitrary(u)? {
            Step::Hostile(act) => hostile.act(act),
            Step::Write { block, count } => victim.write(block, count),
            Step::Read { block, count } => victim.read(block, count),
            Step::Return => victim.come_back(),
            Step::Clear => victim.clear(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::seeds::run_seeds;

    #[test]
    fn random_inputs() {
        run_seeds(60, 1024, super::run);
    }
}
