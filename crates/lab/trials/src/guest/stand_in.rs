//! QEMU's storage daemon in Evenkeel's place: a test of virtio disks that fails on this is wrong itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::daemon::wait_for_sockets;
use super::qemu::VCPUS;

/// An image behind a vhost-user socket.
pub struct Export {
    /// The socket that it makes.
    pub socket: PathBuf,
    /// The image.
    pub image: PathBuf,
    /// Whether guests may only read.
    pub read_only: bool,
}

/// A running storage daemon. Dropping it kills it.
pub struct StandIn {
    child: Child,
    log: PathBuf,
}

impl StandIn {
    /// Starts `command`, which is a storage daemon without arguments yet, and waits for all sockets.
    ///
    /// # Errors
    /// When it ends or a socket does not appear; the error holds its log.
    pub fn start(mut command: Command, dir: &Path, exports: &[Export]) -> Result<Self> {
        let log = dir.join("storage-daemon.log");
        let output = fs::File::create(&log)?;
        for (index, Export { socket, image, read_only }) in exports.iter().enumerate() {
            let (image, socket) = (image.display(), socket.display());
            let (read_only, writable) = if *read_only { ("on", "off") } else { ("off", "on") };
            command
                .arg("--blockdev")
                .arg(format!(
                    "file,node-name=image{index},filename={image},read-only={read_only},discard=unmap,cache.direct=off"
                ))
                .arg("--export")
                .arg(format!(
                    "vhost-user-blk,id=export{index},node-name=image{index},writable={writable},\
                     num-queues={VCPUS},addr.type=unix,addr.path={socket}"
                ));
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("starting the storage daemon")?;
        let mut stand_in = Self { child, log };
        let sockets: Vec<PathBuf> = exports.iter().map(|export| export.socket.clone()).collect();
        wait_for_sockets(&sockets, || stand_in.check())?;
        Ok(stand_in)
    }

    /// Requires that it runs.
    ///
    /// # Errors
    /// With its log where it does not.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        anyhow::ensure!(ended.is_none(), "the storage daemon ended: {}", fs::read_to_string(&self.log)?.trim());
        Ok(())
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // Nothing is left to do where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
