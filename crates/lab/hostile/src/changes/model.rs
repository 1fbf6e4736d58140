//! What there should be, and what a change makes of it.

use std::collections::BTreeMap;

use api::{Attach, Disk, DiskPatch, DiskSpec, Drive};

use super::MIB;
use super::content::Shared;

/// The drives that the configuration declares.
pub const DECLARED: [(&str, u64); 2] = [("one", 64), ("two", 48)];
/// A declared tenant of each, with its MiB.
pub const BASES: [(&str, u64); 2] = [("base-one", 3), ("base-two", 2)];
/// Drives that are added and removed.
pub const SPARES: [&str; 2] = ["spare-a", "spare-b"];
/// MiB of each.
pub const SPARE_MIB: u64 = 24;
/// Policies that take over from one another while a daemon runs.
pub const POLICIES: [&str; 6] = ["lpns", "evenkeel", "fair", "wrr", "drr", "passthrough"];

/// What a tenant is promised and held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Of a best-effort one.
    pub weight: Option<u32>,
    /// Of a guaranteed one.
    pub target_ms: Option<u64>,
    pub rw_iops: Option<u64>,
    /// Bytes per second written, in MiB.
    pub w_mib: Option<u64>,
}

/// What the API tells of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// `None`: the daemon chooses.
    pub drive: Option<String>,
    pub frontend: String,
    pub mib: u64,
    /// `None`: it is a namespace.
    pub terms: Option<Terms>,
    /// Of a namespace; 0: the daemon chooses.
    pub nsid: Option<u32>,
    /// The tenants that have a namespace, and which of them can't write to it.
    pub attachments: BTreeMap<String, bool>,
}

impl Shape {
    /// What the API tells.
    pub fn of(disk: &Disk) -> Self {
        let attachments = disk.attachments.iter().map(|it| (it.tenant.clone(), it.read_only)).collect();
        let terms = Terms {
            weight: disk.weight,
            target_ms: disk.latency_target_us.map(|target| (target / 1e3).round() as u64),
            rw_iops: disk.ceilings.rw_iops,
            w_mib: disk.ceilings.w_bytes_per_second.map(|limit| limit / MIB),
        };
        Self {
            drive: Some(disk.drive.clone()),
            frontend: disk.frontend.clone(),
            mib: disk.grows_to_bytes.unwrap_or(disk.size_bytes) / MIB,
            terms: disk.nsid.is_none().then_some(terms),
            nsid: disk.nsid,
            attachments,
        }
    }

    fn detach(&mut self, tenant: &str) {
        self.attachments.remove(tenant);
    }

    /// What the daemon chose is as it chose it.
    fn settle(&mut self, found: &Self) {
        if self.drive.is_none() {
            self.drive.clone_from(&found.drive);
        }
        if self.nsid == Some(0) {
            self.nsid = found.nsid;
        }
    }
}

/// A disk as it should be.
#[derive(Clone)]
pub struct Known {
    pub shape: Shape,
    pub content: Shared,
}

/// What the configuration file says, as far as it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The policy of drives that have none of their own, and the second drive's own one.
    pub policies: [&'static str; 2],
    /// The first declared tenant's.
    pub weight: u32,
    /// The second one's.
    pub rw_iops: u64,
}

impl Declared {
    /// What it says at first.
    pub const FIRST: Self = Self { policies: ["fair", "passthrough"], weight: 1, rw_iops: 50_000 };

    /// The file, in which HOST stands for the host's directory.
    pub fn text(&self) -> String {
        let [(one, one_mib), (two, two_mib)] = DECLARED;
        let [(base_one, base_one_mib), (base_two, base_two_mib)] = BASES;
        let Self { policies: [common, own], weight, rw_iops } = self;
        format!(
            r#"
runtime_dir = "HOST/run"
state_dir = "HOST/state"
[[drive]]
name = "{one}"
backend = "file"
path = "HOST/{one}.img"
size = "{one_mib}MiB"
create = true
[[drive]]
name = "{two}"
backend = "file"
path = "HOST/{two}.img"
size = "{two_mib}MiB"
create = true
[drive.policy]
name = "{own}"
[policy]
name = "{common}"
[pollers]
idle_after = "1ms"
[[tenant]]
name = "{base_one}"
drive = "{one}"
size = "{base_one_mib}MiB"
weight = {weight}
[[tenant]]
name = "{base_two}"
drive = "{two}"
size = "{base_two_mib}MiB"
rw_iops = "{rw_iops}"
"#
        )
    }

    fn terms(&self, base: usize) -> Terms {
        let free = Terms { weight: Some(1), target_ms: None, rw_iops: None, w_mib: None };
        match base {
            0 => Terms { weight: Some(self.weight), ..free },
            _ => Terms { rw_iops: Some(self.rw_iops), ..free },
        }
    }
}

/// A change that is sent.
#[derive(Clone)]
pub enum Change {
    Create(String, Known),
    Grow(String, u64),
    Set(String, Terms),
    Delete(String),
    Attach(String, Attach),
    Detach(String, String),
    /// With a policy of its own, or the common one.
    AddDrive(String, Option<&'static str>),
    RemoveDrive(String),
    Apply(Declared),
}

impl Change {
    /// For the report.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Create(_, known) if known.shape.nsid.is_some() => "create namespace",
            Self::Create(..) => "create disk",
            Self::Grow(..) => "grow",
            Self::Set(..) => "set",
            Self::Delete(_) => "delete",
            Self::Attach(..) => "attach",
            Self::Detach(..) => "detach",
            Self::AddDrive(..) => "add drive",
            Self::RemoveDrive(_) => "remove drive",
            Self::Apply(_) => "apply",
        }
    }
}

