//! What a daemon and the keeper of its clients say to each other: packets on `SOCK_SEQPACKET` sockets, each whole and
//! with its descriptors. Numbers are little-endian; a packet begins with its kind, 4 bytes.
//!
//! There are two sorts of sockets. The *control* socket carries a [`Request`] of the daemon's and its [`Answer`], one
//! after the other. Each device has a *channel*, of which the daemon gets its end with [`Answer::Kept`]: there the
//! keeper [tells](Told) what a client sent, one message at a time, and the daemon [says](Said) what is to be done.
//!
//! ```text
//!   daemon                            keeper                         client
//!     │ ── Said::Accept ───────────────▶ │ ◀─────────── connects ────── │
//!     │ ◀─ Told::Client ──────────────── │                              │
//!     │ ◀─ Told::Message 7, New ──────── │ ◀─────────── message ─────── │
//!     │ ── Said::Answer 7, keep: yes ──▶ │ ──────────── reply ────────▶ │
//! ```
//!
//! The successor of a daemon that died hears of the client with `is_held`. Then come the kept parts of what the client
//! said ([`How::Kept`]), then [`Told::Restored`], then the message that was not answered, if there is one
//! ([`How::Again`]).

use crate::message::MAX_FDS;

/// The version of what is said here.
pub const VERSION: u32 = 1;
/// Longest name of a device, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest message of a client's that can be kept, bytes. With what is around it, it fits a socket's buffer.
pub const MAX_MESSAGE_BYTES: usize = 128 << 10;
/// Room for any packet, bytes.
pub const MAX_PACKET_BYTES: usize = MAX_MESSAGE_BYTES + 4096;
/// Descriptors that are kept for a device beside its listening socket: its memory.
pub const MAX_KEPT_FDS: usize = MAX_FDS - 1;

/// Where a protocol's messages end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Length of a header, bytes: 1 to 64.
    pub header_bytes: u32,
    /// Where in it the length is, a little-endian u32.
    pub length_at: u32,
    /// Whether that counts the header too.
    pub with_header: bool,
    /// The longest message, bytes, its header included; [`MAX_MESSAGE_BYTES`] at most.
    pub max_bytes: u32,
    /// The most descriptors with one, [`MAX_FDS`] at most.
    pub max_fds: u32,
}

impl Framing {
    /// Whether messages can be told apart by it.
    pub fn is_sane(&self) -> bool {
        (1..=64).contains(&self.header_bytes)
            && self.length_at.checked_add(4).is_some_and(|end| end <= self.header_bytes)
            && (self.header_bytes..=MAX_MESSAGE_BYTES as u32).contains(&self.max_bytes)
            && self.max_fds as usize <= MAX_FDS
    }

    /// Length in bytes of the message that such a header begins. `None`: of none that is possible.
    pub fn message_bytes(&self, header: &[u8]) -> Option<usize> {
        let at = self.length_at as usize;
        let length = u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?);
        let total = if self.with_header { length } else { length.checked_add(self.header_bytes)? };
        (self.header_bytes..=self.max_bytes).contains(&total).then_some(total as usize)
    }
}

/// What a daemon asks for on the control socket. Names are those of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first one: who speaks.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// What is there of that device?
    Find(String),
    /// Keep this device: its listening socket, which listens already, and its memory come along, in this order. What
    /// was kept under that name before goes, but for a client: that is held until it is closed.
    Keep(String, Framing),
    /// Let go of that device, and send its client away.
    Forget(String),
    /// Let go of all that this daemon has not asked to keep.
    ForgetOthers,
}

/// What the keeper answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Hello`].
    Hello {
        /// The keeper's [`VERSION`]. It knows no other one.
        version: u32,
    },
    /// To [`Request::Find`]: the listening socket and the memory come along.
    Found {
        /// Whether a client is held.
        has_client: bool,
    },
    /// To [`Request::Find`]: nothing of that name is there.
    Unknown,
    /// To [`Request::Keep`]: the daemon's end of the device's channel comes along.
    Kept,
    /// It was done.
    Done,
    /// It was not, for this reason.
    Refused(String),
}

