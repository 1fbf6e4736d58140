//! What a drive is made of, and the drives that we know.
//!
//! A profile is a TOML file; `profiles/` holds the built-in ones, which also say where each of their numbers comes from
//! ([`Profile::basis`]): **\[P\]** printed in the source, **\[D\]** derived from printed numbers, **\[F\]** fitted with
//! a queueing model or assumed: a starting point to confirm, not evidence. Profiles that `evenkeel calibrate` wrote
//! mark what they measured with **\[M\]**.
//!
//! Sources: the LPNS paper (USENIX ATC '23: P5800X and PM1735), the FairNVMe paper (FGCS 2025: DC P3520),
//! the VBMq paper (SM1715), published reviews (DC P3700), data sheets (PM1725a; link rates), and the configuration of
//! the emulator NVMeVirt (USENIX FAST '23: 970 Pro).
//!
//! Papers print latencies as a host or guest sees them. The LPNS paper's breakdown for the P5800X gives the
//! host's part of an 11.9 µs read as 37.5 % \[P\], 4.46 µs \[D\]. That much is taken off every latency of the paper's
//! drives, because the model's user pays it for real.

mod read;
mod table;
mod write;

use std::sync::{Arc, LazyLock};

use arbitration::Arbitration;
pub use table::ProfileError;

/// How pieces of commands find their unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// By address: consecutive stripes on different units, groups of them rotated by a hash. Random
    /// addresses collide, as on real flash.
    Hashed,
    /// The unit that is free first.
    Pooled,
}

/// What happens to writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// They occupy units as reads do and are finished when the medium has them.
    InPlace {
        /// Time in a unit of the first 4 KiB of a piece.
        write_ns: u64,
        /// From when the medium has it to its acknowledgement, beyond the pipeline; occupies nothing.
        ack_ns: u64,
    },
    /// They are finished when a buffer has them, which drains at a known rate without disturbing reads.
    Buffered {
        /// From a command's admission to the buffer to its acknowledgement.
        ack_ns: u64,
        /// Capacity.
        buffer_bytes: u64,
        /// Draining a command's first 4 KiB; every further 4 KiB of it drains at the write link's rate. One
        /// command at a time, so 1 s over this is the sustained rate of 4 KiB random writes.
        drain_ns: u64,
    },
    /// They are finished when a buffer has them, which is programmed page by page into the dies that reads use too.
    Programmed {
        /// From a command's admission to the buffer to its acknowledgement, for its first 4 KiB.
        ack_ns: u64,
        /// The time for every further 4 KiB.
        ack_further_ns: u64,
        /// Capacity; one page at least.
        buffer_bytes: u64,
        /// The flash behind the buffer.
        nand: Nand,
    },
}

/// Flash chips: the units are dies, which share channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nand {
    /// Channels; die `i` is on channel `i` modulo this.
    pub channels: u32,
    /// Rate of one channel.
    pub channel_mb_s: u32,
    /// What a die programs at a time.
    pub page_bytes: u64,
    /// Time in a die to program a page.
    pub program_ns: u64,
    /// `true`: a read waits for what its die does. `false`: it suspends a program or an erasure, up to
    /// [`READS_PER_PROGRAM`](crate::READS_PER_PROGRAM) reads for each.
    pub reads_wait_for_programs: bool,
    /// Pages that are erased together.
    pub pages_per_block: u32,
    /// Time in a die to erase a block.
    pub erase_ns: u64,
}

/// Garbage collection in its steady state under uniformly random overwrites.
///
/// No map is kept. The write amplification follows from the spare room in closed form, for a victim that is the oldest
/// block: the part p of it that is still valid obeys p = exp(−α(1 − p)) with α = physical over used capacity, and WA is
/// 1 / (1 − p) (Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR '12). A drive that picks the emptiest
/// block does a little better; sequential or skewed writes do much better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gc {
    /// Whether it is modelled.
    pub enabled: bool,
    /// Physical capacity beyond the user's, in percent of the user's.
    pub over_provisioning_percent: u32,
    /// The part of the user's capacity that holds data, in percent.
    pub utilization_percent: u32,
}

impl Gc {
    /// Pages programmed for each page that the host writes, at least 1.
    pub fn write_amplification(&self) -> f64 {
        let alpha = f64::from(self.over_provisioning_percent + 100) / f64::from(self.utilization_percent.clamp(1, 100));
        // From 0 upwards the iteration approaches the smaller root; 1 is always the other one.
        let mut valid: f64 = 0.0;
        for _ in 0..10_000 {
            valid = (-alpha * (1.0 - valid)).exp();
        }
        1.0 / (1.0 - valid)
    }
}

