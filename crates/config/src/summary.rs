//! What was decided, for `evenkeel check`: as a table for people, as JSON for programs.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::config::{Class, Doorbells, Policy};
use crate::layout::{Change, Placement};
use crate::prepare::Prepared;
use crate::units::{Size, TimeSpan};

/// What `evenkeel check` prints. Sizes in bytes, times in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The configuration file.
    pub config: PathBuf,
    /// The drive.
    pub device: DeviceSummary,
    /// The policy and its parameters.
    pub policy: PolicySummary,
    /// The pollers that will run.
    pub pollers: Vec<PollerSummary>,
    /// In the file's order.
    pub tenants: Vec<TenantSummary>,
    /// Ranges of tenants that the configuration does not name.
    pub reserved: Vec<Placement>,
    /// Bytes of the drive that nobody has.
    pub free_bytes: u64,
    /// The file that keeps the ranges; none where the back end forgets.
    pub layout_file: Option<PathBuf>,
    /// What `evenkeel serve` would change in it.
    pub changes: Vec<Change>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
}

/// The drive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSummary {
    /// file, block, memory, null or model.
    pub backend: &'static str,
    /// The file or block device, links resolved.
    pub path: Option<String>,
    /// The drive's own identity, where the kernel knows it.
    pub id: Option<String>,
    /// What tenants may use.
    pub size_bytes: u64,
    /// The file will be created.
    pub to_create: bool,
    /// What it is or is taken for.
    pub profile: &'static str,
    /// HWQs, if the file says.
    pub queues: Option<u16>,
    /// Entries of each HWQ.
    pub queue_depth: u16,
}

/// The policy and its parameters; those of `lpns` are missing for `passthrough`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicySummary {
    /// passthrough or lpns.
    pub name: &'static str,
    /// published or corrected.
    pub variant: Option<&'static str>,
    /// Ω, in commands.
    pub omega: Option<u32>,
    /// R, in commands per second.
    pub rate_iops: Option<u64>,
    /// L_h.
    pub min_latency_us: Option<f64>,
}

/// One poller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PollerSummary {
    /// Whom it serves.
    pub tenants: Vec<String>,
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantSummary {
    /// Its name.
    pub name: String,
    /// guaranteed or best-effort.
    pub class: &'static str,
    /// The target of a guaranteed tenant.
    pub latency_target_us: Option<f64>,
    /// The weight of a best-effort tenant.
    pub weight: Option<u32>,
    /// Its range's start on the drive.
    pub offset_bytes: u64,
    /// Its range's length.
    pub size_bytes: u64,
    /// LBA size of its namespace.
    pub lba_bytes: u32,
    /// mapped or trapped.
    pub doorbells: &'static str,
    /// I/O queues offered.
    pub queues: u16,
    /// The socket that its VMM connects to.
    pub socket: PathBuf,
}

impl Summary {
    /// What `prepared` will do.
    pub fn new(prepared: &Prepared) -> Self {
        let Prepared { config, host, layout, .. } = prepared;
        let name = |index: &usize| config.tenants.get(*index).map(|tenant| tenant.name.clone());
        let pollers = config.poller_plan().into_iter();
        let reserved = prepared.changes.iter().filter_map(|change| match change {
            Change::Reserved(placement) => Some(placement.clone()),
            _ => None,
        });
        Self {
            config: config.file().to_owned(),
            device: DeviceSummary {
                backend: config.device.backend.name(),
                path: config.device.backend.path().map(|_| host.device.path.clone()),
                id: host.device.id.clone(),
                size_bytes: host.device.size_bytes,
                to_create: host.to_create,
                profile: config.device.profile.name(),
                queues: config.device.queues,
                queue_depth: config.device.queue_depth,
            },
            policy: PolicySummary::new(&config.policy),
            pollers: pollers
                .map(|poller| PollerSummary {
                    tenants: poller.tenants.iter().filter_map(name).collect(),
                    cpu: poller.cpu,
                })
                .collect(),
            tenants: config.tenants.iter().filter_map(|tenant| TenantSummary::new(prepared, tenant)).collect(),
            reserved: reserved.collect(),
            free_bytes: layout.free_bytes(),
            layout_file: prepared.file.path().map(PathBuf::from),
            changes: prepared.changes.clone(),
            warnings: prepared.warnings.iter().map(|warning| warning.in_file(config.file())).collect(),
        }
    }
}

