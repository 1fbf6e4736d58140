//! Values as operators write them: `4k`, `1m`, `500ms`, `70%`.

use std::str::FromStr;
use std::time::Duration;

/// Cuts a number from its unit.
fn split(text: &str) -> (&str, String) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim().to_ascii_lowercase())
}

fn scaled(number: &str, factor: u64, text: &str) -> Result<u64, String> {
    let value: u64 = number.parse().map_err(|_| format!("`{text}` does not start with a whole number"))?;
    value.checked_mul(factor).ok_or_else(|| format!("`{text}` is too large"))
}

/// Bytes: a whole number with `k`, `m`, `g`, `t` (also `kb`, `kib` and so on), powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(format!("`{text}` has an unknown unit: use k, m, g or t")),
    };
    scaled(number, factor, text)
}

/// A count: a whole number with `k` or `m`, powers of 1000.
pub fn count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit.as_str() {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        _ => return Err(format!("`{text}` has an unknown unit: use k or m")),
    };
    scaled(number, factor, text)
}

/// A time: a whole number of seconds, or with `us`, `ms`, `s`, `m`, `h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let factor_us = match unit.as_str() {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "" | "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(format!("`{text}` has an unknown unit: use us, ms, s, m or h")),
    };
    scaled(number, factor_us, text).map(Duration::from_micros)
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
        assert_eq!(bytes("4k"), Ok(4096));
        assert_eq!(bytes("1M"), Ok(1 << 20));
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("2 GiB"), Ok(2 << 30));
        assert_eq!(count("100k"), Ok(100_000));
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(percent("70%"), Ok(70));
        assert_eq!("50%".parse::<Amount>().map(|amount| amount.of(1000)), Ok(500));
        assert_eq!("4k/60:64k/40".parse::<BlockSizes>().map(|sizes| sizes.max_bytes()), Ok(65536));
    }

    #[test]
    fn says_what_is_wrong() {
        for text in ["", "k", "-1", "4x", "99999999999999999999", "9999999999t", "1.5k"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["101", "-1%", "x", "%"] {
            assert!(percent(text).is_err(), "{text}");
        }
        for text in ["4k/60", "4k/60:8k/50", "4k/60:8k", "/"] {
            assert!(text.parse::<BlockSizes>().is_err(), "{text}");
        }
        assert!(duration("1d").is_err());
    }
}
