//! Sizes, times and rates as an operator writes them: in files and on the command line.
//!
//! All are decimal numbers with a unit, without rounding: `1.5GiB` is a size, `0.3B` is not. A time is [`Nanos`],
//! written `"50us"`, `"11.05us"`, `"10ms"`, `"1s"`; units ns, us (µs), ms, s. Where a program takes fio's words,
//! `from_fio` reads them.

use std::fmt;
use std::str::FromStr;

use crate::Nanos;

/// Why a size, a time or a rate can't be read. Says what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitError(String);

/// Bytes. Written `4096`, `"512MiB"` (IEC: KiB, MiB, GiB, TiB; steps of 1024) or `"1TB"` (SI: kB, MB,
/// GB, TB; steps of 1000). At most 2^63 - 1, the largest file offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Size(pub u64);

/// Commands per second. Written `800000`, `"800k"` or `"1.2M"`; units k (1000) and M (1000000).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(pub u64);

/// Bytes per second. Written as a [`Size`] with or without `/s`: `"200MiB/s"`, `"1GB/s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bandwidth(pub u64);

const IEC: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
const SI: [(&str, u64); 5] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000), ("KB", 1_000)];
const SPANS: [(&str, u64); 5] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("µs", 1_000), ("ns", 1)];
const RATES: [(&str, u64); 2] = [("M", 1_000_000), ("k", 1_000)];

/// fio's longer times.
const LONG_SPANS: [(&str, u64); 4] =
    [("sec", 1_000_000_000), ("m", 60_000_000_000), ("min", 60_000_000_000), ("h", 3_600_000_000_000)];

const SIZE_EXPECTED: &str = "a size such as \"16GiB\", \"512MiB\", \"1TB\" or 4096 (bytes)";
const SPAN_EXPECTED: &str = "a time such as \"50us\", \"10ms\" or \"1s\"";
const FIO_SIZE_EXPECTED: &str = "a size such as \"4k\", \"16m\" or \"2GiB\" (k, m and g are steps of 1024, as in fio)";
const FIO_SPAN_EXPECTED: &str = "a time such as \"500ms\", \"30s\", \"2m\" or 30 (seconds)";
const BANDWIDTH_EXPECTED: &str = "a bandwidth such as \"200MiB/s\" or \"1GiB/s\"";
const RATE_EXPECTED: &str = "a rate in commands per second such as \"800k\", \"1.2M\" or 800000";

impl std::error::Error for UnitError {}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text);
        let factor = match unit {
            "" | "B" => 1,
            "K" | "M" | "G" | "T" | "k" | "m" | "g" | "t" => {
                let letter = unit.to_ascii_uppercase();
                let hint = format!("`{unit}` can be read in two ways: write {letter}iB (1024) or {letter}B (1000)");
                return Err(UnitError(hint));
            }
            "PiB" | "EiB" | "PB" | "EB" => {
                return Err(UnitError(format!("`{unit}` is too large: the largest units are TiB and TB")));
            }
            _ => *lookup(unit, IEC.iter().chain(&SI)).ok_or_else(|| expected(SIZE_EXPECTED))?,
        };
        let bytes = scale(number, factor).ok_or_else(|| expected(SIZE_EXPECTED))?;
        if bytes > i64::MAX as u64 {
            return Err(UnitError("a size is at most 2^63 - 1 bytes".into()));
        }
        Ok(Self(bytes))
    }
}

impl FromStr for Nanos {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text);
        let factor = *lookup(unit, SPANS.iter()).ok_or_else(|| expected(SPAN_EXPECTED))?;
        scale(number, factor).map(Self).ok_or_else(|| expected(SPAN_EXPECTED))
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        prefixed(text).map(Self).ok_or_else(|| expected(RATE_EXPECTED))
    }
}