/// What encryption costs the drive's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cipher {
    /// A poller's time to encrypt or decrypt a sector of 512 bytes, copies included.
    pub sector_512_ns: u64,
    /// The time for a sector of 4096 bytes.
    pub sector_4096_ns: u64,
}

impl Default for Cipher {
    /// \[M\] measured by `evenkeel calibrate` on an AMD EPYC, two virtual CPUs with others at work.
    fn default() -> Self {
        Self { sector_512_ns: 250, sector_4096_ns: 1_100 }
    }
}

/// Where one parameter comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Basis {
    /// The parameter, as [`Profile::parameters`] names it.
    pub parameter: Box<str>,
    /// For people; begins with its mark.
    pub text: Box<str>,
}

/// A drive's parameters. Times in ns, sizes in bytes, rates in MB/s (10⁶ bytes). Cheap to clone.
///
/// [`Profile::from_toml`] checks all ranges. For a value built in code, what is 0 and may not be counts as 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What people call it.
    pub name: Arc<str>,
    /// What it is; may be empty.
    pub description: Arc<str>,
    /// Parallel units, at least 1; dies for [`Writes::Programmed`].
    pub units: u32,
    /// How pieces find their unit.
    pub placement: Placement,
    /// Address range that lies on one unit. A multiple of 4096.
    pub stripe_bytes: u64,
    /// Time in a unit for the first 4 KiB of a read piece.
    pub read_ns: u64,
    /// Time in a unit for every further 4 KiB of a piece.
    pub further_ns: u64,
    /// What happens to writes.
    pub writes: Writes,
    /// Garbage collection; `None` where the medium needs none or nothing is known.
    pub gc: Option<Gc>,
    /// The controller's time for each command, one after another.
    pub controller_ns: u64,
    /// Latency that every command but a buffered write sees and that occupies nothing.
    pub pipeline_ns: u64,
    /// Rate of the link out of the drive.
    pub link_read_mb_s: u32,
    /// Rate of the link into the drive.
    pub link_write_mb_s: u32,
    /// From which HWQ the next command is fetched.
    pub arbitration: Arbitration,
    /// Commands fetched and not finished, at most. At least 1.
    pub window: u32,
    /// What encryption costs; `None` where it was not measured on the drive's host.
    pub cipher: Option<Cipher>,
    /// Where the parameters come from, in the order of the file.
    pub basis: Arc<[Basis]>,
}

/// The built-in profiles' files.
const FILES: [&str; 7] = [
    include_str!("../../profiles/p5800x.toml"),
    include_str!("../../profiles/pm1735.toml"),
    include_str!("../../profiles/p3520.toml"),
    include_str!("../../profiles/p3700.toml"),
    include_str!("../../profiles/sm1715.toml"),
    include_str!("../../profiles/pm1725a.toml"),
    include_str!("../../profiles/970pro.toml"),
];

/// Read once: the files are part of the program, and a test reads them all.
static BUILT_IN: LazyLock<[Profile; FILES.len()]> =
    LazyLock::new(|| FILES.map(|text| Profile::from_toml(text).expect("a built-in profile is well-formed")));

