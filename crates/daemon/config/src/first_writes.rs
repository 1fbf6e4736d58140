//! The part of a thin disk's writes that wait for a piece.

use std::fmt;

use toml::de::DeValue;

use crate::section::{Wrong, kind};

/// Writes of a thin disk to pieces that it does not have for itself yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstWrites {
    /// Their part of the disk's writes, in 1/10,000: 0 to 10,000.
    pub of_10_000: u32,
    /// Snapshots or clones share these pieces.
    pub are_shared: bool,
}

/// The word behind a percentage.
const SHARED: &str = "shared";

impl FirstWrites {
    pub(crate) fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let wrong = |what: String| Wrong { what, remedy: "write \"2 %\", or \"2 % shared\"".to_owned() };
        let text = value.as_str().ok_or_else(|| wrong(format!("is {}", kind(value))))?;
        let mut words = text.split_whitespace().collect::<Vec<_>>();
        let are_shared = words.pop_if(|last| *last == SHARED).is_some();
        let percent = words.concat().strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
        match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
            Some(percent) => Ok(Self { of_10_000: (percent * 100.0).round() as u32, are_shared }),
            None => Err(wrong(format!("is {text:?}"))),
        }
    }
}

impl fmt::Display for FirstWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = if self.are_shared { " shared" } else { "" };
        write!(f, "{} %{shared}", f64::from(self.of_10_000) / 100.0)
    }
}
