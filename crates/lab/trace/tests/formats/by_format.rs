//! A sample of each format says what it should, and is recognized.

use io_model::Op;
use trace::{Entry, Format, Limits, Trace, TraceError};

const FIO_V2: &str = include_str!("samples/fio-v2.log");
const FIO_V3: &str = include_str!("samples/fio-v3.log");
const BLKPARSE: &str = include_str!("samples/blkparse.txt");
const EVENKEEL: &str = include_str!("samples/evenkeel.csv");
const BLKPARSE_ISSUED: &str = include_str!("samples/blkparse-issued.txt");

fn read(text: &str) -> Trace {
    trace::read(text.as_bytes(), "sample", None, Limits::default()).expect("the sample is well formed")
}

fn entry(time_ns: u64, op: Op, offset_bytes: u64, len_bytes: u32) -> Entry {
    Entry { time_ns, offset_bytes, len_bytes, op }
}

#[test]
fn each_sample_is_recognized() {
    let samples = [
        (FIO_V2, Format::FioIolog),
        (FIO_V3, Format::FioIolog),
        (BLKPARSE, Format::Blkparse),
        (BLKPARSE_ISSUED, Format::Blkparse),
        (EVENKEEL, Format::Evenkeel),
    ];
    for (text, format) in samples {
        let found = read(text);
        assert_eq!(found.format(), format);
        let named = trace::read(text.as_bytes(), "sample", Some(format), Limits::default()).unwrap();
        assert_eq!(found, named, "{format}");
    }
}

#[test]
fn data_lines_are_recognized_without_their_heading() {
    let (_, data) = EVENKEEL.split_once("status\n").unwrap();
    assert_eq!(read(data).format(), Format::Evenkeel);
    assert_eq!(read(data).entries(), read(EVENKEEL).entries());
}

#[test]
fn evenkeels_own_is_sorted_by_arrival() {
    let trace = read(EVENKEEL);
    assert_eq!(
        trace.entries(),
        [
            entry(0, Op::Write, 2048 * 512, 8192),
            entry(2_500, Op::Read, 8 * 512, 4096),
            entry(2_700, Op::Read, 16 * 512, 512),
            entry(2_000_000_100, Op::Discard, 4096 * 512, 1 << 20),
            entry(2_000_000_500, Op::Flush, 0, 0),
        ]
    );
    let counts = trace.counts();
    assert_eq!((counts.out_of_order, counts.jumps_back, counts.other_devices, counts.comments), (0, 0, 1, 4));
}

#[test]
fn evenkeels_own_says_what_is_missing() {
    let missing = |text: &str| {
        let counts = read(text).counts();
        (counts.lost, counts.cut_off)
    };
    assert_eq!(missing(EVENKEEL), (0, 0));
    assert_eq!(missing(&EVENKEEL.replace("5 commands, 0 lost", "5 commands, 7 lost")), (7, 0));
    let (cut, _) = EVENKEEL.split_once("# end").unwrap();
    for no_end in ["", "# end: 5 commands, 0", "# end: x commands, 0 lost\n"] {
        assert_eq!(missing(&format!("{cut}{no_end}")), (0, 1), "{no_end:?}");
    }
    assert_eq!(missing(FIO_V3), (0, 0), "its format has no such line");
}

#[test]
fn fio_version_2_waits() {
    let trace = read(FIO_V2);
    assert_eq!(
        trace.entries(),
        [
            entry(0, Op::Read, 0, 4096),
            entry(0, Op::Write, 8192, 4096),
            entry(1_500_000, Op::Flush, 0, 0),
            // The wait of 50 µs counts too.
            entry(1_550_000, Op::Discard, 1 << 30, 1 << 20),
            entry(1_550_000, Op::Flush, 0, 0),
        ]
    );
    assert_eq!(trace.counts().skipped, 5);
}

