//! What is kept of each interval, and its bytes.

use policy::Percentile;

use crate::MOST_NAME_BYTES;

/// What all tenants of one drive got in one interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interval {
    /// When it began, in ms since 1970, by the clock at its end.
    pub at_unix_ms: u64,
    /// How long it was, by a clock that nobody sets.
    pub span_ms: u32,
    /// Part of that time in which the drive's pollers waited for a CPU, in a million.
    pub starved_ppm: u32,
    /// The drive.
    pub drive: String,
    /// The policy in force at its end.
    pub policy: String,
    /// Those that did something or had commands with the drive.
    pub tenants: Vec<Summary>,
}

/// What was promised to a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promise {
    /// Nothing: a share by its weight.
    #[default]
    None,
    /// As good a latency as the drive has.
    Unnamed,
    /// All but a few commands within a time.
    Target {
        /// That time, in ns.
        ns: u64,
        /// Commands of a million that may be late.
        late_ppm: u32,
    },
}

/// What one tenant got in one interval. Latencies run from the first sight of a command's doorbell to the posted
/// completion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The tenant.
    pub name: String,
    /// What was promised at the end of the interval.
    pub promise: Promise,
    /// Its weight; 0 for one that was promised something.
    pub weight: u32,
    /// Reads that completed.
    pub reads: u32,
    /// Writes that completed.
    pub writes: u32,
    /// Flushes, discards and write zeroes that completed.
    pub others: u32,
    /// Commands that the drive failed.
    pub errors: u32,
    /// Commands that took longer than the target.
    pub late: u32,
    /// Those of them that would not have, had their poller not stood still.
    pub stalled: u32,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Sum of all latencies.
    pub latency_sum_ns: u64,
    /// The part of it that passed with the drive.
    pub served_sum_ns: u64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The percentile that the target is for; the 99th without one.
    pub at_percentile_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

impl Summary {
    /// All commands that completed.
    pub fn commands(&self) -> u64 {
        u64::from(self.reads) + u64::from(self.writes) + u64::from(self.others)
    }

    /// Whether more commands were late than may be.
    pub fn misses(&self) -> bool {
        let Promise::Target { late_ppm, .. } = self.promise else { return false };
        Percentile::from_late_ppm(late_ppm).is_missed(self.late.into(), self.commands())
    }

    /// Bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }

    /// Mean latency; 0 where nothing completed.
    pub fn mean_ns(&self) -> u64 {
        self.latency_sum_ns.checked_div(self.commands()).unwrap_or(0)
    }
}

/// An event, in the words of its writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastEvent {
    /// When, in ms since 1970.
    pub at_unix_ms: u64,
    /// What: opaque here.
    pub what: Vec<u8>,
}

/// A summary without its name: seven u32 for commands, weight and class, then eight u64; what follows for a target.
pub(crate) const FIXED_BYTES: usize = 7 * 4 + 8 * 8 + OF_TARGET_BYTES;
const OF_TARGET_BYTES: usize = 4 + 8;

/// The class of a summary.
const BEST_EFFORT: u32 = 0;
const GUARANTEED_UNNAMED: u32 = 2;
const GUARANTEED: u32 = 3;

/// The bytes of an interval: fixed fields, two names, how many tenants, and those.
pub(crate) fn encode(interval: &Interval, into: &mut Vec<u8>) {
    into.extend(interval.at_unix_ms.to_le_bytes());
    into.extend(interval.span_ms.to_le_bytes());
    into.extend(interval.starved_ppm.to_le_bytes());
    put_text(&interval.drive, into);
    put_text(&interval.policy, into);
    into.extend((interval.tenants.len() as u32).to_le_bytes());
    for tenant in &interval.tenants {
        put_text(&tenant.name, into);
        let (class, target_ns) = match tenant.promise {
            Promise::None => (BEST_EFFORT, 0),
            Promise::Target { ns, .. } => (GUARANTEED, ns),
            Promise::Unnamed => (GUARANTEED_UNNAMED, 0),
        };
        let Summary { reads, writes, others, errors, late, .. } = *tenant;
        let weight = match tenant.promise {
            Promise::Target { late_ppm, .. } => late_ppm,
            Promise::None | Promise::Unnamed => tenant.weight,
        };
        for word in [class, weight, reads, writes, others, errors, late] {
            into.extend(word.to_le_bytes());
        }
        let Summary { read_bytes, write_bytes, latency_sum_ns, served_sum_ns, p50_ns, p99_ns, max_ns, .. } = *tenant;
        for word in [target_ns, read_bytes, write_bytes, latency_sum_ns, served_sum_ns, p50_ns, p99_ns, max_ns] {
            into.extend(word.to_le_bytes());
        }
        if class == GUARANTEED {
            into.extend(tenant.stalled.to_le_bytes());
            into.extend(tenant.at_percentile_ns.to_le_bytes());
        }
    }
}

