//! The checked values.

use std::ops::{Deref, Range};
use std::path::Path;

use config::reading::{Sink, Text, read_text};
use config::{ConfigErrors, Demand, Problem, Profile};
use io_model::Nanos;
use io_model::units::Size;
use rivals::LabSettings;
use sim::Fault;

use crate::host::Host;
use crate::read;
use crate::workload::TraceReplay;

/// A scenario that holds together.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The modelled drive.
    pub drive: Drive,
    /// How pollers are shared, and what their code costs.
    pub host: Host,
    /// The policies to run, one after another; at least one, no two the same.
    pub policies: Vec<LabSettings>,
    /// How long, and from which seed.
    pub run: Run,
    /// In the file's order, copies spelled out; 1 to [`TENANTS_MAX`](config::TENANTS_MAX), names unique.
    pub tenants: Vec<ScenarioTenant>,
    /// What goes wrong, in the file's order.
    pub faults: Vec<Fault>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Problem>,
    pub(crate) policy_mark: Option<Range<usize>>,
    /// One for each fault.
    pub(crate) fault_marks: Vec<Range<usize>>,
    pub(crate) text: Text,
}

/// The modelled drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// Which.
    pub profile: Profile,
    /// Its size; tenants' disks follow one another on it.
    pub size: Size,
    /// HWQs in all, 1 to 1024; `None`: as many as the pollers want.
    pub queues: Option<u16>,
    /// Entries of each HWQ, 2 to 4096.
    pub queue_depth: u16,
    pub(crate) profile_mark: Option<Range<usize>>,
}

/// How long, and from which seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Not measured.
    pub warmup: Nanos,
    /// Measured; above 0.
    pub duration: Nanos,
    /// Everything random follows from it.
    pub seed: u64,
    /// Run each tenant alone too, for its slowdown.
    pub alone: bool,
}

/// One consumer with its own virtual disk: a tenant of the simulator, with what the file says beyond that.
#[derive(Debug, Clone)]
pub struct ScenarioTenant {
    /// Its disk is a multiple of [`RANGE_STEP_BYTES`](config::RANGE_STEP_BYTES), above 0. Copies are `name-1`, …
    pub tenant: sim::Tenant,
    /// The workload as a demand; `None`: it has no figures before it has run.
    pub demand: Option<Demand>,
    /// What is to be replayed: the workload is idle until this was read.
    pub trace: Option<TraceReplay>,
    /// Copies have their first's place in the file.
    pub(crate) mark: Range<usize>,
}

impl Deref for ScenarioTenant {
    type Target = sim::Tenant;

    fn deref(&self) -> &sim::Tenant {
        &self.tenant
    }
}

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong in the file, or that it can't be read.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        read_text(path, "a scenario file").and_then(|text| Self::parse(path, &text))
    }

    /// Checks a file's text. `file` is its name for messages, and paths in it begin at its directory; nothing is
    /// read.
    ///
    /// # Errors
    /// Everything that is wrong in the text.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigErrors> {
        read::check(Text { file: file.to_owned(), text: text.to_owned() })
    }

    /// The file's name, as given.
    pub fn file(&self) -> &Path {
        &self.text.file
    }

    /// The error for a profile that can't be had.
    pub fn no_profile(&self, why: impl std::fmt::Display) -> ConfigErrors {
        let remedy = "give the path of a drive profile, relative to this file's directory";
        self.problem(self.drive.profile_mark.as_ref(), format!("can't use the profile: {why}"), remedy)
    }

    /// The error for a tenant whose workload can't run, or whose trace can't be had.
    pub fn bad_tenant(&self, index: usize, why: impl std::fmt::Display) -> ConfigErrors {
        let tenant = self.tenants.get(index);
        let name = tenant.map_or("", |tenant| &tenant.name);
        let remedy = "change its workload, or its size";
        self.problem(tenant.map(|tenant| &tenant.mark), format!("tenant {name:?} can't run: {why}"), remedy)
    }

    /// The error for a tenant whose trace can't be read.
    pub fn no_trace(&self, index: usize, why: impl std::fmt::Display) -> ConfigErrors {
        let tenant = self.tenants.get(index);
        let name = tenant.map_or("", |tenant| &tenant.name);
        let remedy = "give the path of a trace that may be read, from the directory of this file";
        self.problem(tenant.map(|tenant| &tenant.mark), format!("tenant {name:?} has no trace: {why}"), remedy)
    }

    /// The error for a policy that can't work on this drive and host.
    pub fn bad_policy(&self, why: impl std::fmt::Display, remedy: &str) -> ConfigErrors {
        self.problem(self.policy_mark.as_ref(), why.to_string(), remedy)
    }

    /// The error for a fault that can't happen.
    pub fn bad_fault(&self, index: usize, why: impl std::fmt::Display, remedy: &str) -> ConfigErrors {
        self.problem(self.fault_marks.get(index), why.to_string(), remedy)
    }

    fn problem(&self, mark: Option<&Range<usize>>, what: String, remedy: &str) -> ConfigErrors {
        let mut sink = Sink::new(&self.text);
        sink.maybe_at(mark, what, remedy);
        ConfigErrors { file: self.file().to_owned(), problems: sink.into_problems() }
    }
}
