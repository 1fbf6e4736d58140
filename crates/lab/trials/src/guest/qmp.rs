//! QEMU's monitor (QMP): drives come to a running guest, and go.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::qemu::{Disk, VCPUS};

/// How long QEMU, or a guest that is to let go of a drive, may take, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(120);

/// An input or output error, as Linux numbers it.
const EIO: i32 = 5;

/// A connection to the monitor.
pub struct Qmp {
    stream: BufReader<UnixStream>,
    /// What came while something else was waited for.
    events: Vec<Value>,
    bad_sector: Option<u64>,
}

impl Qmp {
    /// Connects, and ends the negotiation.
    ///
    /// # Errors
    /// When nobody answers there.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut monitor = Self { stream: BufReader::new(stream), events: Vec::new(), bad_sector: None };
        monitor.receive().context("QEMU's greeting")?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Gives the guest more memory, which it shares as all of it.
    ///
    /// # Errors
    /// With QEMU's reason.
    pub fn plug_memory(&mut self, mib: u32) -> Result<()> {
        let size = u64::from(mib) << 20;
        self.execute(
            "object-add",
            &json!({"qom-type": "memory-backend-memfd", "id": "more", "size": size, "share": true}),
        )?;
        // Emulated CPUs that run while the map of memory changes now and then find their code outside of it, and QEMU
        // aborts.
        self.execute("stop", &json!({}))?;
        self.execute("device_add", &json!({"driver": "pc-dimm", "id": "dimm", "memdev": "more"}))?;
        self.execute("cont", &json!({}))
    }

    /// Plugs a drive into a free port, under a name by which it can be unplugged.
    ///
    /// # Errors
    /// With QEMU's reason.
    pub fn plug(&mut self, disk: &Disk, id: &str, port: &str) -> Result<()> {
        let arguments = match disk {
            Disk::VfioUser(path) => {
                json!({"driver": "vfio-user-pci", "id": id, "bus": port, "socket": {"type": "unix", "path": path}})
            }
            Disk::VhostUser(path) => {
                let address = json!({"type": "unix", "data": {"path": path}});
                let data = json!({"addr": address, "server": false, "reconnect-ms": 100});
                self.execute("chardev-add", &json!({"id": id, "backend": {"type": "socket", "data": data}}))?;
                json!({
                    "driver": "vhost-user-blk-pci", "id": id, "bus": port, "chardev": id, "num-queues": VCPUS,
                })
            }
            Disk::QemuNvme(image) => {
                let node = node_of(id);
                let mut file = json!({"driver": "file", "filename": image});
                if let Some(sector) = self.bad_sector {
                    let rule = json!({"event": "none", "iotype": "read", "errno": EIO, "sector": sector});
                    file = json!({"driver": "blkdebug", "image": file, "inject-error": [rule]});
                }
                self.execute("blockdev-add", &json!({"driver": "raw", "node-name": node, "file": file}))?;
                json!({"driver": "nvme", "id": id, "serial": id, "bus": port, "drive": node})
            }
        };
        self.execute("device_add", &arguments)
    }

    /// The next [`Disk::QemuNvme`] that is plugged in can't read this sector of 512 bytes.
    pub fn with_bad_sector(mut self, sector: u64) -> Self {
        self.bad_sector = Some(sector);
        self
    }

    /// Unplugs a drive, and waits until the guest has let go of it.
    ///
    /// # Errors
    /// With QEMU's reason, or that the guest does not let go.
    pub fn unplug(&mut self, disk: &Disk, id: &str) -> Result<()> {
        self.execute("device_del", &json!({"id": id}))?;
        self.wait_for_end_of(id)?;
        match disk {
            Disk::VhostUser(_) => self.execute("chardev-remove", &json!({"id": id})),
            Disk::QemuNvme(_) => self.execute("blockdev-del", &json!({"node-name": node_of(id)})),
            Disk::VfioUser(_) => Ok(()),
        }
    }

