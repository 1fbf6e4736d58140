//! Values as operators write them: `4k`, `1m`, `500ms`, `70%`.

use std::str::FromStr;
use std::time::Duration;

use io_model::Nanos;
use io_model::units::{self, Size};

/// Bytes, as fio reads them: `k`, `m`, `g`, `t` are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    Size::from_fio(text).map(|size| size.0).map_err(|error| error.to_string())
}

/// A count, with `k` or `M`: powers of 1000.
pub fn count(text: &str) -> Result<u64, String> {
    units::count(text).map_err(|error| error.to_string())
}

/// A time, as fio reads it: of seconds where there is no unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    Nanos::from_fio(text).map(|time| Duration::from_nanos(time.0)).map_err(|error| error.to_string())
}

/// Percent: 0 to 100, with or without `%`.
pub fn percent(text: &str) -> Result<u8, String> {
    let number = text.trim().trim_end_matches('%');
    match number.parse() {
        Ok(value) if value <= 100 => Ok(value),
        _ => Err(format!("`{text}` is not a share between 0% and 100%")),
    }
}

/// A part of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// That many bytes.
    Bytes(u64),
    /// That share of the whole.
    Percent(u8),
}

impl Amount {
    /// In bytes, of a whole of `whole_bytes`.
    pub fn of(self, whole_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (u128::from(whole_bytes) * u128::from(percent) / 100) as u64,
        }
    }
}

impl FromStr for Amount {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim_end().ends_with('%') { percent(text).map(Self::Percent) } else { bytes(text).map(Self::Bytes) }
    }
}

/// Block sizes and the share of commands that have each: `4k`, or `4k/60:64k/40`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSizes(Vec<(u64, u8)>);

impl BlockSizes {
    /// One size for all.
    pub fn fixed(size_bytes: u64) -> Self {
        Self(vec![(size_bytes, 100)])
    }

    /// Sizes in bytes with their shares in percent, which sum up to 100.
    pub fn shares(&self) -> &[(u64, u8)] {
        &self.0
    }

    /// The smallest size.
    pub fn min_bytes(&self) -> u64 {
        self.0.iter().map(|share| share.0).min().unwrap_or(0)
    }

    /// The largest size.
    pub fn max_bytes(&self) -> u64 {
        self.0.iter().map(|share| share.0).max().unwrap_or(0)
    }
}

impl FromStr for BlockSizes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains('/') {
            return bytes(text).map(Self::fixed);
        }
        let share = |part: &str| -> Result<(u64, u8), String> {
            let (size, share) = part.split_once('/').ok_or_else(|| format!("`{part}` lacks its share: 4k/60"))?;
            Ok((bytes(size)?, percent(share)?))
        };
        let shares: Vec<_> = text.split(':').map(share).collect::<Result<_, _>>()?;
        let sum: u32 = shares.iter().map(|share| u32::from(share.1)).sum();
        if sum != 100 {
            return Err(format!("the shares of `{text}` sum up to {sum}%, not 100%"));
        }
        Ok(Self(shares))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_fio_reads() {
        assert_eq!(percent("70%"), Ok(70));
        assert_eq!("50%".parse::<Amount>().map(|amount| amount.of(1000)), Ok(500));
        assert_eq!("4k/60:64k/40".parse::<BlockSizes>().map(|sizes| sizes.max_bytes()), Ok(65536));
    }

    #[test]
    fn says_what_is_wrong() {
        assert!(bytes("4x").unwrap_err().starts_with("expected a size such as"));
        for text in ["101", "-1%", "x", "%"] {
            assert!(percent(text).is_err(), "{text}");
        }
        for text in ["4k/60", "4k/60:8k/50", "4k/60:8k", "/"] {
            assert!(text.parse::<BlockSizes>().is_err(), "{text}");
        }
    }
}
