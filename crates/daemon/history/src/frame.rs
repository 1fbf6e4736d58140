//! Frames: what is in a file, one after the other, each with a checksum.

use crate::{Interval, PastEvent, summary};

/// Kind, length, checksum.
const HEAD_BYTES: usize = 12;

/// Kinds of frames.
const INTERVAL: u32 = 1;
const EVENT: u32 = 2;

/// What a frame holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Interval(Interval),
    Event(PastEvent),
}

/// Appends an interval's frame.
pub(crate) fn put_interval(interval: &Interval, into: &mut Vec<u8>) {
    put(INTERVAL, into, |into| summary::encode(interval, into));
}

/// Appends an event's frame.
pub(crate) fn put_event(event: &PastEvent, into: &mut Vec<u8>) {
    put(EVENT, into, |into| {
        into.extend(event.at_unix_ms.to_le_bytes());
        into.extend(&event.what);
    });
}

fn put(kind: u32, into: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.extend(kind.to_le_bytes());
    into.extend([0; HEAD_BYTES - 4]);
    payload(into);
    let len = (into.len() - start - HEAD_BYTES) as u32;
    into[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    let sum = checksum(kind, len, &into[start + HEAD_BYTES..]);
    into[start + 8..start + HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(kind: u32, len: u32, payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), payload].into_iter().for_each(|part| sum.update(part));
    sum.finalize()
}

/// The frames of a file, as far as they are whole.
pub(crate) struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Of what follows a file's header.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes behind the last frame that was given: none, where the file is whole.
    pub(crate) fn rest_bytes(&self) -> usize {
        self.rest.len()
    }
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let (head, rest) = self.rest.split_at_checked(HEAD_BYTES)?;
        let word = |at: usize| head.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
        let (kind, len, sum) = (word(0)?, word(4)?, word(8)?);
        let (payload, rest) = rest.split_at_checked(len as usize)?;
        if checksum(kind, len, payload) != sum {
            return None;
        }
        let frame = match kind {
            INTERVAL => Frame::Interval(summary::decode(payload)?),
            EVENT => {
                let (at, what) = payload.split_first_chunk()?;
                Frame::Event(PastEvent { at_unix_ms: u64::from_le_bytes(*at), what: what.to_vec() })
            }
            _ => return None,
        };
        self.rest = rest;
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut bytes = Vec::new();
        put_interval(&Interval { drive: "a".into(), ..Interval::default() }, &mut bytes);
        put_event(&PastEvent { at_unix_ms: 7, what: b"happened".to_vec() }, &mut bytes);
        bytes
    }

    #[test]
    fn frames_are_read_back() {
        let bytes = file();
        let mut frames = Frames::of(&bytes);
        assert!(matches!(frames.next(), Some(Frame::Interval(it)) if it.drive == "a"));
        assert_eq!(frames.next(), Some(Frame::Event(PastEvent { at_unix_ms: 7, what: b"happened".to_vec() })));
        assert_eq!((frames.next(), frames.rest_bytes()), (None, 0));
    }

    #[test]
    fn no_cut_and_no_flipped_bit_gives_other_frames() {
        let bytes = file();
        let whole: Vec<Frame> = Frames::of(&bytes).collect();
        for len in 0..bytes.len() {
            let found: Vec<Frame> = Frames::of(&bytes[..len]).collect();
            assert!(found.len() < 2 && whole.starts_with(&found), "{len}: {found:?}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let found: Vec<Frame> = Frames::of(&broken).collect();
            assert!(found.len() < 2 && whole.starts_with(&found), "bit {bit}: {found:?}");
        }
    }
}