/// `None`: these are not the bytes of an interval.
pub(crate) fn decode(bytes: &[u8]) -> Option<Interval> {
    let mut bytes = Bytes(bytes);
    let (at_unix_ms, span_ms, starved_ppm) = (bytes.u64()?, bytes.u32()?, bytes.u32()?);
    let (drive, policy) = (bytes.text()?, bytes.text()?);
    let tenants = (0..bytes.u32()?).map(|_| bytes.summary()).collect::<Option<Vec<_>>>()?;
    bytes.0.is_empty().then_some(Interval { at_unix_ms, span_ms, starved_ppm, drive, policy, tenants })
}

/// A name, cut at a whole character if it is too long.
fn put_text(text: &str, into: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(MOST_NAME_BYTES)];
    into.push(text.len() as u8);
    into.extend(text.as_bytes());
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn text(&mut self) -> Option<String> {
        let (len, rest) = self.0.split_first()?;
        let (text, rest) = rest.split_at_checked(usize::from(*len))?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn summary(&mut self) -> Option<Summary> {
        let name = self.text()?;
        let class = self.u32()?;
        let [mut weight, reads, writes, others, errors, late] = self.words(Self::u32)?;
        let [target_ns, read_bytes, write_bytes, latency_sum_ns, served_sum_ns, p50_ns, p99_ns, max_ns] =
            self.words(Self::u64)?;
        let (stalled, at_percentile_ns) = match class {
            GUARANTEED => (self.u32()?, self.u64()?),
            _ => (0, p99_ns),
        };
        let promise = match class {
            BEST_EFFORT => Promise::None,
            GUARANTEED => Promise::Target { ns: target_ns, late_ppm: std::mem::take(&mut weight) },
            GUARANTEED_UNNAMED => Promise::Unnamed,
            _ => return None,
        };
        Some(Summary {
            name,
            promise,
            weight,
            reads,
            writes,
            others,
            errors,
            late,
            stalled,
            read_bytes,
            write_bytes,
            latency_sum_ns,
            served_sum_ns,
            p50_ns,
            p99_ns,
            at_percentile_ns,
            max_ns,
        })
    }

    fn words<T: Copy + Default, const N: usize>(&mut self, one: fn(&mut Self) -> Option<T>) -> Option<[T; N]> {
        let mut words = [T::default(); N];
        for word in &mut words {
            *word = one(self)?;
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Interval {
        let tenant = |name: &str, promise| Summary {
            name: name.to_owned(),
            promise,
            weight: if matches!(promise, Promise::Target { .. }) { 0 } else { 7 },
            reads: 1,
            writes: u32::MAX,
            others: 3,
            errors: 4,
            late: 5,
            stalled: if matches!(promise, Promise::Target { .. }) { 2 } else { 0 },
            read_bytes: u64::MAX,
            write_bytes: 1 << 40,
            latency_sum_ns: 6,
            served_sum_ns: 5,
            p50_ns: 8,
            p99_ns: 9,
            at_percentile_ns: if matches!(promise, Promise::Target { .. }) { 12 } else { 9 },
            max_ns: 13,
        };
        Interval {
            at_unix_ms: 1_700_000_000_000,
            span_ms: 10_000,
            starved_ppm: 12_345,
            drive: "fast".into(),
            policy: "lpns".into(),
            tenants: vec![
                tenant("db", Promise::Target { ns: 50_000, late_ppm: 1_000 }),
                tenant("", Promise::Unnamed),
                tenant(&"x".repeat(63), Promise::None),
            ],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let mut bytes = Vec::new();
        encode(&some(), &mut bytes);
        assert_eq!(decode(&bytes), Some(some()));
        let one = bytes.len();
        encode(&Interval { tenants: vec![some().tenants[2].clone()], ..some() }, &mut bytes);
        // Nothing else grows with the tenants.
        let per_tenant = one - (bytes.len() - one);
        assert_eq!(per_tenant, 2 * (1 + FIXED_BYTES) + 2 - OF_TARGET_BYTES);
    }

    #[test]
    fn bytes_that_are_none_are_refused() {
        let mut bytes = Vec::new();
        encode(&some(), &mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes of {}", bytes.len());
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        // A count of tenants that are not there.
        let at = 8 + 4 + 4 + 5 + 5;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn a_long_name_is_cut_at_a_whole_character() {
        let mut bytes = Vec::new();
        encode(&Interval { drive: "µ".repeat(40), ..Interval::default() }, &mut bytes);
        assert_eq!(decode(&bytes).map(|it| it.drive), Some("µ".repeat(31)));
    }
}
