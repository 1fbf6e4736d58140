//! The interface `io.systemd.StorageProvider`: Evenkeel's block devices as volumes.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use api::{Disk, DiskSpec, DiskState, NoDaemon, Problem, Reason, Rest};
use glob::Pattern;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};

use super::device::BlockDevice;
use super::note;
use super::varlink::{Call, Failure, Parameters, Replies};

const INTERFACE: &str = "io.systemd.StorageProvider";
const SERVICE: &str = "org.varlink.service";
const DESCRIPTIONS: [(&str, &str); 2] = [
    (INTERFACE, include_str!("io.systemd.StorageProvider.varlink")),
    (SERVICE, include_str!("org.varlink.service.varlink")),
];

const NO_SUCH_VOLUME: Failure = Failure::named("io.systemd.StorageProvider.NoSuchVolume");
const VOLUME_EXISTS: Failure = Failure::named("io.systemd.StorageProvider.VolumeExists");
const NO_SUCH_TEMPLATE: Failure = Failure::named("io.systemd.StorageProvider.NoSuchTemplate");
const TYPE_NOT_SUPPORTED: Failure = Failure::named("io.systemd.StorageProvider.TypeNotSupported");
const WRONG_TYPE: Failure = Failure::named("io.systemd.StorageProvider.WrongType");
const CREATE_SIZE_REQUIRED: Failure = Failure::named("io.systemd.StorageProvider.CreateSizeRequired");
const READ_ONLY_VOLUME: Failure = Failure::named("io.systemd.StorageProvider.ReadOnlyVolume");
const EXPECTED_MORE: Failure = Failure::named("org.varlink.service.ExpectedMore");
const PERMISSION_DENIED: Failure = Failure::named("org.varlink.service.PermissionDenied");

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

/// The parameters of `Acquire` that matter here.
#[derive(Debug)]
struct Wanted {
    name: String,
    mode: CreateMode,
    kind: VolumeType,
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
        // Allows a question to a person. A client that may connect needs no further permission.
        let _: Option<bool> = given.take("allowInteractiveAuthentication")?;
        given.end()?;