    /// Holds the commands of a plugged [`Disk::QemuNvme`] back, so that `iops` end in a second; 0: none any more.
    ///
    /// # Errors
    /// With QEMU's reason.
    pub fn throttle(&mut self, id: &str, iops: u32) -> Result<()> {
        let none = ["bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"].map(|key| (key.to_owned(), json!(0)));
        let mut limits = serde_json::Map::from_iter(none);
        limits.extend([("id".to_owned(), json!(id)), ("iops".to_owned(), json!(iops))]);
        self.execute("block_set_io_throttle", &limits.into())
    }

    /// Has QEMU start to migrate the VM, to nowhere, and returns why it does not.
    ///
    /// # Errors
    /// When it does.
    pub fn refusal_to_migrate(&mut self) -> Result<String> {
        match self.execute("migrate", &json!({"uri": "exec:cat >/dev/null"})) {
            Ok(()) => bail!("QEMU migrates this VM"),
            Err(why) => Ok(why.to_string()),
        }
    }

    /// Waits until the guest sleeps (S3), and wakes it.
    ///
    /// # Errors
    /// With QEMU's reason, or that the guest does not sleep.
    pub fn wake_sleeper(&mut self) -> Result<()> {
        let is_asleep = |event: &Value| event["event"] == "SUSPEND";
        let deadline = Instant::now() + LIMIT;
        while !self.events.iter().any(is_asleep) {
            ensure!(Instant::now() < deadline, "the guest does not sleep");
            let event = self.receive().context("waiting for the guest to sleep")?;
            self.events.push(event);
        }
        self.execute("system_wakeup", &json!({}))
    }

    fn wait_for_end_of(&mut self, id: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            for event in self.events.drain(..).filter(|event| event["data"]["device"] == id) {
                match event["event"].as_str() {
                    Some("DEVICE_DELETED") => return Ok(()),
                    Some("DEVICE_UNPLUG_GUEST_ERROR") => bail!("the guest does not let go of {id}"),
                    _ => {}
                }
            }
            ensure!(Instant::now() < deadline, "{id} is still there");
            let event = self.receive().with_context(|| format!("waiting for the end of {id}"))?;
            self.events.push(event);
        }
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let answer = self.receive().with_context(|| command.to_owned())?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command} {arguments}: {}", error["desc"]);
            } else if answer.get("return").is_some() {
                return Ok(());
            }
            self.events.push(answer);
        }
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the monitor closed");
        serde_json::from_str(&line).with_context(|| line.clone())
    }
}

/// What QEMU calls the content of a plugged NVMe drive.
fn node_of(id: &str) -> String {
    format!("image-{id}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn an_event_before_the_answer_is_kept_and_a_refusal_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let said = "{\"QMP\":{}}\n{\"return\":{}}\n\
                        {\"event\":\"DEVICE_DELETED\",\"data\":{\"device\":\"other\"}}\n\
                        {\"event\":\"DEVICE_DELETED\",\"data\":{\"device\":\"mine\"}}\n{\"return\":{}}\n\
                        {\"error\":{\"desc\":\"no such port\"}}\n";
            stream.write_all(said.as_bytes()).unwrap();
            BufReader::new(stream).lines().map(Result::unwrap).collect::<Vec<_>>()
        });
        let mut monitor = Qmp::connect(&path).unwrap();
        let disk = Disk::VfioUser("/socket".into());
        monitor.unplug(&disk, "mine").unwrap();
        let refused = monitor.plug(&disk, "mine", "port9").unwrap_err();
        assert!(refused.to_string().ends_with("\"no such port\""), "{refused}");
        drop(monitor);
        let heard = qemu.join().unwrap();
        assert_eq!(heard[1], r#"{"arguments":{"id":"mine"},"execute":"device_del"}"#);
        assert_eq!(heard.len(), 3);
    }
}
