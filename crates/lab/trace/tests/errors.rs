//! Every error names the file, the line, what was expected, what was found and what to do.

use std::io::{self, BufReader, Read};

use trace::{Format, Limits, TraceError};

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
        error("1,5,28,512,3\n1,5,zz,512,3\n", None).to_string(),
        "a.trace:2: expected a SCSI operation code in hexadecimal (cloudphysics), found \"zz\"; mend or remove the \
         line, or name the trace's format if it is another one"
    );
}

#[test]
fn cloudphysics() {
    let good = "1,5,28,512,3";
    for (bad, expected, found) in [
        ("2,5,28,512,3", "version 1", "\"2\""),
        ("1,5.5,28,512,3", "a time in whole seconds", "\"5.5\""),
        ("1,-5,28,512,3", "a time in whole seconds", "\"-5\""),
        ("1,5", "a SCSI operation code", "nothing"),
        ("1,5,,512,3", "a SCSI operation code in hexadecimal", "nothing"),
        ("1,5,128,512,3", "a SCSI operation code in hexadecimal", "\"128\""),
        ("1,5,28,,3", "a size in bytes", "nothing"),
        ("1,5,28,512,99999999999999999999", "a logical block number", "\"99999999999999999999\""),
        ("1,5,28,512,3,4", "5 fields", "\"4\""),
        ("1,99999999999,28,512,3", "times and places that fit 64 bits", "\"1,99999999999,28,512,3\""),
        ("1,5,28,512,99999999999999999", "times and places that fit 64 bits", "\"1,5,28,512,99999999999999999\""),
        ("1,5,28,512,18014398509481984", "a range that ends below 8 EiB", "\"1,5,28,512,18014398509481984\""),
        ("1,5,28,4294967296,3", "a read or write below 4 GiB", "\"1,5,28,4294967296,3\""),
    ] {
        assert_malformed(good, bad, Format::CloudPhysics, expected, found);
    }
}

#[test]
fn msr() {
    let good = "133000000000000000,web,0,Read,8192,4096,41286";
    for (bad, expected, found) in [
        ("x,web,0,Read,8192,4096,41286", "a Windows filetime", "\"x\""),
        ("5", "a host name", "nothing"),
        ("5,web", "a disk number", "nothing"),
        ("5,web,0,Erase,8192,4096,41286", "Read or Write", "\"Erase\""),
        ("5,web,0,Read,0x10,4096,41286", "an offset in bytes", "\"0x10\""),
        ("5,web,0,Read,8192", "a size in bytes", "nothing"),
        ("5,web,0,Read,8192,4096,41286,9", "7 fields", "\"9\""),
        (
            "18446744073709551615,web,0,Read,8192,4096,1",
            "times and places that fit 64 bits",
            "\"18446744073709551615,web,0,Read,8192,409...\"",
        ),
        (
            "5,web,0,Read,18446744073709551615,4096,1",
            "a range that ends below 8 EiB",
            "\"5,web,0,Read,18446744073709551615,4096,1\"",
        ),
    ] {
        assert_malformed(good, bad, Format::Msr, expected, found);
    }
}

#[test]
fn fiu() {
    let shape = "timestamp pid process lba size op major minor [md5]";
    let good = "4200000000000 611 syslog 731004160 8 W 6 0 a0b1c2d3e4f5061728394a5b6c7d8e9f";
    for (bad, expected, found) in [
        ("x 1 a 8 8 W 6 0", "a timestamp in nanoseconds", "\"x\""),
        ("5", "a process identifier", "nothing"),
        ("5 1 8 8 W 6 0", shape, "\"5 1 8 8 W 6 0\""),
        ("5 1 a x 8 W 6 0", "an address in 512-byte blocks", "\"x\""),
        ("5 1 a 8 -8 W 6 0", "a size in 512-byte blocks", "\"-8\""),
        ("5 1 a 8 8 D 6 0", "Read or Write", "\"D\""),
        ("5 1 a 8 8 W 6 0 531e", "a device number", "\"531e\""),
        ("5 1 a 99999999999999999 8 W 6 0", "times and places that fit 64 bits", "\"5 1 a 99999999999999999 8 W 6 0\""),
        (
            "5 1 a a a a a a a a a a a a a a a a a a a a a a a a a a",
            shape,
            "\"5 1 a a a a a a a a a a a a a a a a a a ...\"",
        ),
    ] {
        assert_malformed(good, bad, Format::Fiu, expected, found);
    }
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
    let mut text = b"1,5,28,512,3\n1,5,\x1b[31m\0\xff".to_vec();
    text.extend([b'\x07'; 100]);
    let message = error(text, None).to_string();
    assert!(message.contains(r#"found "\x1b[31m\x00\xff\x07"#), "{message}");
    assert!(message.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{message}");
    assert!(message.len() < 400, "{message}");
}

#[test]
fn a_line_too_long() {
    let limits = Limits { max_line_bytes: 20, ..Limits::default() };
    let read = |text: &str| trace::read(text.as_bytes(), "a.trace", Some(Format::CloudPhysics), limits);
    let exact = "1,5,28,512,000000003";
    assert_eq!(exact.len(), 20);
    for end in ["", "\n", "\r\n"] {
        assert_eq!(read(&format!("{exact}{end}")).unwrap().entries().len(), 1);
        let message = read(&format!("1,5,28,512,3\n0{exact}{end}")).unwrap_err().to_string();
        assert!(
            message.starts_with("a.trace:2: expected a line of at most 20 bytes (cloudphysics), found"),
            "{message}"
        );
    }
}

#[test]
fn too_many_entries() {
    let limits = Limits { max_entries: 2, ..Limits::default() };
    let read = |text: &str| trace::read(text.as_bytes(), "a.trace", None, limits);
    assert_eq!(read("1,5,28,512,3\n1,5,28,512,3\n").unwrap().entries().len(), 2);
    assert_eq!(
        read("1,5,28,512,3\n1,5,28,512,3\n\n1,5,28,512,3\n").unwrap_err().to_string(),
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
        error("version,time,op,size,lbn\n1,5,00,0,0\n", None).to_string(),
        "a.trace: expected at least one request in 2 lines of cloudphysics, found none; check file and format"
    );
    assert_eq!(
        error("", Some(Format::Fiu)).to_string(),
        "a.trace: expected at least one request in 0 lines of fiu, found none; check file and format"
    );
}

#[test]
fn unknown_format() {
    let names = "a.trace: expected a block trace (evenkeel, fio, cloudphysics, msr, blkparse, fiu), found ";
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
    for format in [None, Some(Format::CloudPhysics)] {
        let source = BufReader::new(Broken(b"1,5,28,512,3\n1,5,28,512,3\n"));
        let error = trace::read(source, "a.trace", format, Limits::default()).unwrap_err();
        let message = error.to_string();
        assert_eq!(
            message,
            "a.trace: expected to read line 3: the disk fell off; check that the file exists and may be read"
        );
    }
}