impl FromStr for Bandwidth {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let size = text.trim().strip_suffix("/s").unwrap_or(text).parse::<Size>();
        size.map(|size| Self(size.0)).map_err(|error| match error.0.strip_prefix("expected") {
            Some(_) => expected(BANDWIDTH_EXPECTED),
            None => error,
        })
    }
}

impl Size {
    /// Rounded up to a multiple of `step_bytes`, or `None` past the largest size.
    pub fn round_up(self, step_bytes: u64) -> Option<Self> {
        self.0.checked_next_multiple_of(step_bytes).filter(|b| *b <= i64::MAX as u64).map(Self)
    }

    /// A size as fio reads it: `4k`, `1M`; k, m, g and t are steps of 1024. Other units work too.
    ///
    /// # Errors
    /// It is no size.
    pub fn from_fio(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        let letter = text.chars().last().filter(|last| "kKmMgGtT".contains(*last));
        let binary = letter.and_then(|letter| Some((text.strip_suffix(letter)?, letter.to_ascii_uppercase())));
        let size = binary.map_or_else(|| text.parse(), |(number, letter)| format!("{number}{letter}iB").parse());
        size.map_err(|_| expected(FIO_SIZE_EXPECTED))
    }
}

impl Bandwidth {
    /// Converts from MiB per second; saturates.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Whole MiB per second.
    pub const fn as_mib(self) -> u64 {
        self.0 >> 20
    }
}

impl Nanos {
    /// A time as fio reads it: whole seconds where there is no unit, and with `m` and `h` too.
    ///
    /// # Errors
    /// It is no time.
    pub fn from_fio(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text);
        let unit = if unit.is_empty() { "s" } else { unit };
        let factor = lookup(unit, SPANS.iter().chain(&LONG_SPANS)).ok_or_else(|| expected(FIO_SPAN_EXPECTED))?;
        scale(number, *factor).map(Self).ok_or_else(|| expected(FIO_SPAN_EXPECTED))
    }
}

/// A number of things: whole, or with k (1000) or M (1000000).
///
/// # Errors
/// It is no such number.
pub fn count(text: &str) -> Result<u64, UnitError> {
    prefixed(text).ok_or_else(|| expected("a number such as \"800k\", \"1.2M\" or 800000"))
}

fn prefixed(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let factor = if unit.is_empty() { Some(&1) } else { lookup(unit, RATES.iter()) };
    factor.and_then(|factor| scale(number, *factor))
}

/// Exact: the largest unit that leaves a whole number, so that the text reads back as the same size.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // IEC first: drives are cut into binary sizes. SI only for whole MB and more, where it says more than KiB.
        let large_si = SI.iter().filter(|(_, factor)| *factor >= 1_000_000);
        write_exact(f, self.0, IEC.iter().filter(|(_, x)| *x >= 1 << 20).chain(large_si).chain(&IEC), "")
    }
}

/// Exact, such as `11.05us`: it reads back as the same time.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Fractions of a microsecond read better than thousands of nanoseconds.
            ns if ns >= 1_000 && ns % 1_000 != 0 && ns < 1_000_000 => write!(f, "{}us", self.as_micros_f64()),
            ns => write_exact(f, ns, SPANS.iter(), "ns"),
        }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Size(self.0))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_exact(f, self.0, RATES.iter(), "")
    }
}

fn write_exact<'a>(
    f: &mut fmt::Formatter<'_>,
    value: u64,
    units: impl Iterator<Item = &'a (&'a str, u64)>,
    smallest: &str,
) -> fmt::Result {
    for (unit, factor) in units {
        if value != 0 && value.is_multiple_of(*factor) {
            return write!(f, "{}{unit}", value / factor);
        }
    }
    write!(f, "{value}{smallest}")
}

fn expected(what: &str) -> UnitError {
    UnitError(format!("expected {what}"))
}

fn lookup<'a>(unit: &str, mut units: impl Iterator<Item = &'a (&'a str, u64)>) -> Option<&'a u64> {
    units.find(|(name, _)| *name == unit).map(|(_, factor)| factor)
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.trim(), unit.trim())
}

