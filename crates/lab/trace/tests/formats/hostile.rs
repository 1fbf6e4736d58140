//! Whatever a file holds, reading it ends without a panic, and what it gives keeps its promises.
//!
//! Each run draws the same cases. `PROPTEST_RNG_SEED` and `PROPTEST_CASES` change that.

use io_model::Op;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use trace::{Format, Limits, Trace, TraceError};

const SAMPLES: [&str; 5] = [
    include_str!("samples/fio-v2.log"),
    include_str!("samples/fio-v3.log"),
    include_str!("samples/blkparse.txt"),
    include_str!("samples/blkparse-issued.txt"),
    include_str!("samples/evenkeel.csv"),
];

const LIMITS: Limits =
    Limits { max_entries: 4_000, max_len_bytes: 4096, max_line_bytes: 200, reorder_ns: 1_000, lenient: false };

fn config() -> Config {
    let from_environment = Config::default();
    let rng_seed = match from_environment.rng_seed {
        RngSeed::Random => RngSeed::Fixed(0x0e5e_7ace),
        fixed @ RngSeed::Fixed(_) => fixed,
    };
    Config { rng_seed, failure_persistence: None, ..from_environment }
}

/// A change to a text, at a place taken modulo its length.
#[derive(Debug, Clone)]
enum Change {
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let telling = prop_oneof![
        Just(b"18446744073709551615".to_vec()),
        Just(b"9223372036854775807".to_vec()),
        Just(b"\n".to_vec()),
        Just(b",".to_vec()),
        Just(b" ".to_vec()),
        Just(b"-1".to_vec()),
        vec(any::<u8>(), 0..300),
    ];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<usize>(), b'0'..=b'9').prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<usize>(), telling).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<usize>(), 0..80usize).prop_map(|(at, len)| Change::Remove(at, len)),
        (any::<usize>(), 0..200usize).prop_map(|(at, len)| Change::Repeat(at, len)),
    ]
}

fn apply(text: &mut Vec<u8>, change: &Change) {
    let place = |at: usize| at % (text.len() + 1);
    match change {
        Change::Set(at, byte) => {
            let at = place(*at);
            text.splice(at..(at + 1).min(text.len()), [*byte]);
        }
        Change::Insert(at, bytes) => {
            let at = place(*at);
            text.splice(at..at, bytes.iter().copied());
        }
        Change::Remove(at, len) => {
            let at = place(*at);
            text.drain(at..(at + len).min(text.len()));
        }
        Change::Repeat(at, len) => {
            let at = place(*at);
            let copy = text[at..(at + len).min(text.len())].to_vec();
            text.splice(at..at, copy);
        }
    }
}

/// Reads `text` in every way.
fn check(text: &[u8]) {
    for format in [None].into_iter().chain(Format::ALL.map(Some)) {
        for lenient in [false, true] {
            match trace::read(text, "hostile", format, Limits { lenient, ..LIMITS }) {
                Ok(trace) => check_trace(trace),
                Err(TraceError::Malformed { .. }) if lenient => panic!("lenient, but refused a line"),
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.starts_with("hostile:"), "{message}");
                    assert!(message.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{message}");
                }
            }
        }
    }
}

fn check_trace(mut trace: Trace) {
    check_entries(&trace, u64::MAX);
    let counts = trace.counts();
    assert!(counts.blank + counts.comments + counts.skipped + counts.malformed < counts.lines);
    let before = trace.entries().len();
    for disk_bytes in [u64::MAX, 1 << 40, 1_000_000, 8192] {
        trace.fit(disk_bytes).expect("the disk is large enough");
        check_entries(&trace, disk_bytes);
    }
    assert_eq!(trace.summary().entries, before as u64);
}

fn check_entries(trace: &Trace, disk_bytes: u64) {
    assert!(!trace.entries().is_empty() && trace.entries().len() <= LIMITS.max_entries);
    assert!(trace.entries().is_sorted_by_key(|entry| entry.time_ns));
    assert_eq!(trace.entries()[0].time_ns, 0);
    for entry in trace.entries() {
        assert_eq!((entry.offset_bytes % 512, entry.len_bytes % 512), (0, 0), "{entry:?}");
        assert_eq!(entry.len_bytes == 0, entry.op == Op::Flush, "{entry:?}");
        assert!(entry.end_bytes() <= disk_bytes.min(i64::MAX as u64), "{entry:?}");
        if matches!(entry.op, Op::Read | Op::Write) {
            assert!(entry.len_bytes <= LIMITS.max_len_bytes, "{entry:?}");
        }
    }
}

#[test]
fn the_samples_themselves() {
    for sample in SAMPLES {
        check(sample.as_bytes());
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes(bytes in vec(any::<u8>(), 0..2_000)) {
        check(&bytes);
    }

    #[test]
    fn bytes_that_traces_are_made_of(text in r"([0-9]{1,20}[,. ]?|[RWDFSNQ+:#]|read|trim|wait|write| |,|\n){0,200}") {
        check(text.as_bytes());
        check(format!("fio version 3 iolog\n{text}").as_bytes());
    }

    #[test]
    fn samples_with_changes(sample in 0..SAMPLES.len(), changes in vec(change(), 1..12)) {
        let mut text = SAMPLES[sample].as_bytes().to_vec();
        for change in &changes {
            apply(&mut text, change);
        }
        check(&text);
    }
}
