//! The interface `io.systemd.StorageProvider`: Evenkeel's block devices as volumes.

use std::time::{Duration, Instant};

use api::{Disk, DiskSpec, DiskState, NoDaemon, Problem, Reason, Rest};
use glob::Pattern;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};

use super::device::BlockDevice;
use super::note;
use super::varlink::{Call, Failure, Parameters, Replies};

/// The name of the interface.
pub const INTERFACE: &str = "io.systemd.StorageProvider";
const SERVICE: &str = "org.varlink.service";
const DESCRIPTIONS: [(&str, &str); 2] = [
    (INTERFACE, include_str!("io.systemd.StorageProvider.varlink")),
    (SERVICE, include_str!("org.varlink.service.varlink")),
];

/// The front end of disks that are block devices.
const UBLK: &str = "ublk";
/// Sizes of disks are multiples of it.
const SIZE_STEP_BYTES: u64 = 4096;
/// How long a call waits for a new disk to be zeroed. Clients of systemd give up after 45 s.
const READY_LIMIT: Duration = Duration::from_secs(30);
const READY_PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CreateMode {
    Any,
    New,
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum VolumeType {
    Blk,
    Reg,
    Dir,
}

/// What `Acquire` is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    name: String,
    mode: CreateMode,
    read_only: Option<bool>,
    size_bytes: Option<u64>,
}

impl Wanted {
    fn read(mut given: Parameters) -> Result<Self, Failure> {
        let name = given.need("name")?;
        let mode = given.take("createMode")?.unwrap_or(CreateMode::Any);
        let template: Option<String> = given.take("template")?;
        let read_only = given.take("readOnly")?;
        let kind = given.take("requestAs")?.unwrap_or(VolumeType::Blk);
        let size_bytes: Option<u64> = given.take("createSizeBytes")?;
        // Asks a person on the terminal. Who may connect needs no further permission.
        let _: Option<bool> = given.take("allowInteractiveAuthentication")?;
        given.end()?;

        if size_bytes.is_some_and(|size| size == 0 || size % SIZE_STEP_BYTES != 0) {
            return Err(Failure::InvalidParameter("createSizeBytes".into()));
        }
        if template.is_some_and(|template| !template.is_empty()) {
            return Err(Failure::Storage("NoSuchTemplate"));
        }
        if kind != VolumeType::Blk {
            return Err(Failure::Storage("TypeNotSupported"));
        }
        let mode = match (read_only, mode) {
            (Some(true), CreateMode::New) => return Err(Failure::InvalidParameter("readOnly".into())),
            // A new disk is worth nothing to a client that can't write.
            (Some(true), _) => CreateMode::Open,
            (_, mode) => mode,
        };
        Ok(Self { name, mode, read_only, size_bytes })
    }
}

/// The volumes of one daemon.
#[derive(Debug)]
pub struct Volumes {
    daemon: Rest,
}

impl Volumes {
    pub fn new(daemon: Rest) -> Self {
        Self { daemon }
    }

    /// Executes a call.
    ///
    /// # Errors
    /// As the interface says.
    pub fn answer(&self, call: Call) -> Result<Replies, Failure> {
        let mut given = Parameters::new(call.parameters);
        let unknown = || Failure::MethodNotFound(call.method.clone());
        match call.method.rsplit_once('.').ok_or_else(unknown)? {
            (SERVICE, "GetInfo") => given.end().map(|()| Replies::one(info())),
            (SERVICE, "GetInterfaceDescription") => {
                let name: String = given.need("interface")?;
                given.end()?;
                let found = DESCRIPTIONS.iter().find(|(interface, _)| *interface == name);
                let (_, description) = found.ok_or(Failure::InterfaceNotFound(name))?;
                Ok(Replies::one(json!({ "description": description })))
            }
            (INTERFACE, "Acquire") => self.acquire(&Wanted::read(given)?),
            (INTERFACE, method @ ("ListVolumes" | "ListTemplates")) => {
                let pattern: Option<String> = given.take("matchName")?;
                given.end()?;
                if !call.more {
                    return Err(Failure::ExpectedMore);
                }
                if method == "ListTemplates" {
                    return Err(Failure::Storage("NoSuchTemplate"));
                }
                self.list(pattern.as_deref())
            }
            _ => Err(unknown()),
        }
    }

    fn list(&self, pattern: Option<&str>) -> Result<Replies, Failure> {
        let pattern = pattern.map(Pattern::new).transpose();
        let pattern = pattern.map_err(|_| Failure::InvalidParameter("matchName".into()))?;
        let is_asked_for = |disk: &Disk| pattern.as_ref().is_none_or(|pattern| pattern.matches(&disk.name));
        let disks = self.daemon.disks().map_err(|error| failure(&error))?;
        let volumes = disks.iter().filter(|disk| disk.frontend == UBLK && disk.state != DiskState::Leaving);
        let results: Vec<Value> = volumes.filter(|disk| is_asked_for(disk)).map(volume).collect();
        if results.is_empty() {
            Err(Failure::Storage("NoSuchVolume"))
        } else {
            Ok(Replies { results, descriptor: None })
        }
    }