/// `number` times `factor` where that is a whole number that fits. `number` is digits with at most one point.
fn scale(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Nine digits behind the point are finer than any unit here, and keep the products inside of u128.
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 || whole.len() > 20 {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let digits: u128 = fraction.parse().ok()?;
    let denominator = 10u128.pow(fraction.len() as u32);
    let part = digits * u128::from(factor);
    if !part.is_multiple_of(denominator) {
        return None;
    }
    u64::try_from(whole.checked_mul(u128::from(factor))?.checked_add(part / denominator)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_bytes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("512MiB", 512 << 20),
            ("16GiB", 16 << 30),
            ("16 GiB", 16 << 30),
            ("1TB", 1_000_000_000_000),
            ("1.5KiB", 1536),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_what_was_expected() {
        for text in ["", "GiB", "-1", "1.2.3MiB", "1e9", "16gib", ".5GiB", "5.GiB", "0.3B", "99999999999999999999999"] {
            let error = text.parse::<Size>().expect_err(text);
            assert!(error.to_string().contains("\"16GiB\""), "{text}: {error}");
        }
        assert_eq!(
            "8g".parse::<Size>().expect_err("8g").0,
            "`g` can be read in two ways: write GiB (1024) or GB (1000)"
        );
        assert_eq!("8EiB".parse::<Size>().expect_err("8EiB").0, "`EiB` is too large: the largest units are TiB and TB");
        assert_eq!("9223372036854775808".parse::<Size>().expect_err("2^63").0, "a size is at most 2^63 - 1 bytes");
    }

    #[test]
    fn spans_and_rates_read_exactly() {
        for (text, ns) in
            [("50us", 50_000), ("11.05us", 11_050), ("3µs", 3_000), ("10ms", 10_000_000), ("1s", 1_000_000_000)]
        {
            assert_eq!(text.parse::<Nanos>(), Ok(Nanos(ns)), "{text}");
        }
        for (text, iops) in [("800k", 800_000), ("1.2M", 1_200_000), ("17", 17)] {
            assert_eq!(text.parse::<Rate>(), Ok(Rate(iops)), "{text}");
        }
        assert!("50".parse::<Nanos>().is_err(), "a time needs a unit");
        assert!("1.0005k".parse::<Rate>().is_err(), "half a command");
    }

    #[test]
    fn fios_words_are_read() {
        for (text, bytes) in [("4k", 4096), ("1M", 1 << 20), ("512", 512), ("2 GiB", 2 << 30), ("1.5k", 1536)] {
            assert_eq!(Size::from_fio(text), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "k", "-1", "4x", "4kb", "99999999999999999999", "9999999999t"] {
            assert!(Size::from_fio(text).is_err(), "{text}");
        }
        for (text, ms) in [("10", 10_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(Nanos::from_fio(text), Ok(Nanos::from_millis(ms)), "{text}");
        }
        assert!(Nanos::from_fio("1d").is_err());
        assert_eq!((count("100k"), count("17")), (Ok(100_000), Ok(17)));
        assert!(count("100g").is_err());
    }

    #[test]
    fn what_is_shown_reads_back() {
        for bytes in [0, 1, 512, 4096, 1 << 20, 1_000_000, 3 << 30, 1_500_000_000_000, 17_179_869_185] {
            assert_eq!(Size(bytes).to_string().parse::<Size>(), Ok(Size(bytes)));
        }
        for ns in [1, 999, 1_000, 11_050, 50_000, 1_000_001, 500_000_000] {
            assert_eq!(Nanos(ns).to_string().parse::<Nanos>(), Ok(Nanos(ns)));
        }
        assert_eq!(Nanos(11_050).to_string(), "11.05us");
        assert_eq!(Size(64_000_000_000).to_string(), "64GB");
        assert_eq!(Rate(800_000).to_string(), "800k");
    }
}
