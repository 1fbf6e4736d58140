//! Lines of a file, bounded in length.

use std::io::{self, BufRead, Read};

/// What the next line turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// [`Lines::line`] has it.
    Line,
    /// It is longer than allowed; [`Lines::line`] has its start and the rest was passed over.
    TooLong,
    /// There is no further one.
    End,
}

/// Reads line by line into one buffer.
pub(crate) struct Lines<S> {
    source: S,
    line: Vec<u8>,
    /// Of the line last read, from 1.
    pub number: u64,
    max_bytes: usize,
}

impl<S: BufRead> Lines<S> {
    pub(crate) fn new(source: S, max_bytes: usize) -> Self {
        Self { source, line: Vec::new(), number: 0, max_bytes }
    }

    pub(crate) fn advance(&mut self) -> io::Result<Next> {
        self.line.clear();
        // Room for a line of the greatest length and its CR LF.
        let room = self.max_bytes.saturating_add(2);
        if bounded_line(&mut self.source, room, &mut self.line)? == 0 {
            return Ok(Next::End);
        }
        self.number += 1;
        let ended = self.line.ends_with(b"\n");
        if !ended && self.line.len() >= room {
            self.pass_over()?;
            return Ok(Next::TooLong);
        }
        Ok(if self.line().len() > self.max_bytes { Next::TooLong } else { Next::Line })
    }

    /// The line last read, without blanks, its end, or a byte order mark.
    pub(crate) fn line(&self) -> &[u8] {
        trimmed(&self.line, self.number == 1)
    }

    fn pass_over(&mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        loop {
            rest.clear();
            if bounded_line(&mut self.source, 1 << 16, &mut rest)? == 0 || rest.ends_with(b"\n") {
                return Ok(());
            }
        }
    }
}

/// Appends the rest of a line, at most `room` bytes of it, and gives how many.
pub(crate) fn bounded_line(source: &mut impl BufRead, room: usize, line: &mut Vec<u8>) -> io::Result<usize> {
    source.by_ref().take(room as u64).read_until(b'\n', line)
}

/// A line without blanks around it, its end, or (the first one) a byte order mark.
fn trimmed(line: &[u8], first: bool) -> &[u8] {
    let line = if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
    line.trim_ascii()
}

/// Whether a trimmed line is a comment.
pub(crate) fn is_comment(line: &[u8]) -> bool {
    line.starts_with(b"#")
}

/// The lines of a file's head that are neither blank nor comments.
pub(crate) fn of(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|&byte| byte == b'\n')
        .enumerate()
        .map(|(index, line)| trimmed(line, index == 0))
        .filter(|line| !line.is_empty() && !is_comment(line))
}
