//! What was decided, for `evenkeel check`: as a table for people, as JSON for programs.

use std::fmt;
use std::path::PathBuf;

use io_model::Nanos;
use io_model::units::{Rate, Size};
use layout::{Change, Placement};
use policy::{ArbitratedConfig, Percentile, Settings, Terms};
use serde::Serialize;

use crate::config::Config;
use crate::demand::Demand;
use crate::frontend::Frontend;
use crate::namespace::{Attachment, Namespace};
use crate::plan::{Poller, Serves};
use crate::prepare::Prepared;
use crate::values::{Doorbells, Threads};

/// What `evenkeel check` prints. Sizes in bytes, times in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The configuration file.
    pub config: PathBuf,
    /// The drive.
    pub device: DeviceSummary,
    /// The policy and its parameters.
    pub policy: PolicySummary,
    /// The pollers that will run; each is a thread.
    pub pollers: Vec<PollerSummary>,
    /// In the file's order.
    pub tenants: Vec<TenantSummary>,
    /// Namespaces, in the order of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceSummary>,
    /// Ranges of tenants that the configuration does not name.
    pub reserved: Vec<Placement>,
    /// Bytes of the drive that nobody has.
    pub free_bytes: u64,
    /// The file that keeps the ranges; none where the back end forgets, or where it will be named after a mark that is
    /// still to be made.
    pub layout_file: Option<PathBuf>,
    /// What `evenkeel serve` would change in it.
    pub changes: Vec<Change>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
}

/// The drive.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSummary {
    /// What commands call it.
    pub name: String,
    /// file, block, memory, null or model.
    pub backend: &'static str,
    /// The file or block device, links resolved.
    pub path: Option<String>,
    /// The drive's own identity, where the kernel knows it, or its mark.
    pub id: Option<String>,
    /// It has neither: `evenkeel serve` puts a mark on it.
    pub to_mark: bool,
    /// What tenants may use.
    pub size_bytes: u64,
    /// The file will be created.
    pub to_create: bool,
    /// The drive's profile.
    pub profile: String,
    /// The configuration names no profile: this one only gives the policy its settings, and no promise is checked.
    pub profile_assumed: bool,
    /// HWQs, if the file says.
    pub queues: Option<u16>,
}

/// The policy and its parameters; each policy has some of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PolicySummary {
    /// evenkeel, lpns, fair, wrr, drr or passthrough.
    pub name: &'static str,
    /// R, in commands per second (lpns). Missing, as the next one, where it follows from the profile's file.
    pub rate_iops: Option<u64>,
    /// L_h (lpns); the lower threshold (fair).
    pub min_latency_us: Option<f64>,
    /// The upper threshold (fair).
    pub max_latency_us: Option<f64>,
    /// Commands in the drive, of all tenants together (wrr and drr, where it does not follow from the drive).
    pub max_in_flight: Option<u32>,
    /// The weights of the high, medium and low class (wrr: commands; drr: KiB).
    pub class_weights: Option<[u16; 3]>,
    /// Commands in one turn of a tenant (wrr).
    pub arbitration_burst: Option<u16>,
}

/// One poller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PollerSummary {
    /// Tenants that it serves.
    pub tenants: Vec<String>,
    /// The queue that it serves, where each has a poller of its own; none: all of its tenants'.
    pub queue: Option<u16>,
    /// polling, adaptive or event.
    pub mode: &'static str,
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
    /// The percentage of its commands that it is for.
    pub latency_percentile: Option<f64>,
    /// What a best-effort tenant gets at least, in words.
    pub floor: Option<String>,
    /// The weight of a best-effort tenant.
    pub weight: Option<u32>,
    /// urgent, high, medium, low or client (wrr, drr).
    pub priority: Option<&'static str>,
    /// It is served even if its promise can't be kept.
    pub overcommit: bool,
    /// What it says that it will ask for, in words.
    pub demand: Option<String>,
    /// Its limits, in words.
    pub limits: Option<String>,
    /// Its range's start on the drive.
    pub offset_bytes: u64,
    /// Its range's length.
    pub size_bytes: u64,
    /// LBA size of its disk.
    pub lba_bytes: u32,
    /// vfio-user, vhost-user-blk or ublk.
    pub frontend: &'static str,
    /// mapped or trapped; only for vfio-user.
    pub doorbells: Option<&'static str>,
    /// I/O queues offered.
    pub queues: u16,
    /// shared, dedicated or per-queue.
    pub threads: &'static str,
    /// polling, adaptive or event, as far as it is up to this tenant.
    pub mode: &'static str,
    /// The guest can't write.
    pub read_only: bool,
    /// The socket that its VMM connects to, or the block device.
    pub socket: PathBuf,
}

