//! The papers, and the numbers that they print.

use serde::{Serialize, Serializer};

/// A paper whose experiments are repeated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paper {
    /// A promised latency beside noisy neighbours.
    Lpns,
    /// Fair queues by tenant state.
    FairNvme,
    /// The drive's own arbitration.
    Qos,
    /// Many queues to a virtual machine.
    Vbmq,
    /// Ways to give a cloud's virtual machines a drive.
    Cloud,
    /// No paper: our own policy beside the others.
    Policy,
}

impl Paper {
    /// All of them, in the report's order.
    pub const ALL: [Self; 6] = [Self::Lpns, Self::FairNvme, Self::Qos, Self::Vbmq, Self::Cloud, Self::Policy];

    /// As a command line or a row names it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Lpns => "lpns",
            Self::FairNvme => "fairnvme",
            Self::Qos => "qos",
            Self::Vbmq => "vbmq",
            Self::Cloud => "cloud",
            Self::Policy => "policy",
        }
    }

    /// As its readers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lpns => "LPNS",
            Self::FairNvme => "FairNVMe",
            Self::Qos => "QoS for NVMe SSDs",
            Self::Vbmq => "VBMq",
            Self::Cloud => "NVMe for cloud VMs",
            Self::Policy => "Evenkeel's own policy",
        }
    }

    /// Title and where it appeared.
    pub fn citation(self) -> &'static str {
        match self {
            Self::Lpns => {
                "LPNS: Scalable and Latency-Predictable Local Storage Virtualization for Unpredictable NVMe SSDs in \
                 Clouds. USENIX ATC 2023"
            }
            Self::FairNvme => {
                "State-driven fairness control for efficient I/O queue scheduling in NVMe virtualization. \
                 Future Generation Computer Systems, 2025"
            }
            Self::Qos => "Analyzing, Modeling, and Provisioning QoS for NVMe SSDs. UCC 2018",
            Self::Vbmq => "VBMq: Pursuit Bare-metal Performance by Embracing Block I/O Parallelism in Virtualization",
            Self::Cloud => "NVMe Virtualization for Cloud Virtual Machines. ICPE 2022",
            Self::Policy => {
                "No paper's: `evenkeel` beside the other policies, and beside the best that could be set by hand"
            }
        }
    }
}

impl Serialize for Paper {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}

/// How sure we are that the paper says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Printed in the paper.
    Printed,
    /// Follows from what is printed.
    Derived,
    /// Printed, but not legible beyond doubt in the copy that was read. Shown, never judged against.
    Doubtful,
}

/// A number that a paper prints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Printed {
    /// The number.
    pub value: f64,
    /// How sure.
    pub mark: Mark,
}

/// A printed number.
pub const fn printed(value: f64) -> Printed {
    Printed { value, mark: Mark::Printed }
}

/// A number that follows from printed ones.
pub const fn derived(value: f64) -> Printed {
    Printed { value, mark: Mark::Derived }
}

/// A number that may have been misread.
pub const fn doubtful(value: f64) -> Printed {
    Printed { value, mark: Mark::Doubtful }
}