#[test]
fn fio_version_3_has_microseconds() {
    let trace = read(FIO_V3);
    assert_eq!(
        trace.entries(),
        [
            entry(0, Op::Write, 0, 16_384),
            entry(10_000, Op::Read, 16_384, 4096),
            entry(11_000, Op::Discard, 1 << 20, 4096),
            entry(12_000, Op::Flush, 0, 0),
            entry(13_000, Op::Read, 0, 512),
        ]
    );
    assert_eq!((trace.counts().skipped, trace.counts().other_devices), (4, 1));
}

#[test]
fn blkparse_takes_queued_requests() {
    let trace = read(BLKPARSE);
    assert_eq!(
        trace.entries(),
        [
            entry(0, Op::Read, 0, 4096),
            entry(1_027_448, Op::Write, 5_120_008 * 512, 4096),
            // FWFS: a flush before it, forced to media.
            entry(2_000_000, Op::Flush, 0, 0),
            entry(2_000_000, Op::Write, 64 * 512, 8192),
            entry(3_000_000, Op::Flush, 0, 0),
            entry(4_000_000, Op::Discard, 2048 * 512, 1 << 20),
            entry(5_000_000, Op::WriteZeroes, 4096 * 512, 4096),
            entry(6_000_000, Op::Flush, 0, 0),
        ]
    );
}

#[test]
fn blkparse_without_queued_requests_takes_issued_ones() {
    let trace = read(BLKPARSE_ISSUED);
    assert_eq!(trace.entries(), [entry(0, Op::Read, 4096, 4096), entry(500_000, Op::Write, 8192, 4096)]);
    assert_eq!(trace.counts().skipped, 3, "a completion, a packet command, a zone reset");
}

#[test]
fn a_late_queued_request_drops_the_issued_ones_before() {
    let text = "8,0 0 1 1.000000000 7 D R 8 + 8 [a]\n8,0 0 2 2.000000000 7 Q R 9 + 1 [a]\n\
                8,0 0 3 2.100000000 7 D R 9 + 1 [a]\n";
    let trace = read(text);
    assert_eq!(trace.entries(), [entry(0, Op::Read, 9 * 512, 512)]);
    assert_eq!((trace.counts().lines, trace.counts().skipped), (3, 2));
}

#[test]
fn summary_adds_up() {
    let text = "fio version 3 iolog\n7 d read 8192 4096\n20 d write 1048576 65536\n1000007 d read 107374182400 512\n";
    let summary = read(text).summary();
    assert_eq!((summary.entries, summary.reads, summary.writes, summary.others), (3, 2, 1, 0));
    assert_eq!((summary.read_bytes, summary.written_bytes), (4608, 65_536));
    assert_eq!((summary.end_bytes, summary.span_ns), (107_374_182_912, 1_000_000_000));
    assert!((summary.mean_iops - 3.0).abs() < 1e-9);
    assert_eq!(
        summary.to_string(),
        "3 requests over 1.000 s (3.0 IOPS): 2 reads of 0.0 MiB, 1 writes of 0.1 MiB, 0 others, \
         on the first 102400.0 MiB"
    );
    assert_eq!(read("fio version 3 iolog\n5 d read 0 512\n").summary().mean_iops, 0.0, "one entry spans no time");
}

#[test]
fn formats_have_names() {
    for (format, name) in Format::ALL.into_iter().zip(Format::NAMES) {
        assert_eq!(name.parse(), Ok(format));
        assert_eq!(format.to_string(), name);
    }
    let error = "blktrace".parse::<Format>().unwrap_err();
    assert_eq!(error.to_string(), "expected a trace format (evenkeel, fio, blkparse), found \"blktrace\"");
}

#[test]
fn a_file_is_read_by_its_path() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/samples/fio-v3.log");
    let trace = trace::read_file(path.as_ref(), None, Limits::default()).unwrap();
    assert_eq!(trace, read(FIO_V3));
    let error = trace::read_file("/nonexistent/a.csv".as_ref(), None, Limits::default()).unwrap_err();
    assert!(matches!(error, TraceError::Io { line: 1, .. }), "{error}");
    assert!(error.to_string().starts_with("/nonexistent/a.csv: expected to read line 1: "), "{error}");
}