/// One namespace beside tenants' own disks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NamespaceSummary {
    /// Its name.
    pub name: String,
    /// Its identifier on every controller.
    pub nsid: u32,
    /// Tenants that may read and write it.
    pub tenants: Vec<String>,
    /// Tenants that may read it.
    pub read_only: Vec<String>,
    /// Several may write to it.
    pub shared: bool,
    /// Its range's start on the drive.
    pub offset_bytes: u64,
    /// Its range's length.
    pub size_bytes: u64,
    /// LBA size of it.
    pub lba_bytes: u32,
}

impl Summary {
    /// What `prepared` will do.
    pub fn new(prepared: &Prepared) -> Self {
        let Prepared { config, host, layout, .. } = prepared;
        let pollers = config.poller_plan();
        let reserved = prepared.changes.iter().filter_map(|change| match change {
            Change::Reserved(placement) => Some(placement.clone()),
            _ => None,
        });
        Self {
            config: config.file().to_owned(),
            device: DeviceSummary {
                name: config.device.name.clone(),
                backend: config.device.backend.name(),
                path: config.device.backend.path().map(|_| host.device.path.clone()),
                id: host.device.id.clone(),
                to_mark: host.to_mark,
                size_bytes: config.room(layout).0,
                to_create: host.to_create,
                profile: config.device.profile.name(),
                profile_assumed: !config.device.profile_named,
                queues: config.device.queues,
            },
            policy: PolicySummary::new(&config.policy),
            pollers: pollers.iter().map(|poller| PollerSummary::new(config, poller)).collect(),
            tenants: config.tenants.iter().filter_map(|tenant| TenantSummary::new(prepared, tenant)).collect(),
            namespaces: config.namespaces.iter().filter_map(|it| NamespaceSummary::new(prepared, it)).collect(),
            reserved: reserved.collect(),
            free_bytes: config.room(layout).1,
            layout_file: prepared.file.path().map(PathBuf::from),
            changes: prepared.changes.clone(),
            warnings: prepared.warnings.iter().map(|warning| warning.in_file(config.file())).collect(),
        }
    }
}

impl PolicySummary {
    fn new(policy: &Settings) -> Self {
        let named = Self { name: policy.name(), ..Self::default() };
        match policy {
            Settings::Passthrough | Settings::Evenkeel(()) => named,
            Settings::Lpns(lpns) => Self {
                rate_iops: lpns.rate_iops.map(|rate| rate.0),
                min_latency_us: lpns.min_latency.map(Nanos::as_micros_f64),
                ..named
            },
            Settings::Fair(fair) => Self {
                min_latency_us: fair.min_latency.map(Nanos::as_micros_f64),
                max_latency_us: fair.max_latency.map(Nanos::as_micros_f64),
                ..named
            },
            Settings::Wrr(wrr) => Self { arbitration_burst: Some(wrr.arbitration_burst), ..named.arbitrated(wrr) },
            Settings::Drr(drr) => named.arbitrated(drr),
        }
    }

    /// With what `wrr` and `drr` have in common.
    fn arbitrated(self, policy: &ArbitratedConfig<Option<u32>>) -> Self {
        Self {
            class_weights: Some([policy.high_weight, policy.medium_weight, policy.low_weight]),
            max_in_flight: policy.max_in_flight,
            ..self
        }
    }

    /// The parameters in few words.
    fn parameters(&self) -> String {
        let mut words = Vec::new();
        match (self.rate_iops, self.min_latency_us, self.max_latency_us) {
            (Some(rate), Some(latency), None) => {
                words.push(format!("drive {} IOPS, {}", Rate(rate), spelled(latency)));
            }
            (None, Some(min), Some(max)) => words.push(format!("thresholds {} and {}", spelled(min), spelled(max))),
            _ => {}
        }
        words.extend(self.class_weights.map(|[high, medium, low]| {
            let unit = if self.arbitration_burst.is_some() { "commands" } else { "KiB" };
            format!("high {high}, medium {medium} and low {low} {unit} a round")
        }));
        words.extend(self.arbitration_burst.filter(|burst| *burst > 1).map(|burst| format!("burst {burst}")));
        words.extend(self.max_in_flight.map(|max| format!("at most {max} in flight")));
        words.join(", ")
    }
}

