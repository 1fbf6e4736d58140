//! The rules about imperfect input: what becomes of it, and that it is counted.

use io_model::Op;
use trace::{Counts, Entry, Limits, Trace};

fn read(text: &str) -> Trace {
    read_within(text, Limits::default())
}

fn read_within(text: &str, limits: Limits) -> Trace {
    trace::read(text.as_bytes(), "sample", None, limits).expect("the sample is well formed")
}

/// A trace in version 3 of fio's form, of these lines.
fn fio(lines: &str) -> String {
    format!("fio version 3 iolog\n{lines}")
}

/// Reads of one block, at these times in milliseconds.
fn at_ms(times_ms: &[u64]) -> String {
    fio(&times_ms.iter().map(|time_ms| format!("{} d read 0 512\n", time_ms * 1_000)).collect::<String>())
}

fn times_ms(trace: &Trace) -> Vec<u64> {
    trace.entries().iter().map(|entry| entry.time_ns / 1_000_000).collect()
}

fn ranges(trace: &Trace) -> Vec<(u64, u32)> {
    trace.entries().iter().map(|entry| (entry.offset_bytes, entry.len_bytes)).collect()
}

#[test]
fn a_late_request_gets_the_latest_time() {
    let trace = read(&at_ms(&[5_000, 5_020, 5_010, 4_990, 5_030]));
    assert_eq!(times_ms(&trace), [0, 20, 20, 20, 30]);
    assert_eq!((trace.counts().out_of_order, trace.counts().jumps_back), (2, 0));
}

#[test]
fn time_runs_on_after_a_jump_back() {
    let trace = read(&at_ms(&[5_000, 9_000, 100, 150, 140, 1_150]));
    assert_eq!(times_ms(&trace), [0, 4_000, 4_000, 4_050, 4_050, 5_050]);
    assert_eq!((trace.counts().out_of_order, trace.counts().jumps_back), (1, 1));

    let strict = Limits { reorder_ns: 0, ..Limits::default() };
    assert_eq!(read_within(&at_ms(&[5, 4]), strict).counts().jumps_back, 1);
}

#[test]
fn ranges_are_rounded_out_to_blocks() {
    let trace = read(&fio("1 d read 1000 100\n1 d write 512 513\n1 d read 700 0\n1 d read 1024 0\n"));
    assert_eq!(ranges(&trace), [(512, 1024), (512, 1024), (512, 512), (1024, 512)]);
    assert_eq!((trace.counts().unaligned, trace.counts().zero_length), (3, 2));
}

#[test]
fn long_reads_and_writes_are_split() {
    let limits = Limits { max_len_bytes: 4100, ..Limits::default() };
    let trace = read_within(&fio("1 d read 512 9000\n2 d write 0 4096\n"), limits);
    assert_eq!(ranges(&trace), [(512, 4096), (4608, 4096), (8704, 1024), (0, 4096)]);
    assert_eq!((trace.counts().split, trace.counts().unaligned), (1, 1));

    let none = Limits { max_len_bytes: 0, ..Limits::default() };
    assert_eq!(read_within(&fio("1 d read 0 1024\n"), none).entries().len(), 2, "a block at a time");
}

#[test]
fn long_discards_are_split_only_to_fit_an_entry() {
    let limits = Limits { max_len_bytes: 4096, ..Limits::default() };
    let trace = read_within("fio version 3 iolog\n0 d trim 0 1048576\n1 d trim 0 8589934592\n", limits);
    let most = u32::MAX - 511;
    assert_eq!(ranges(&trace), [(0, 1 << 20), (0, most), (u64::from(most), most), (2 * u64::from(most), 1024)]);
    assert_eq!(trace.counts().split, 1);
}

#[test]
fn comments_blank_lines_and_line_ends() {
    let text =
        "\u{feff}# a comment\r\n\r\n  \t\nfio version 3 iolog\r\n 0  d\tread 1536 512 \r\n1000000 d write 2048 512";
    let trace = read(text);
    let entry = |time_ns, op, offset_bytes| Entry { time_ns, offset_bytes, len_bytes: 512, op };
    assert_eq!(trace.entries(), [entry(0, Op::Read, 1536), entry(1_000_000_000, Op::Write, 2048)]);
    assert_eq!(trace.counts(), Counts { lines: 6, blank: 2, comments: 2, ..Counts::default() });
}

#[test]
fn malformed_lines_are_left_out_and_counted_if_lenient() {
    let text = "junk\n0,0,read,3,512,1,2,ok\n0,0,read,3,512\nx,0,read,3,512,1,2,ok\n0,0,read,3,9999999999,1,2,ok\n\
                9,0,read,3,512,1,2,ok\n9,0,read,3,5";
    let trace = read_within(text, Limits { lenient: true, ..Limits::default() });
    assert_eq!((trace.entries().len(), trace.counts().malformed, trace.counts().lines), (2, 5, 7));
}

#[test]
fn a_line_too_long_is_passed_over_if_lenient() {
    let long = "9".repeat(300_000);
    let line = "0,0,read,3,512,1,2,ok";
    let text = format!("{line}\n{long}\n{line}\n{long}");
    let trace = read_within(&text, Limits { lenient: true, ..Limits::default() });
    assert_eq!((trace.entries().len(), trace.counts().malformed, trace.counts().lines), (2, 2, 4));
}

#[test]
fn fit_wraps_and_keeps_length_and_place_in_a_page() {
    const DISK_BYTES: u64 = (1 << 20) + 1000;
    let text = "1 d read 1044480 4096\n1 d read 1048576 4096\n1 d read 1050112 4096\n\
                1 d read 1045504 8192\n1 d read 999999999488 65536\n1 d write 0 1048576\n";
    let mut trace = read(&fio(text));
    let before = trace.clone();
    trace.fit(DISK_BYTES).unwrap();
    assert_eq!(
        ranges(&trace)[..4],
        [(1_044_480, 4096), (0, 4096), (1536, 4096), (1_045_504 - 8192, 8192)],
        "the end fits; wrapped; wrapped off a page; hung over"
    );
    for (entry, old) in trace.entries().iter().zip(before.entries()) {
        assert!(entry.end_bytes() <= 1 << 20);
        assert_eq!((entry.offset_bytes % 4096, entry.len_bytes), (old.offset_bytes % 4096, old.len_bytes));
    }
    assert_eq!((trace.counts().moved, trace.counts().shortened), (4, 0));

    trace.fit(DISK_BYTES).unwrap();
    assert_eq!(trace.counts().moved, 4, "nothing is left to move");
}

#[test]
fn fit_shortens_what_is_longer_than_the_disk() {
    let mut trace = read(&fio("1 d read 512 65536\n1 d read 8192 512\n"));
    trace.fit(8192).unwrap();
    assert_eq!(ranges(&trace), [(512, 4096), (0, 512)]);
    assert_eq!((trace.counts().moved, trace.counts().shortened), (1, 1));
}

#[test]
fn fit_refuses_a_disk_too_small() {
    let mut trace = read(&fio("1 d read 512 65536\n"));
    let before = trace.clone();
    let error = trace.fit(8191).unwrap_err();
    assert_eq!(
        error.to_string(),
        "expected a disk of at least 8192 bytes to replay a trace on, found 8191; give it a larger one"
    );
    assert_eq!(trace, before);
}
