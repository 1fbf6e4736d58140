//! What the service manager has of a process that died, to be gone on with.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::control::{CONTROL, DAEMON};
use crate::device::{Common, Device};
use crate::log::line;
use crate::store::{File, Store, word};

/// As far as it is there.
#[derive(Debug, Default)]
pub struct Stored {
    /// The socket where daemons connect.
    pub listener: Option<OwnedFd>,
    /// The daemon that is there. It said hello.
    pub daemon: Option<(OwnedFd, bool)>,
    /// Each device by its name.
    pub devices: Vec<(String, Device)>,
}

impl Stored {
    /// Of what was passed on, under which words.
    pub fn take(passed: Vec<(String, OwnedFd)>, common: &Arc<Common>) -> Self {
        let Some(store) = &common.store else { return Self::default() };
        let (mut this, mut files, mut fds) = (Self::default(), Vec::new(), HashMap::new());
        for (word, fd) in passed {
            match word.split_at_checked(1) {
                _ if word == CONTROL => this.listener = Some(fd),
                _ if word == DAEMON => this.daemon = Some((fd, true)),
                Some(("s", _)) => files.push((word, fd)),
                Some(("d", name)) => drop(name.parse::<u64>().map(|name| fds.insert(name, fd))),
                _ => {}
            }
        }
        this.devices = files.into_iter().filter_map(|(word, file)| device(store, &word, file, &fds, common)).collect();
        // Descriptors that no state mentions: of clients that are gone, or were not there yet.
        let mentioned: Vec<u64> = store.names().into_iter().map(|(_, name)| name).collect();
        for (name, fd) in fds {
            drop(fd);
            if !mentioned.contains(&name) {
                store.remove(&word(name));
            }
        }
        if !this.devices.is_empty() {
            line(&format!("the former keeper was killed; {} devices continue", this.devices.len()));
        }
        this
    }
}

fn device(
    store: &Arc<Store>,
    word: &str,
    file: OwnedFd,
    fds: &HashMap<u64, OwnedFd>,
    common: &Arc<Common>,
) -> Option<(String, Device)> {
    let mut taken: Vec<RawFd> = Vec::new();
    let device = File::adopt(store, file, word).and_then(|file| {
        let mut take = |name: u64| {
            // Others may mention it too.
            let fd = fds.get(&name)?.try_clone().ok()?;
            store.adopt(fd.as_raw_fd(), name);
            taken.push(fd.as_raw_fd());
            Some(fd)
        };
        Device::restore_stored(file, &mut take, common)
    });
    if device.is_none() {
        line(&format!("the state kept as {word} can't be taken over"));
        store.remove(word);
        taken.into_iter().for_each(|raw| store.forget(raw));
    }
    device
}