        if size_bytes.is_some_and(|size| size == 0 || size % SIZE_STEP_BYTES != 0) {
            return Err(Failure::invalid("createSizeBytes"));
        }
        if template.is_some_and(|template| !template.is_empty()) {
            return Err(NO_SUCH_TEMPLATE);
        }
        let mode = match (read_only, mode) {
            (Some(true), CreateMode::New) => return Err(Failure::invalid("readOnly")),
            // A new disk is worth nothing to a client that can't write.
            (Some(true), _) => CreateMode::Open,
            (_, mode) => mode,
        };
        Ok(Self { name, mode, kind, read_only, size_bytes })
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
        let mut given = Parameters(call.parameters.unwrap_or_default());
        let unknown = || Failure::with("org.varlink.service.MethodNotFound", json!({ "method": call.method }));
        match call.method.rsplit_once('.').ok_or_else(unknown)? {
            (SERVICE, "GetInfo") => given.end().map(|()| Replies::one(info())),
            (SERVICE, "GetInterfaceDescription") => {
                let name: String = given.need("interface")?;
                given.end()?;
                let missing = || Failure::with("org.varlink.service.InterfaceNotFound", json!({ "interface": name }));
                let found = DESCRIPTIONS.iter().find(|(interface, _)| *interface == name);
                let (_, description) = found.ok_or_else(missing)?;
                Ok(Replies::one(json!({ "description": description })))
            }
            (INTERFACE, "Acquire") => self.acquire(&Wanted::read(given)?),
            (INTERFACE, method @ ("ListVolumes" | "ListTemplates")) => {
                let pattern: Option<String> = given.take("matchName")?;
                given.end()?;
                match method {
                    _ if !call.more => Err(EXPECTED_MORE),
                    "ListVolumes" => self.list(pattern.as_deref()),
                    _ => Err(NO_SUCH_TEMPLATE),
                }
            }
            _ => Err(unknown()),
        }
    }

    fn list(&self, pattern: Option<&str>) -> Result<Replies, Failure> {
        let pattern = Pattern::new(pattern.unwrap_or("*")).map_err(|_| Failure::invalid("matchName"))?;
        let disks = self.daemon.disks().map_err(|error| failure(&error))?;
        let volumes = disks.iter().filter(|disk| disk.frontend == UBLK && disk.state != DiskState::Leaving);
        let results: Vec<Value> = volumes.filter(|disk| pattern.matches(&disk.name)).map(volume).collect();
        if results.is_empty() { Err(NO_SUCH_VOLUME) } else { Ok(Replies { results, descriptor: None }) }
    }

    fn acquire(&self, wanted: &Wanted) -> Result<Replies, Failure> {
        let disk = self.find_or_create(wanted)?;
        if disk.frontend != UBLK || wanted.kind != VolumeType::Blk {
            return Err(WRONG_TYPE);
        }
        self.wait_until_served(disk)?;
        let device = BlockDevice::find(&wanted.name).map_err(|error| {
            note(&format!("{} has no device: {error}", wanted.name));
            NO_SUCH_VOLUME
        })?;
        let is_read_only = device.is_read_only().unwrap_or(false);
        let read_only = match wanted.read_only {
            Some(false) if is_read_only => return Err(READ_ONLY_VOLUME),
            asked => asked.unwrap_or(is_read_only),
        };
        let file = device.open(read_only).map_err(|error| {
            note(&format!("{}: {error}", device.node.display()));
            match error.kind() {
                ErrorKind::PermissionDenied => PERMISSION_DENIED,
                _ => Failure::system(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        })?;
        let result = json!({ "fileDescriptorIndex": 0, "type": "blk", "readOnly": read_only });
        Ok(Replies { results: vec![result], descriptor: Some(file.into()) })
    }

    fn find_or_create(&self, wanted: &Wanted) -> Result<Disk, Failure> {
        let Wanted { name, mode, size_bytes, .. } = wanted;
        match self.daemon.disk(name) {
            Ok(_) if *mode == CreateMode::New => return Err(VOLUME_EXISTS),
            Ok(disk) => return Ok(disk),
            Err(error) if *mode == CreateMode::Open || !is(&error, Reason::NoSuchDisk) => return Err(failure(&error)),
            Err(_) => {}
        }
        let size = size_bytes.ok_or(CREATE_SIZE_REQUIRED)?.to_string();
        // `mount` asks for a file first, and for a block device after this error.
        if wanted.kind != VolumeType::Blk {
            return Err(TYPE_NOT_SUPPORTED);
        }
        let spec = DiskSpec { name: name.clone(), size, frontend: Some(UBLK.into()), ..DiskSpec::default() };
        // Another client may have made one since.
        match self.daemon.create_or_find(&spec) {
            Ok((_, false)) if *mode == CreateMode::New => Err(VOLUME_EXISTS),
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
                DiskState::Leaving => return Err(NO_SUCH_VOLUME),
                DiskState::Locked => {
                    note(&format!("{} is locked: `evenkeel disk unlock` hands over its key", disk.name));
                    return Err(Failure::system(Errno::NOKEY));
                }
                DiskState::Failed => return Err(Failure::system(Errno::IO)),
                DiskState::Zeroing if start.elapsed() > READY_LIMIT => {
                    note(&format!("{} is still being zeroed: ask again later", disk.name));
                    return Err(Failure::system(Errno::AGAIN));
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
    let mut volume = json!({ "name": disk.name, "type": "blk", "sizeBytes": disk.size_bytes });
    // storagectl refuses `null`.
    if let Some(read_only) = BlockDevice::find(&disk.name).ok().and_then(|device| device.is_read_only()) {
        volume["readOnly"] = read_only.into();
    }
    volume
}

fn is(error: &anyhow::Error, reason: Reason) -> bool {
    error.downcast_ref::<Problem>().is_some_and(|problem| problem.code == reason.code())
}

/// The interface's error for a refusal of the daemon, whose words go to the log.
fn failure(error: &anyhow::Error) -> Failure {
    if is(error, Reason::NoSuchDisk) {
        return NO_SUCH_VOLUME;
    }
    note(&format!("{error:#}"));
    match error.downcast_ref::<Problem>() {
        None if error.is::<NoDaemon>() => Failure::system(Errno::CONNREFUSED),
        Some(problem) if problem.status == 403 => PERMISSION_DENIED,
        Some(problem) if problem.code == "no-such-name" => Failure::invalid("name"),
        _ if is(error, Reason::NameTaken) || is(error, Reason::Leaving) => VOLUME_EXISTS,
        _ if is(error, Reason::NoRoom) => Failure::system(Errno::NOSPC),
        _ if is(error, Reason::Invalid) => Failure::system(Errno::INVAL),
        _ => Failure::system(Errno::IO),
    }
}