impl PolicySummary {
    fn new(policy: &Policy) -> Self {
        let lpns = match policy {
            Policy::Passthrough => None,
            Policy::Lpns(lpns) => Some(lpns),
        };
        Self {
            name: policy.name(),
            variant: lpns.map(|lpns| lpns.variant.name()),
            omega: lpns.map(|lpns| lpns.omega),
            rate_iops: lpns.map(|lpns| lpns.rate_iops.0),
            min_latency_us: lpns.map(|lpns| lpns.min_latency.as_micros_f64()),
        }
    }
}

impl TenantSummary {
    fn new(prepared: &Prepared, tenant: &crate::Tenant) -> Option<Self> {
        let placement = prepared.layout.find(&tenant.name)?;
        let (class, target, weight) = match tenant.class {
            Class::Guaranteed { latency_target } => ("guaranteed", Some(latency_target.as_micros_f64()), None),
            Class::BestEffort { weight } => ("best-effort", None, Some(weight)),
        };
        Some(Self {
            name: tenant.name.clone(),
            class,
            latency_target_us: target,
            weight,
            offset_bytes: placement.offset_bytes,
            size_bytes: placement.size_bytes,
            lba_bytes: placement.lba_bytes,
            doorbells: match tenant.doorbells {
                Doorbells::Mapped => "mapped",
                Doorbells::Trapped => "trapped",
            },
            queues: tenant.queues,
            socket: prepared.config.socket_path(&tenant.name),
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        write!(f, "device   {} {}", device.backend, device.path.as_deref().unwrap_or(device.profile))?;
        writeln!(f, ", {} ({} free)", Size(device.size_bytes), Size(self.free_bytes))?;
        write!(f, "policy   {}", self.policy.name)?;
        if let (Some(variant), Some(omega)) = (self.policy.variant, self.policy.omega) {
            let latency = self.policy.min_latency_us.unwrap_or(0.0);
            let rate = crate::Rate(self.policy.rate_iops.unwrap_or(0));
            write!(f, " ({variant}, omega {omega}, drive {rate} IOPS, {latency}us)")?;
        }
        writeln!(f)?;
        for (index, poller) in self.pollers.iter().enumerate() {
            let cpu = poller.cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
            writeln!(f, "poller {index} {}{cpu}", poller.tenants.join(", "))?;
        }
        let width = self.tenants.iter().map(|t| t.name.len()).max().unwrap_or(0).max("tenant".len());
        let row = |cells: [&str; 6]| {
            let [name, class, promise, size, offset, socket] = cells;
            format!("{name:<width$}  {class:<11}  {promise:<10}  {size:>9}  {offset:>14}  {socket}")
        };
        writeln!(f, "\n{}", row(["tenant", "class", "promise", "size", "at", "socket"]))?;
        for tenant in &self.tenants {
            let target = tenant.latency_target_us.map(|us| TimeSpan((us * 1_000.0).round() as u64).to_string());
            let promise = target.unwrap_or_else(|| format!("weight {}", tenant.weight.unwrap_or(1)));
            let (size, offset) = (Size(tenant.size_bytes).to_string(), Size(tenant.offset_bytes).to_string());
            writeln!(
                f,
                "{}",
                row([&tenant.name, tenant.class, &promise, &size, &offset, &tenant.socket.to_string_lossy()])
            )?;
        }
        if let Some(file) = &self.layout_file {
            writeln!(f, "\nlayout   {}", file.display())?;
        }
        for change in &self.changes {
            writeln!(f, "note     {change}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning  {}", warning.replace('\n', "\n         "))?;
        }
        Ok(())
    }
}