    fn acquire(&self, wanted: &Wanted) -> Result<Replies, Failure> {
        let disk = self.find_or_create(wanted)?;
        if disk.frontend != UBLK {
            return Err(Failure::Storage("WrongType"));
        }
        self.wait_until_served(disk)?;
        let device = BlockDevice::find(&wanted.name).map_err(|error| {
            note(&format!("{}: no device: {error}", wanted.name));
            Failure::Storage("NoSuchVolume")
        })?;
        let (descriptor, read_only) = device.open(wanted.read_only)?;
        let result = json!({ "fileDescriptorIndex": 0, "type": "blk", "readOnly": read_only });
        Ok(Replies { results: vec![result], descriptor: Some(descriptor) })
    }

    fn find_or_create(&self, wanted: &Wanted) -> Result<Disk, Failure> {
        let Wanted { name, mode, size_bytes, .. } = wanted;
        match self.daemon.disk(name) {
            Ok(_) if *mode == CreateMode::New => return Err(Failure::Storage("VolumeExists")),
            Ok(disk) => return Ok(disk),
            Err(error) if *mode == CreateMode::Open || !is(&error, Reason::NoSuchDisk) => return Err(failure(&error)),
            Err(_) => {}
        }
        let size = size_bytes.ok_or(Failure::Storage("CreateSizeRequired"))?.to_string();
        let spec = DiskSpec { name: name.clone(), size, frontend: Some(UBLK.into()), ..DiskSpec::default() };
        // Another client may have made one since.
        match self.daemon.create_or_find(&spec) {
            Ok((_, false)) if *mode == CreateMode::New => Err(Failure::Storage("VolumeExists")),
            Ok((disk, _)) => Ok(disk),
            Err(error) if *mode == CreateMode::Any && is(&error, Reason::NameTaken) => {
                self.daemon.disk(name).map_err(|error| failure(&error))
            }
            Err(error) => Err(failure(&error)),
        }
    }

    fn wait_until_served(&self, mut disk: Disk) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            match disk.state {
                DiskState::Served => return Ok(()),
                DiskState::Leaving => return Err(Failure::Storage("NoSuchVolume")),
                DiskState::Failed => return Err(Failure::System(Errno::IO)),
                DiskState::Zeroing if start.elapsed() > READY_LIMIT => {
                    note(&format!("{} is still being zeroed: ask again later", disk.name));
                    return Err(Failure::System(Errno::AGAIN));
                }
                DiskState::Zeroing => std::thread::sleep(READY_PERIOD),
            }
            disk = self.daemon.disk(&disk.name).map_err(|error| failure(&error))?;
        }
    }
}

fn info() -> Value {
    json!({
        "vendor": "Evenkeel",
        "product": "Evenkeel storage provider",
        "version": env!("CARGO_PKG_VERSION"),
        "url": "",
        "interfaces": DESCRIPTIONS.map(|(name, _)| name),
    })
}

fn volume(disk: &Disk) -> Value {
    let read_only = BlockDevice::find(&disk.name).ok().and_then(|device| device.is_read_only());
    let mut volume = json!({ "name": disk.name, "type": "blk", "sizeBytes": disk.size_bytes });
    if let (Some(read_only), Some(volume)) = (read_only, volume.as_object_mut()) {
        volume.insert("readOnly".into(), read_only.into());
    }
    volume
}

fn is(error: &anyhow::Error, reason: Reason) -> bool {
    error.downcast_ref::<Problem>().is_some_and(|problem| problem.code == reason.code())
}

/// The interface's error for a refusal of the daemon, whose words go to the log.
fn failure(error: &anyhow::Error) -> Failure {
    if is(error, Reason::NoSuchDisk) {
        return Failure::Storage("NoSuchVolume");
    }
    note(&format!("{error:#}"));
    if error.is::<NoDaemon>() {
        return Failure::System(Errno::CONNREFUSED);
    }
    let Some(problem) = error.downcast_ref::<Problem>() else { return Failure::System(Errno::IO) };
    let is = |reason: Reason| problem.code == reason.code();
    match problem.status {
        403 => Failure::PermissionDenied,
        _ if problem.code == "no-such-name" => Failure::InvalidParameter("name".into()),
        _ if is(Reason::NameTaken) || is(Reason::Leaving) => Failure::Storage("VolumeExists"),
        _ if is(Reason::NoRoom) => Failure::System(Errno::NOSPC),
        _ if is(Reason::Invalid) => Failure::System(Errno::INVAL),
        _ => Failure::System(Errno::IO),
    }
}