impl Profile {
    /// Reads a profile. Every parameter is required but `description`, `gc`, `cipher` and `basis`; unknown keys are
    /// refused.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        read::profile(text)
    }

    /// The text that [`Profile::from_toml`] reads this profile from, after `heading` as a comment.
    pub fn to_toml(&self, heading: &str) -> String {
        write::toml(self, heading)
    }

    /// All built-in profiles.
    pub fn built_in() -> &'static [Self] {
        &*BUILT_IN
    }

    /// The names of all built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::built_in().iter().map(|profile| &*profile.name)
    }

    /// The built-in profile of that [name](Profile::name), in any case.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::built_in().iter().find(|profile| profile.name.eq_ignore_ascii_case(name)).cloned()
    }

    /// The TOML text of a built-in profile, as a start for one's own.
    pub fn text_of(name: &str) -> Option<&'static str> {
        let index = Self::names().position(|known| known.eq_ignore_ascii_case(name))?;
        FILES.get(index).copied()
    }

    /// Intel Optane P5800X, 400 GB.
    pub fn p5800x() -> Self {
        BUILT_IN[0].clone()
    }

    /// Samsung PM1735, 1.6 TB.
    pub fn pm1735() -> Self {
        BUILT_IN[1].clone()
    }

    /// Intel DC P3520.
    pub fn p3520() -> Self {
        BUILT_IN[2].clone()
    }

    /// Where a parameter comes from, if the profile says so.
    pub fn basis(&self, parameter: &str) -> Option<&str> {
        self.basis.iter().find(|basis| &*basis.parameter == parameter).map(|basis| &*basis.text)
    }

    /// A poller's time for 4 KiB of a disk that is encrypted in sectors of 512 bytes, or else of 4096.
    pub fn cipher_ns(&self, sector_bytes: u32) -> u64 {
        let Cipher { sector_512_ns, sector_4096_ns } = self.cipher.unwrap_or_default();
        if sector_bytes == 512 { 8 * sector_512_ns } else { sector_4096_ns }
    }

    /// Garbage collection, if it is modelled.
    pub(crate) fn active_gc(&self) -> Option<Gc> {
        self.gc.filter(|gc| gc.enabled)
    }

    /// Pages programmed for each page of the host; 1 where no garbage is collected.
    pub fn write_amplification(&self) -> f64 {
        self.active_gc().map_or(1.0, |gc| gc.write_amplification())
    }

    /// Every parameter as it is named in the file, with its value; for reports.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("units", self.units.to_string()),
            ("placement", read::word_of(&read::PLACEMENTS, self.placement)),
            ("stripe_bytes", self.stripe_bytes.to_string()),
            ("read_ns", self.read_ns.to_string()),
            ("further_ns", self.further_ns.to_string()),
            ("controller_ns", self.controller_ns.to_string()),
            ("pipeline_ns", self.pipeline_ns.to_string()),
            ("link_read_mb_s", self.link_read_mb_s.to_string()),
            ("link_write_mb_s", self.link_write_mb_s.to_string()),
            ("window", self.window.to_string()),
        ];
        all.extend(self.arbitration_parameters());
        all.extend(self.write_parameters());
        if let Some(gc) = self.gc {
            all.push(("gc.enabled", gc.enabled.to_string()));
            all.push(("gc.over_provisioning_percent", gc.over_provisioning_percent.to_string()));
            all.push(("gc.utilization_percent", gc.utilization_percent.to_string()));
        }
        if let Some(Cipher { sector_512_ns, sector_4096_ns }) = self.cipher {
            all.push(("cipher.sector_512_ns", sector_512_ns.to_string()));
            all.push(("cipher.sector_4096_ns", sector_4096_ns.to_string()));
        }
        all
    }

    fn arbitration_parameters(&self) -> Vec<(&'static str, String)> {
        let weights = |high: u32, medium: u32, low: u32| {
            [("weights.high", high), ("weights.medium", medium), ("weights.low", low)]
        };
        let (word, burst, weights) = match self.arbitration {
            Arbitration::RoundRobin { burst } => ("rr", Some(burst), None),
            Arbitration::WeightedRoundRobin { burst, weights: w } => {
                ("wrr", Some(burst), Some(weights(w.high.into(), w.medium.into(), w.low.into())))
            }
            Arbitration::DeficitRoundRobin { quanta: q } => ("drr", None, Some(weights(q.high, q.medium, q.low))),
        };
        let numbers = burst.map(|burst| ("burst", burst)).into_iter().chain(weights.into_iter().flatten());
        let numbers = numbers.map(|(name, number)| (name, number.to_string()));
        std::iter::once(("arbitration", word.to_owned())).chain(numbers).collect()
    }

    fn write_parameters(&self) -> Vec<(&'static str, String)> {
        let (word, numbers) = match self.writes {
            Writes::InPlace { write_ns, ack_ns } => {
                ("in-place", vec![("writes.write_ns", write_ns), ("writes.ack_ns", ack_ns)])
            }
            Writes::Buffered { ack_ns, buffer_bytes, drain_ns } => {
                let numbers =
                    [("writes.ack_ns", ack_ns), ("writes.buffer_bytes", buffer_bytes), ("writes.drain_ns", drain_ns)];
                ("buffered", numbers.to_vec())
            }
            Writes::Programmed { ack_ns, ack_further_ns, buffer_bytes, nand } => {
                let numbers = [
                    ("writes.ack_ns", ack_ns),
                    ("writes.ack_further_ns", ack_further_ns),
                    ("writes.buffer_bytes", buffer_bytes),
                    ("nand.channels", nand.channels.into()),
                    ("nand.channel_mb_s", nand.channel_mb_s.into()),
                    ("nand.page_bytes", nand.page_bytes),
                    ("nand.program_ns", nand.program_ns),
                    ("nand.pages_per_block", nand.pages_per_block.into()),
                    ("nand.erase_ns", nand.erase_ns),
                ];
                ("programmed", numbers.to_vec())
            }
        };
        let mut all = vec![("writes.kind", word.to_owned())];
        all.extend(numbers.into_iter().map(|(name, number)| (name, number.to_string())));
        if let Writes::Programmed { nand, .. } = self.writes {
            all.push(("nand.reads_wait_for_programs", nand.reads_wait_for_programs.to_string()));
        }
        all
    }
}