/// Why a client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// It closed its socket.
    Left,
    /// It sent more descriptors with one message than its protocol allows, or than could be opened.
    TooManyFds,
    /// It sent a descriptor of something else than memory, an eventfd or a Unix stream socket.
    ForeignFd,
    /// It left a message unfinished for too long.
    Stalled,
    /// It does not read its replies.
    NotReading,
    /// Its message has a length that is not possible.
    BadLength,
    /// The system's error with its socket.
    Socket(i32),
}

/// How a message comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It was never told before.
    New,
    /// It was told to another daemon, which did not answer it.
    Again,
    /// Another daemon answered it, and had it kept. It is to be taken in, and not answered.
    Kept,
}

/// What the keeper tells on a device's channel. `client` numbers clients, over all devices and daemons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Here is a client; its socket comes along, to see who it is.
    Client {
        /// Its number.
        client: u64,
        /// Whether an earlier daemon had it.
        is_held: bool,
    },
    /// It sent this; its descriptors come along.
    Message {
        /// The client that sent it.
        client: u64,
        /// The message's number: each one's is above that of the one before.
        number: u64,
        /// Whether it is a new one.
        how: How,
        /// All of it.
        bytes: Vec<u8>,
    },
    /// All that was kept of what this client said has been told.
    Restored {
        /// Which client.
        client: u64,
        /// How long it had no daemon, in milliseconds.
        alone_ms: u64,
    },
    /// It is gone; nothing of it is kept.
    Gone {
        /// Which client.
        client: u64,
        /// Why.
        why: Gone,
    },
    /// Another one was sent away, as this device has one.
    Refused,
}

/// What a daemon says on a device's channel. What it says of a client that is gone has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// A client may come.
    Accept,
    /// The one message that is not answered has been dealt with. These bytes, if there are any, go to the client, and
    /// the descriptor that came along with them.
    Answer {
        /// The client that sent it.
        client: u64,
        /// Which message.
        number: u64,
        /// Whether it is to be kept for another daemon.
        keep: bool,
        /// Kept ones that need not be kept any more.
        forget: Vec<u64>,
        /// The reply, if there is one.
        bytes: Vec<u8>,
    },
    /// The client is to be sent away, once it has what it was answered.
    Close {
        /// Which one.
        client: u64,
    },
}

/// Writes a packet.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u32) -> Self {
        Self(kind.to_le_bytes().to_vec())
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn rest(mut self, bytes: &[u8]) -> Vec<u8> {
        self.0.extend(bytes);
        self.0
    }
}

/// Reads a packet; `None`: it is too short.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u32()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }

    fn name(self) -> Option<String> {
        let name = std::str::from_utf8(self.0).ok()?;
        (1..=MAX_NAME_BYTES).contains(&name.len()).then(|| name.to_owned())
    }

    fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

impl Request {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version } => Writer::new(1).u32(*version).rest(&[]),
            Self::Find(name) => Writer::new(2).rest(name.as_bytes()),
            Self::Keep(name, framing) => {
                let Framing { header_bytes, length_at, with_header, max_bytes, max_fds } = *framing;
                let writer = Writer::new(3).u32(header_bytes).u32(length_at).u32(with_header.into());
                writer.u32(max_bytes).u32(max_fds).rest(name.as_bytes())
            }
            Self::Forget(name) => Writer::new(4).rest(name.as_bytes()),
            Self::ForgetOthers => Writer::new(5).rest(&[]),
        }
    }

    /// Of a packet. `None`: it is none.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let mut reader = Reader(packet);
        Some(match reader.u32()? {
            1 => {
                let version = reader.u32()?;
                // A later version may say more.
                Self::Hello { version }
            }
            2 => Self::Find(reader.name()?),
            3 => {
                let (header_bytes, length_at, with_header) = (reader.u32()?, reader.u32()?, reader.flag()?);
                let (max_bytes, max_fds) = (reader.u32()?, reader.u32()?);
                let framing = Framing { header_bytes, length_at, with_header, max_bytes, max_fds };
                Self::Keep(reader.name()?, Some(framing).filter(Framing::is_sane)?)
            }
            4 => Self::Forget(reader.name()?),
            5 => {
                reader.end()?;
                Self::ForgetOthers
            }
            _ => return None,
        })
    }
}