/// A time as the file spells it.
fn spelled(us: f64) -> String {
    Nanos((us * 1_000.0).round() as u64).to_string()
}

impl PollerSummary {
    fn new(config: &Config, poller: &Poller) -> Self {
        let served = |serves: &Serves| config.tenants.get(serves.tenant);
        let tenants = poller.serves.iter().filter_map(served).map(|tenant| tenant.name.clone());
        let queue = poller
            .serves
            .iter()
            .find(|serves| served(serves).is_some_and(|tenant| tenant.frontend.threads() == Some(Threads::PerQueue)));
        Self {
            tenants: tenants.collect(),
            queue: queue.map(|serves| serves.queues.start),
            mode: poller.mode.name(),
            cpu: poller.cpu,
        }
    }
}

impl TenantSummary {
    fn new(prepared: &Prepared, tenant: &crate::Tenant) -> Option<Self> {
        let placement = prepared.layout.find(&tenant.name)?;
        let Terms { class, limits, floor, priority, .. } = tenant.terms;
        Some(Self {
            name: tenant.name.clone(),
            class: class.name(),
            latency_target_us: class.latency_target().map(Nanos::as_micros_f64),
            latency_percentile: class.promise().map(|(_, percentile)| percentile.percent()),
            floor: floor.in_words(),
            weight: class.weight(),
            priority: prepared.config.policy.kind().has_priorities().then(|| priority.name()),
            overcommit: tenant.is_promised() && tenant.overcommit,
            demand: tenant.demand.as_ref().map(Demand::to_string),
            limits: limits.in_words(),
            offset_bytes: placement.offset_bytes(),
            size_bytes: placement.size_bytes(),
            lba_bytes: placement.lba_bytes,
            frontend: tenant.frontend.name(),
            doorbells: match (&tenant.frontend, tenant.doorbells) {
                (Frontend::VhostUserBlk(_) | Frontend::Ublk(..), _) => None,
                (Frontend::VfioUser(_), Doorbells::Mapped) => Some("mapped"),
                (Frontend::VfioUser(_), Doorbells::Trapped) => Some("trapped"),
            },
            queues: tenant.queues,
            threads: prepared.config.threads(tenant).name(),
            mode: tenant.frontend.mode().name(),
            read_only: tenant.frontend.is_read_only(),
            socket: prepared.config.reached_at(tenant),
        })
    }
}

impl NamespaceSummary {
    fn new(prepared: &Prepared, namespace: &Namespace) -> Option<Self> {
        let placement = prepared.layout.find(&namespace.name)?;
        let (read_only, tenants): (Vec<_>, Vec<_>) = namespace.attachments.iter().partition(|it| it.read_only);
        let names = |of: Vec<&Attachment>| of.into_iter().map(|it| it.tenant.clone()).collect();
        Some(Self {
            name: namespace.name.clone(),
            nsid: namespace.nsid,
            tenants: names(tenants),
            read_only: names(read_only),
            shared: namespace.shared,
            offset_bytes: placement.offset_bytes(),
            size_bytes: placement.size_bytes(),
            lba_bytes: placement.lba_bytes,
        })
    }
}

/// `namespace 2 "logs": 10GiB at 32GiB, for db, web, read-only for reader`.
impl fmt::Display for NamespaceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nsid, name, tenants, read_only, .. } = self;
        write!(f, "namespace {nsid} {name:?}: {} at {}", Size(self.size_bytes), Size(self.offset_bytes))?;
        if tenants.is_empty() && read_only.is_empty() {
            return write!(f, ", attached to no tenant");
        }
        if !tenants.is_empty() {
            write!(f, ", for {}", tenants.join(", "))?;
        }
        if !read_only.is_empty() {
            write!(f, ", read-only for {}", read_only.join(", "))?;
        }
        Ok(())
    }
}

/// Columns of numbers, which stand to the right.
const SIZE: usize = 3;
const AT: usize = 4;

impl TenantSummary {
    /// Its row in the table.
    fn cells(&self) -> [String; 9] {
        let frontend = if self.read_only { format!("{}, read-only", self.frontend) } else { self.frontend.to_owned() };
        [
            self.name.clone(),
            self.class.to_owned(),
            self.promise(),
            Size(self.size_bytes).to_string(),
            Size(self.offset_bytes).to_string(),
            frontend,
            self.threads.to_owned(),
            self.mode.to_owned(),
            self.socket.to_string_lossy().into_owned(),
        ]
    }

