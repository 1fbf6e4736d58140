//! Which drive it is: one that is known by name, or one that a file describes.

use std::path::{Path, PathBuf};

use io_model::Nanos;
use io_model::units::Rate;
use toml::de::DeValue;

use crate::nearest::nearest;
use crate::section::{Wrong, clip, list, text};

/// The drive that `model` imitates, and where a policy's defaults come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Profile {
    /// A built-in profile.
    BuiltIn(BuiltIn),
    /// A profile in TOML. The builder of the drive model reads and checks its text.
    File(PathBuf),
}

/// A drive with known figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuiltIn {
    /// Intel Optane P5800X.
    P5800x,
    /// Samsung PM1735.
    Pm1735,
    /// Intel DC P3520.
    P3520,
    /// Intel DC P3700.
    P3700,
    /// Samsung SM1715.
    Sm1715,
    /// Samsung PM1725a.
    Pm1725a,
    /// Samsung 970 Pro.
    Pro970,
}

/// What the `lpns` policy must know about a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// R: 4 KiB random writes per second that the drive sustains.
    pub rate_iops: Rate,
    /// L_h: the latency of a command that finds the drive idle; of the slowest kind.
    pub min_latency: Nanos,
    /// What a guest alone on the drive sees for a 4 KiB read at queue depth 1. No target below it can be kept.
    pub alone_latency: Nanos,
}

impl BuiltIn {
    pub(crate) const ALL: [(&'static str, Self); 7] = [
        ("p5800x", Self::P5800x),
        ("pm1735", Self::Pm1735),
        ("p3520", Self::P3520),
        ("p3700", Self::P3700),
        ("sm1715", Self::Sm1715),
        ("pm1725a", Self::Pm1725a),
        ("970pro", Self::Pro970),
    ];

    /// The drive that is assumed where nobody names one.
    pub(crate) const DEFAULT: Self = Self::P5800x;

    /// Every one of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(_, drive)| drive)
    }

    /// As a file names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::P5800x => "p5800x",
            Self::Pm1735 => "pm1735",
            Self::P3520 => "p3520",
            Self::P3700 => "p3700",
            Self::Sm1715 => "sm1715",
            Self::Pm1725a => "pm1725a",
            Self::Pro970 => "970pro",
        }
    }

    /// The drive's figures. Those of the P5800X and the PM1735 are printed (LPNS §5.1, §5.5, Fig. 2). For the
    /// others R is what the write buffer drains, L_h a lone 4 KiB read as a guest sees it (P3520: FairNVMe Table 2;
    /// P3700: reviews; else the sum of the drive model's stages and the host's 4.5 µs).
    pub fn figures(self) -> Figures {
        let figures = |rate_iops, min_latency_ns, alone_ns| Figures {
            rate_iops: Rate(rate_iops),
            min_latency: Nanos(min_latency_ns),
            alone_latency: Nanos(alone_ns),
        };
        match self {
            Self::P5800x => figures(800_000, 11_050, 11_900),
            Self::Pm1735 => figures(200_000, 71_900, 71_900),
            Self::P3520 => figures(288_000, 99_940, 99_940),
            Self::P3700 => figures(175_000, 78_000, 78_000),
            Self::Sm1715 => figures(130_000, 103_600, 103_600),
            Self::Pm1725a => figures(180_000, 92_700, 92_700),
            Self::Pro970 => figures(690_000, 68_100, 68_100),
        }
    }
}

impl Profile {
    /// The drive that is assumed where nobody names one.
    pub const DEFAULT: Self = Self::BuiltIn(BuiltIn::DEFAULT);

    /// As a file names it.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn(drive) => drive.name().to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Its figures; `None` for a file, whose figures follow from what it says.
    pub fn figures(&self) -> Option<Figures> {
        match self {
            Self::BuiltIn(drive) => Some(drive.figures()),
            Self::File(_) => None,
        }
    }
}

/// A profile's name, or a path: relative to the directory of `file`.
pub fn profile(file: &Path) -> impl Fn(&DeValue<'_>) -> Result<Profile, Wrong> + '_ {
    move |value| {
        let found = text(value)?;
        if let Some((_, drive)) = BuiltIn::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(&found)) {
            return Ok(Profile::BuiltIn(drive));
        }
        if found.contains('/') || found.ends_with(".toml") {
            return beside(file, &found).map(Profile::File);
        }
        let names: Vec<&str> = BuiltIn::ALL.iter().map(|(name, _)| *name).collect();
        let remedy = match nearest(&found, &names) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("expected {}; or the path of a profile, such as \"drives/mine.toml\"", list(&names)),
        };
        Err(Wrong { what: format!("is {:?}", clip(&found)), remedy })
    }
}

/// The path that a file names, from its own directory.
pub fn beside(file: &Path, named: &str) -> Result<PathBuf, Wrong> {
    if named.is_empty() || named.contains('\0') {
        return Err(Wrong { what: "is no path".into(), remedy: "write the path of a file".into() });
    }
    // Through its components: `./x` is shown as `x`.
    Ok(file.parent().unwrap_or(Path::new("")).join(named).components().collect())
}