impl Answer {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { version } => Writer::new(1).u32(*version).rest(&[]),
            Self::Found { has_client } => Writer::new(2).u32((*has_client).into()).rest(&[]),
            Self::Unknown => Writer::new(3).rest(&[]),
            Self::Kept => Writer::new(4).rest(&[]),
            Self::Done => Writer::new(5).rest(&[]),
            Self::Refused(why) => Writer::new(6).rest(why.as_bytes()),
        }
    }

    /// Of a packet. `None`: it is none.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let mut reader = Reader(packet);
        let answer = match reader.u32()? {
            1 => return Some(Self::Hello { version: reader.u32()? }),
            2 => Self::Found { has_client: reader.flag()? },
            3 => Self::Unknown,
            4 => Self::Kept,
            5 => Self::Done,
            6 => return Some(Self::Refused(String::from_utf8_lossy(reader.rest()).into_owned())),
            _ => return None,
        };
        reader.end()?;
        Some(answer)
    }
}

impl Gone {
    /// As two numbers, for [`Gone::of`].
    pub fn code(self) -> (u32, u32) {
        match self {
            Self::Left => (0, 0),
            Self::TooManyFds => (1, 0),
            Self::ForeignFd => (2, 0),
            Self::Stalled => (3, 0),
            Self::NotReading => (4, 0),
            Self::BadLength => (5, 0),
            Self::Socket(errno) => (6, errno.cast_unsigned()),
        }
    }

    /// Of two numbers. `None`: they are none.
    pub fn of(code: u32, errno: u32) -> Option<Self> {
        let plain = [Self::Left, Self::TooManyFds, Self::ForeignFd, Self::Stalled, Self::NotReading, Self::BadLength];
        match (code, errno) {
            (6, errno) => Some(Self::Socket(errno.cast_signed())),
            (code, 0) => plain.get(code as usize).copied(),
            _ => None,
        }
    }
}

impl Told {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Client { client, is_held } => Writer::new(1).u64(*client).u32((*is_held).into()).rest(&[]),
            Self::Message { client, number, how, bytes } => {
                let how = match how {
                    How::New => 0,
                    How::Again => 1,
                    How::Kept => 2,
                };
                Writer::new(2).u64(*client).u64(*number).u32(how).rest(bytes)
            }
            Self::Restored { client, alone_ms } => Writer::new(3).u64(*client).u64(*alone_ms).rest(&[]),
            Self::Gone { client, why } => {
                let (code, errno) = why.code();
                Writer::new(4).u64(*client).u32(code).u32(errno).rest(&[])
            }
            Self::Refused => Writer::new(5).rest(&[]),
        }
    }

    /// Of a packet. `None`: it is none.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let mut reader = Reader(packet);
        let told = match reader.u32()? {
            1 => Self::Client { client: reader.u64()?, is_held: reader.flag()? },
            2 => {
                let (client, number) = (reader.u64()?, reader.u64()?);
                let how = *[How::New, How::Again, How::Kept].get(reader.u32()? as usize)?;
                return Some(Self::Message { client, number, how, bytes: reader.rest().to_vec() });
            }
            3 => Self::Restored { client: reader.u64()?, alone_ms: reader.u64()? },
            4 => Self::Gone { client: reader.u64()?, why: Gone::of(reader.u32()?, reader.u32()?)? },
            5 => Self::Refused,
            _ => return None,
        };
        reader.end()?;
        Some(told)
    }
}