    /// What it gets, in few words.
    fn promise(&self) -> String {
        let percentile = self.latency_percentile.filter(|percent| *percent != Percentile::P99.percent());
        let percentile = percentile.map(|percent| format!(" for {percent} %")).unwrap_or_default();
        let target = self.latency_target_us.map(|target_us| spelled(target_us) + &percentile);
        let floor = self.floor.iter().map(|floor| format!("at least {floor}"));
        let priority = self.priority.map(|priority| format!("priority {priority}"));
        let mut words: Vec<String> = target.into_iter().chain(floor).chain(priority).collect();
        let weight = self.weight.unwrap_or(1);
        if words.is_empty() && (self.limits.is_none() || weight > 1) {
            words.push(format!("weight {weight}"));
        }
        words.extend(self.limits.clone());
        words.join(", ")
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        write!(
            f,
            "drive    {}: {} {}",
            device.name,
            device.backend,
            device.path.as_deref().unwrap_or(if device.profile_assumed { "drive" } else { &device.profile })
        )?;
        match device.backend {
            // What its file system has left is no room of the drive's.
            "directory" => writeln!(f, ", {} in images", Size(device.size_bytes))?,
            _ => writeln!(f, ", {} ({} free)", Size(device.size_bytes), Size(self.free_bytes))?,
        }
        if device.profile_assumed {
            writeln!(
                f,
                "profile  none named: settings are those of a {}, and promises aren't checked",
                device.profile
            )?;
        }
        write!(f, "policy   {}", self.policy.name)?;
        match self.policy.parameters() {
            parameters if parameters.is_empty() => {}
            parameters => write!(f, " ({parameters})")?,
        }
        writeln!(f)?;
        self.write_pollers(f)?;
        self.write_tenants(f)?;
        self.namespaces.iter().try_for_each(|namespace| writeln!(f, "{namespace}"))?;
        if let Some(file) = &self.layout_file {
            writeln!(f, "\nlayout   {}", file.display())?;
        }
        if device.to_mark && device.id.is_none() {
            let what = "the drive has no identity to recognize it by: `evenkeel serve` puts a mark on it";
            writeln!(f, "note     {what}")?;
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

impl Summary {
    /// How many threads, and a line for each poller; one for all where the queues of a tenant have one each.
    fn write_pollers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |mode: &str| self.pollers.iter().filter(|poller| poller.mode == mode).count();
        let modes = ["polling", "adaptive", "event"].map(|mode| (of(mode), mode));
        let modes: Vec<String> =
            modes.iter().filter(|(count, _)| *count > 0).map(|(count, mode)| format!("{count} {mode}")).collect();
        let modes = if modes.is_empty() { String::new() } else { format!(": {}", modes.join(", ")) };
        writeln!(f, "threads  {} to move commands{modes}", self.pollers.len())?;
        let same =
            |a: &PollerSummary, b: &PollerSummary| a.queue.is_some() && b.queue.is_some() && a.tenants == b.tenants;
        let mut index = 0;
        for group in self.pollers.chunk_by(same) {
            let Some(poller) = group.first() else { continue };
            let last = index + group.len() - 1;
            let (title, each) = match poller.queue {
                Some(_) if last > index => (format!("pollers {index} to {last}"), " (a queue each)"),
                _ => (format!("poller {index}"), ""),
            };
            let cpus: Vec<String> = group.iter().filter_map(|poller| poller.cpu).map(|cpu| cpu.to_string()).collect();
            let cpus = match cpus.len() {
                0 => String::new(),
                1 => format!(", on CPU {}", cpus.join("")),
                _ => format!(", on CPUs {}", cpus.join(", ")),
            };
            writeln!(f, "{title} {}{each}: {}{cpus}", poller.tenants.join(", "), poller.mode)?;
            index = last + 1;
        }
        Ok(())
    }

    fn write_tenants(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEADINGS: [&str; 9] =
            ["tenant", "class", "promise", "size", "at", "front end", "threads", "mode", "socket"];
        if self.tenants.is_empty() {
            return writeln!(f, "\nno disks yet; make one with `evenkeel disk create`");
        }
        let rows: Vec<[String; 9]> = self.tenants.iter().map(TenantSummary::cells).collect();
        let widths: Vec<usize> = (0..HEADINGS.len())
            .map(|column| rows.iter().map(|row| row[column].len()).chain([HEADINGS[column].len()]).max().unwrap_or(0))
            .collect();
        writeln!(f)?;
        for row in std::iter::once(HEADINGS.map(str::to_owned)).chain(rows) {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                SIZE | AT => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}
