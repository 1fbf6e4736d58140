//! Every error names the file, the line, what was expected, what was found and what to do.

use std::io::{self, BufReader, Read};

use trace::{Format, Limits, TraceError};

/// A line of our own format.
const LINE: &str = "0,0,read,8,512,1,2,ok\n";

fn error(text: impl AsRef<[u8]>, format: Option<Format>) -> TraceError {
    trace::read(text.as_ref(), "a.trace", format, Limits::default()).expect_err("the text is malformed")
}

/// Line, expected and found of the error on `line`, put behind a line that is well formed.
#[track_caller]
fn assert_malformed(good: &str, bad: &str, format: Format, expected: &str, found: &str) {
    match error(format!("{good}\n{bad}\n"), None) {
        TraceError::Malformed { file, line, expected: says, found: shows, remedy } => {
            assert_eq!((file.as_str(), line), ("a.trace", 2), "{bad}");
            assert_eq!((says, shows), (format!("{expected} ({format})"), found.to_owned()), "{bad}");
            assert!(!remedy.is_empty());
        }
        other => panic!("{bad}: {other}"),
    }
}

#[test]
fn the_message_says_it_all() {
    assert_eq!(
        error("0,0,read,8,512,1,2,ok\n0,0,trim,8,512,1,2,ok\n", None).to_string(),
        "a.trace:2: expected read, write, flush, zeroes or discard (evenkeel), found \"trim\"; mend or remove the \
         line, or name the trace's format if it is another one"
    );
}

#[test]
fn fio() {
    for (bad, expected, found) in [
        ("x d read 0 512", "a timestamp in microseconds", "\"x\""),
        ("5", "a file name", "nothing"),
        ("5 d", "an action", "nothing"),
        ("5 d wait 100", "timestamps instead of waits in version 3", "\"wait\""),
        ("5 d append 0 512", "an action of fio's (read, write, trim, sync, ...)", "\"append\""),
        ("5 d read", "an offset in bytes", "nothing"),
        ("5 d read 0 x", "a length in bytes", "\"x\""),
        ("99999999999999999 d read 0 512", "times and places that fit 64 bits", "\"99999999999999999 d read 0 512\""),
    ] {
        assert_malformed("fio version 3 iolog", bad, Format::FioIolog, expected, found);
    }
    assert_malformed("fio version 2 iolog", "d wait x", Format::FioIolog, "a time to wait in microseconds", "\"x\"");
    assert_eq!(
        error("0, 0, 4096\n", Some(Format::FioIolog)).to_string(),
        "a.trace:1: expected \"fio version 2 iolog\" or \"fio version 3 iolog\" first (fio), found \"0, 0, 4096\"; \
         mend or remove the line, or name the trace's format if it is another one"
    );
}

#[test]
fn evenkeels_own() {
    let good = "0,0,read,8,4096,1200,85000,ok";
    for (bad, expected, found) in [
        ("x,0,read,8,4096,1,2,ok", "a time in nanoseconds", "\"x\""),
        ("0,0,trim,8,4096,1,2,ok", "read, write, flush, zeroes or discard", "\"trim\""),
        ("0,0,read,-8,4096,1,2,ok", "a block of 512 bytes", "\"-8\""),
        ("0,0", "read, write, flush, zeroes or discard", "nothing"),
        ("0,0,read,,4096,1,2,ok", "a block of 512 bytes", "nothing"),
        ("0,0,read,99999999999999999999,512,1,2,ok", "a block of 512 bytes", "\"99999999999999999999\""),
        ("0,0,read,8,512.5,1,2,ok", "a length in bytes", "\"512.5\""),
        (
            "0,0,read,99999999999999999,512,1,2,ok",
            "times and places that fit 64 bits",
            "\"0,0,read,99999999999999999,512,1,2,ok\"",
        ),
        (
            "0,0,read,18014398509481984,512,1,2,ok",
            "a range that ends below 8 EiB",
            "\"0,0,read,18014398509481984,512,1,2,ok\"",
        ),
        ("0,0,read,8,4294967296,1,2,ok", "a read or write below 4 GiB", "\"0,0,read,8,4294967296,1,2,ok\""),
        ("0,0,read,8,4096,1", "a time served in nanoseconds", "nothing"),
        ("0,0,read,8,4096,1,2,maybe", "ok or failed", "\"maybe\""),
        ("0,0,read,8,4096,1,2,ok,9", "8 fields", "\"9\""),
    ] {
        assert_malformed(good, bad, Format::Evenkeel, expected, found);
    }
}