impl Said {
    /// As a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Accept => Writer::new(1).rest(&[]),
            Self::Answer { client, number, keep, forget, bytes } => {
                let writer = Writer::new(2).u64(*client).u64(*number).u32((*keep).into()).u32(forget.len() as u32);
                forget.iter().fold(writer, |writer, number| writer.u64(*number)).rest(bytes)
            }
            Self::Close { client } => Writer::new(3).u64(*client).rest(&[]),
        }
    }

    /// Of a packet. `None`: it is none.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let mut reader = Reader(packet);
        let said = match reader.u32()? {
            1 => Self::Accept,
            2 => {
                let (client, number, keep) = (reader.u64()?, reader.u64()?, reader.flag()?);
                let count = reader.u32()? as usize;
                if count > packet.len() / 8 {
                    return None;
                }
                let forget = (0..count).map(|_| reader.u64()).collect::<Option<_>>()?;
                return Some(Self::Answer { client, number, keep, forget, bytes: reader.rest().to_vec() });
            }
            3 => Self::Close { client: reader.u64()? },
            _ => return None,
        };
        reader.end()?;
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMING: Framing =
        Framing { header_bytes: 16, length_at: 4, with_header: true, max_bytes: 70_000, max_fds: 16 };

    #[test]
    fn what_is_said_is_understood() {
        let name = || "db".to_owned();
        for request in [
            Request::Hello { version: VERSION },
            Request::Find(name()),
            Request::Keep(name(), FRAMING),
            Request::Forget(name()),
            Request::ForgetOthers,
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let refused = Answer::Refused("because".into());
        let hello = Answer::Hello { version: 7 };
        let found = Answer::Found { has_client: true };
        for answer in [hello, found, Answer::Unknown, Answer::Kept, Answer::Done, refused] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        let message = |how| Told::Message { client: 1, number: u64::MAX, how, bytes: vec![1, 2, 3] };
        let gone = |why| Told::Gone { client: 9, why };
        for told in [
            Told::Client { client: 3, is_held: true },
            message(How::New),
            message(How::Again),
            message(How::Kept),
            Told::Restored { client: 4, alone_ms: 3_100 },
            gone(Gone::Left),
            gone(Gone::BadLength),
            gone(Gone::Socket(104)),
            Told::Refused,
        ] {
            assert_eq!(Told::decode(&told.encode()), Some(told));
        }
        let answer = |forget, bytes| Said::Answer { client: 1, number: 2, keep: true, forget, bytes };
        for said in
            [Said::Accept, answer(vec![], vec![]), answer(vec![5, 6], vec![0; 99]), Said::Close { client: u64::MAX }]
        {
            assert_eq!(Said::decode(&said.encode()), Some(said));
        }
    }

    #[test]
    fn what_is_cut_off_or_more_than_it_says_is_not() {
        let keep = Request::Keep("db".into(), FRAMING).encode();
        assert!((0..keep.len() - 1).all(|len| Request::decode(&keep[..len]).is_none()));
        let long = Request::Find("x".repeat(MAX_NAME_BYTES + 1)).encode();
        assert_eq!(Request::decode(&long), None);
        let mut answer = Said::Answer { client: 1, number: 2, keep: false, forget: vec![3], bytes: vec![] }.encode();
        answer[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Said::decode(&answer), None, "a count that nothing follows");
        assert_eq!(Said::decode(&[Said::Accept.encode(), vec![0]].concat()), None);
    }

    #[test]
    fn a_message_ends_where_its_header_says() {
        let header = |length: u32| [&[0; 4], &length.to_le_bytes()[..], &[0; 8]].concat();
        assert_eq!(FRAMING.message_bytes(&header(16)), Some(16));
        assert_eq!(FRAMING.message_bytes(&header(70_000)), Some(70_000));
        assert_eq!(FRAMING.message_bytes(&header(15)), None);
        assert_eq!(FRAMING.message_bytes(&header(70_001)), None);
        let payload = Framing { with_header: false, ..FRAMING };
        assert_eq!(payload.message_bytes(&header(0)), Some(16));
        assert_eq!(payload.message_bytes(&header(u32::MAX)), None);
        assert!(!Framing { length_at: 13, ..FRAMING }.is_sane() && FRAMING.is_sane());
    }
}
