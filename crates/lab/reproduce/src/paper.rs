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
        &self.words().name
    }

    /// Title and where it appeared.
    pub fn citation(self) -> &'static str {
        &self.words().citation
    }

    /// The words of its figures.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Lpns => include_str!("papers/lpns.toml"),
            Self::FairNvme => include_str!("papers/fairnvme.toml"),
            Self::Qos => include_str!("papers/qos.toml"),
            Self::Vbmq => include_str!("papers/vbmq.toml"),
            Self::Cloud => include_str!("papers/cloud.toml"),
            Self::Policy => include_str!("papers/policy.toml"),
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