/// The request that makes a disk.
pub fn new_disk(name: &str, shape: &Shape) -> DiskSpec {
    let disk = DiskSpec { name: name.to_owned(), size: format!("{}MiB", shape.mib), ..DiskSpec::default() };
    let Some(terms) = shape.terms else {
        let attachment = shape.attachments.iter().next();
        let attach = attachment.map(|(tenant, _)| tenant.clone());
        let read_only = attachment.and_then(|(_, read_only)| read_only.then_some(true));
        return DiskSpec { attach, read_only, nsid: shape.nsid.filter(|nsid| *nsid > 0), ..disk };
    };
    DiskSpec { drive: shape.drive.clone(), frontend: Some(shape.frontend.clone()), ..promised(terms, disk) }
}

/// The request that has it promised and held to something else.
pub fn disk_change(terms: Terms) -> DiskPatch {
    let class = if terms.target_ms.is_some() { "guaranteed" } else { "best-effort" };
    let terms = promised(terms, DiskSpec { class: Some(class.to_owned()), ..DiskSpec::default() });
    let absent = [("rw_iops", terms.rw_iops.is_none()), ("w_bandwidth", terms.w_bandwidth.is_none())];
    let absent = absent.into_iter().filter(|(_, is_absent)| *is_absent);
    absent.fold(DiskPatch::of(&terms), |patch, (key, _)| patch.without(key))
}

/// A disk with these terms.
fn promised(terms: Terms, disk: DiskSpec) -> DiskSpec {
    let Terms { weight, target_ms, rw_iops, w_mib } = terms;
    DiskSpec {
        class: disk.class.or_else(|| target_ms.map(|_| "guaranteed".to_owned())),
        weight,
        latency_target: target_ms.map(|target| format!("{target}ms")),
        overcommit: target_ms.map(|_| true),
        rw_iops: rw_iops.map(|limit| limit.to_string()),
        w_bandwidth: w_mib.map(|limit| format!("{limit}MiB/s")),
        ..disk
    }
}

/// All that there is, as the API tells it: disks, and drives with their policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub disks: BTreeMap<String, Shape>,
    pub drives: BTreeMap<String, String>,
}

impl Seen {
    /// What the API tells.
    pub fn of(disks: &[Disk], drives: &[Drive]) -> Self {
        let failed = |drive: &Drive| drive.failed.as_ref().map(|why| format!("failed: {why}"));
        let policy = |drive: &Drive| failed(drive).unwrap_or_else(|| drive.policy.clone());
        Self {
            disks: disks.iter().map(|disk| (disk.name.clone(), Shape::of(disk))).collect(),
            drives: drives.iter().map(|drive| (drive.name.clone(), policy(drive))).collect(),
        }
    }
}

/// All that there should be.
#[derive(Clone)]
pub struct State {
    pub disks: BTreeMap<String, Known>,
    /// Drives that were added, with policies of their own.
    pub added: BTreeMap<String, Option<&'static str>>,
    pub declared: Declared,
}

impl State {
    /// With the declared tenants.
    pub fn new(contents: [Shared; 2]) -> Self {
        let bases = contents.into_iter().enumerate().map(|(index, content)| {
            let ((name, mib), declared) = (BASES[index], &Declared::FIRST);
            let (drive, frontend) = (Some(DECLARED[index].0.to_owned()), "vfio-user".to_owned());
            let (terms, attachments) = (Some(declared.terms(index)), BTreeMap::new());
            (name.to_owned(), Known { shape: Shape { drive, frontend, mib, terms, nsid: None, attachments }, content })
        });
        Self { disks: bases.collect(), added: BTreeMap::new(), declared: Declared::FIRST }
    }

    /// As the API should tell it.
    pub fn seen(&self) -> Seen {
        let [common, own] = self.declared.policies;
        let declared = [(DECLARED[0].0, common), (DECLARED[1].0, own)];
        let added = self.added.iter().map(|(name, policy)| (name.as_str(), policy.unwrap_or(common)));
        let drives = declared.into_iter().chain(added);
        Seen {
            disks: self.disks.iter().map(|(name, known)| (name.clone(), known.shape.clone())).collect(),
            drives: drives.map(|(name, policy)| (name.to_owned(), policy.to_owned())).collect(),
        }
    }

    /// What the daemon chose is as it chose it.
    pub fn settle(&mut self, name: &str, found: &Shape) {
        self.disks.get_mut(name).into_iter().for_each(|known| known.shape.settle(found));
    }

    /// The state after a change. Contents are the same ones.
    pub fn with(&self, change: &Change) -> Self {
        let mut next = self.clone();
        let mut shape = |name: &str, change: &dyn Fn(&mut Shape)| {
            next.disks.get_mut(name).into_iter().for_each(|known| change(&mut known.shape));
        };
        match change {
            Change::Create(name, known) => drop(next.disks.insert(name.clone(), known.clone())),
            Change::Grow(name, mib) => shape(name, &|shape| shape.mib = *mib),
            Change::Set(name, terms) => shape(name, &|shape| shape.terms = Some(*terms)),
            Change::Attach(name, attach) => shape(name, &|shape| {
                shape.attachments.insert(attach.tenant.clone(), attach.read_only);
            }),
            Change::Detach(name, tenant) => shape(name, &|shape| shape.detach(tenant)),
            Change::Delete(name) => {
                next.disks.remove(name);
                next.disks.values_mut().for_each(|known| known.shape.detach(name));
            }
            Change::AddDrive(name, policy) => drop(next.added.insert(name.clone(), *policy)),
            Change::RemoveDrive(name) => drop(next.added.remove(name)),
            Change::Apply(declared) => {
                for (index, (base, _)) in BASES.iter().enumerate() {
                    shape(base, &|shape| shape.terms = Some(declared.terms(index)));
                }
                next.declared = declared.clone();
            }
        }
        next
    }
}
