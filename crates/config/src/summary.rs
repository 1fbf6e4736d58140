//! What was decided, for `evenkeel check`: as a table for people, as JSON for programs.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::class::Class;
use crate::config::Doorbells;
use crate::layout::{Change, Placement};
use crate::policy::Policy;
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
    pub profile: String,
    /// HWQs, if the file says.
    pub queues: Option<u16>,
    /// Entries of each HWQ.
    pub queue_depth: u16,
}

/// The policy and its parameters; each policy has some of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PolicySummary {
    /// passthrough, lpns, fair, k2, mqfq, d2fq or caps.
    pub name: &'static str,
    /// published or corrected (lpns, fair).
    pub variant: Option<&'static str>,
    /// Ω, in commands (lpns). Missing, as the next two, where it follows from the profile's file.
    pub omega: Option<u32>,
    /// R, in commands per second (lpns).
    pub rate_iops: Option<u64>,
    /// L_h (lpns); the lower threshold (fair).
    pub min_latency_us: Option<f64>,
    /// The upper threshold (fair).
    pub max_latency_us: Option<f64>,
    /// Commands in the drive, of all tenants together (k2, mqfq).
    pub max_in_flight: Option<u32>,
    /// T, in commands (mqfq).
    pub throttle_gap: Option<u32>,
    /// τ_m and τ_l, in commands (d2fq).
    pub class_gaps: Option<[u32; 2]>,
    /// R at the start (d2fq).
    pub ratio: Option<u32>,
    /// The weight of guaranteed tenants (mqfq, d2fq).
    pub guaranteed_weight: Option<u32>,
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
    /// Its limits under `caps`, in words.
    pub limits: Option<String>,
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
        let named = Self { name: policy.name(), ..Self::default() };
        match policy {
            Policy::Passthrough | Policy::Caps => named,
            Policy::Lpns(lpns) => Self {
                variant: Some(lpns.variant.name()),
                omega: lpns.omega,
                rate_iops: lpns.rate_iops.map(|rate| rate.0),
                min_latency_us: lpns.min_latency.map(TimeSpan::as_micros_f64),
                ..named
            },
            Policy::Fair(fair) => Self {
                variant: Some(fair.variant.name()),
                min_latency_us: fair.min_latency.map(TimeSpan::as_micros_f64),
                max_latency_us: fair.max_latency.map(TimeSpan::as_micros_f64),
                ..named
            },
            Policy::K2(k2) => Self { max_in_flight: Some(k2.max_in_flight), ..named },
            Policy::Mqfq(mqfq) => Self {
                max_in_flight: Some(mqfq.max_in_flight),
                throttle_gap: Some(mqfq.throttle_gap),
                guaranteed_weight: Some(mqfq.guaranteed_weight),
                ..named
            },
            Policy::D2fq(d2fq) => Self {
                class_gaps: Some([d2fq.medium_gap, d2fq.low_gap]),
                ratio: Some(d2fq.ratio),
                guaranteed_weight: Some(d2fq.guaranteed_weight),
                ..named
            },
        }
    }

    /// The parameters in few words.
    fn parameters(&self) -> String {
        let span = |us: f64| TimeSpan((us * 1_000.0).round() as u64);
        let mut words: Vec<String> = self.variant.map(str::to_owned).into_iter().collect();
        words.extend(self.omega.map(|omega| format!("omega {omega}")));
        match (self.rate_iops, self.min_latency_us, self.max_latency_us) {
            (Some(rate), Some(latency), None) => {
                words.push(format!("drive {} IOPS, {}", crate::Rate(rate), span(latency)));
            }
            (None, Some(min), Some(max)) => words.push(format!("thresholds {} and {}", span(min), span(max))),
            _ => {}
        }
        words.extend(self.max_in_flight.map(|max| format!("at most {max} in flight")));
        words.extend(self.throttle_gap.map(|gap| format!("gap {gap} commands")));
        words.extend(self.class_gaps.map(|[medium, low]| format!("gaps {medium} and {low} commands")));
        words.extend(self.ratio.map(|ratio| format!("ratio {ratio}")));
        words.join(", ")
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
            limits: tenant.limits.in_words(),
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

impl TenantSummary {
    /// What it gets, in few words.
    fn promise(&self) -> String {
        let target = self.latency_target_us.map(|us| TimeSpan((us * 1_000.0).round() as u64).to_string());
        target.or_else(|| self.limits.clone()).unwrap_or_else(|| format!("weight {}", self.weight.unwrap_or(1)))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        write!(f, "device   {} {}", device.backend, device.path.as_deref().unwrap_or(&device.profile))?;
        writeln!(f, ", {} ({} free)", Size(device.size_bytes), Size(self.free_bytes))?;
        write!(f, "policy   {}", self.policy.name)?;
        match self.policy.parameters() {
            parameters if parameters.is_empty() => {}
            parameters => write!(f, " ({parameters})")?,
        }
        writeln!(f)?;
        for (index, poller) in self.pollers.iter().enumerate() {
            let cpu = poller.cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
            writeln!(f, "poller {index} {}{cpu}", poller.tenants.join(", "))?;
        }
        let promises: Vec<String> = self.tenants.iter().map(TenantSummary::promise).collect();
        let widest =
            |heading: &str, cells: &mut dyn Iterator<Item = usize>| cells.max().unwrap_or(0).max(heading.len());
        let names = widest("tenant", &mut self.tenants.iter().map(|tenant| tenant.name.len()));
        let promised = widest("promise", &mut promises.iter().map(String::len)).max(10);
        let row = |cells: [&str; 6]| {
            let [name, class, promise, size, offset, socket] = cells;
            format!("{name:<names$}  {class:<11}  {promise:<promised$}  {size:>9}  {offset:>14}  {socket}")
        };
        writeln!(f, "\n{}", row(["tenant", "class", "promise", "size", "at", "socket"]))?;
        for (tenant, promise) in self.tenants.iter().zip(&promises) {
            let (size, offset) = (Size(tenant.size_bytes).to_string(), Size(tenant.offset_bytes).to_string());
            let socket = tenant.socket.to_string_lossy();
            writeln!(f, "{}", row([&tenant.name, tenant.class, promise, &size, &offset, &socket]))?;
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