#[test]
fn blkparse() {
    let good = "8,0 0 1 1.000000000 7 Q R 8 + 8 [a]";
    for (bad, expected, found) in [
        ("8 0 1 1.000000000 7 Q R 8 + 8 [a]", "a device (major,minor)", "\"8\""),
        ("8,0,1 0 1 1.000000000 7 Q R 8 + 8 [a]", "a device (major,minor)", "\"8,0,1\""),
        ("8,0 x", "a CPU number", "\"x\""),
        ("8,0 0", "a sequence number", "nothing"),
        ("8,0 0 1 1000 7 Q R 8 + 8 [a]", "a time in seconds.nanoseconds", "\"1000\""),
        ("8,0 0 1 1.0000000000 7 Q R 8 + 8 [a]", "a time in seconds.nanoseconds", "\"1.0000000000\""),
        ("8,0 0 1 99999999999.0 7 Q R 8 + 8 [a]", "a time in seconds.nanoseconds", "\"99999999999.0\""),
        ("8,0 0 1 1.0 x Q R 8 + 8 [a]", "a process identifier", "\"x\""),
        ("8,0 0 1 1.0 7", "an action", "nothing"),
        ("8,0 0 1 1.0 7 +", "an action of one or two letters", "\"+\""),
        ("8,0 0 1 1.0 7 Q", "an RWBS field", "nothing"),
        ("8,0 0 1 1.0 7 Q X 8 + 8 [a]", "an RWBS field", "\"X\""),
        ("8,0 0 1 1.0 7 Q R1 8 + 8 [a]", "an RWBS field", "\"R1\""),
        ("8,0 0 1 1.0 7 Q R", "a sector", "nothing"),
        ("8,0 0 1 1.0 7 Q R a + 8 [a]", "a sector", "\"a\""),
        ("8,0 0 1 1.0 7 Q R 8 - 8 [a]", "\"+\" and a number of sectors", "\"-\""),
        ("8,0 0 1 1.0 7 Q R 8 + [a]", "a number of sectors", "\"[a]\""),
    ] {
        assert_malformed(good, bad, Format::Blkparse, expected, found);
    }
}

#[test]
fn found_is_shortened_and_printable() {
    let mut text = b"0,0,read,8,512,1,2,ok\n0,0,\x1b[31m\0\xff".to_vec();
    text.extend([b'\x07'; 100]);
    let message = error(text, None).to_string();
    assert!(message.contains(r#"found "\x1b[31m\x00\xff\x07"#), "{message}");
    assert!(message.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{message}");
    assert!(message.len() < 400, "{message}");
}

#[test]
fn a_line_too_long() {
    let limits = Limits { max_line_bytes: 20, ..Limits::default() };
    let read = |text: &str| trace::read(text.as_bytes(), "a.trace", Some(Format::FioIolog), limits);
    let exact = "1 d read 00000 00512";
    assert_eq!(exact.len(), 20);
    for end in ["", "\n", "\r\n"] {
        assert_eq!(read(&format!("fio version 3 iolog\n{exact}{end}")).unwrap().entries().len(), 1);
        let message = read(&format!("fio version 3 iolog\n1 d read 0 512\n0{exact}{end}")).unwrap_err().to_string();
        assert!(message.starts_with("a.trace:3: expected a line of at most 20 bytes (fio), found"), "{message}");
    }
}

#[test]
fn too_many_entries() {
    let limits = Limits { max_entries: 2, ..Limits::default() };
    let read = |text: &str| trace::read(text.as_bytes(), "a.trace", None, limits);
    assert_eq!(read(&LINE.repeat(2)).unwrap().entries().len(), 2);
    assert_eq!(
        read(&format!("{LINE}{LINE}\n{LINE}")).unwrap_err().to_string(),
        "a.trace:4: expected at most 2 requests, found more; cut the trace, or raise the limit"
    );
    // A few bytes of text must not become millions of entries.
    let split = read("fio version 2 iolog\nd trim 0 9000000000000000000\n").unwrap_err();
    assert!(matches!(split, TraceError::TooManyEntries { line: 2, .. }), "{split}");
    let lenient = Limits { lenient: true, ..limits };
    let split = trace::read(&b"fio version 2 iolog\nd trim 0 9000000000000000000\n"[..], "a", None, lenient);
    assert!(matches!(split, Err(TraceError::TooManyEntries { line: 2, .. })), "leniency does not lift the limit");
}

#[test]
fn no_entries() {
    assert_eq!(
        error("fio version 3 iolog\n0 d add\n", None).to_string(),
        "a.trace: expected at least one request in 2 lines of fio, found none; check file and format"
    );
    assert_eq!(
        error("", Some(Format::Blkparse)).to_string(),
        "a.trace: expected at least one request in 0 lines of blkparse, found none; check file and format"
    );
}

#[test]
fn unknown_format() {
    let names = "a.trace: expected a block trace (evenkeel, fio, blkparse), found ";
    let name_it = "name the format to see what is wrong with its lines";
    for (text, found, remedy) in [
        (&b""[..], "no line to tell by", name_it),
        (b"# only\n\n", "no line to tell by", name_it),
        (b"\nhello world\n", "\"hello world\"", name_it),
        (b"fio version 4 iolog\n", "\"fio version 4 iolog\"", name_it),
        (b"\x1f\x8b\x08\0", "\"\\x1f\\x8b\\x08\\x00\"", "unpack it first (it is compressed by gzip)"),
    ] {
        assert_eq!(error(text, None).to_string(), format!("{names}{found}; {remedy}"));
    }
}

/// Fails after what it holds.
struct Broken(&'static [u8]);

impl Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::Error::other("the disk fell off"));
        }
        self.0.read(buffer)
    }
}

#[test]
fn a_source_that_fails() {
    for format in [None, Some(Format::Evenkeel)] {
        let source = BufReader::new(Broken(b"0,0,read,8,512,1,2,ok\n0,0,read,8,512,1,2,ok\n"));
        let error = trace::read(source, "a.trace", format, Limits::default()).unwrap_err();
        let message = error.to_string();
        assert_eq!(
            message,
            "a.trace: expected to read line 3: the disk fell off; check that the file exists and may be read"
        );
    }
}
