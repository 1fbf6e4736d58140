//! What single keys hold: the types of their values, and how each is read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use io_model::units::Size;
use nvme_driver::PciAddress;
use toml::Spanned;
use toml::de::{DeString, DeValue};

use crate::section::{Wrong, clip, kind, size, text};

/// A user or a group, by name or by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// As in the file.
    pub name: String,
    /// Looked up by [`Prepared::new`](crate::Prepared::new); before, only where the name is the number.
    pub id: Option<u32>,
}

/// What stands behind a drive.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BackendWord {
    File,
    Block,
    Nvme,
    Directory,
    Memory,
    Null,
    Model,
}

/// How the wiper makes zeros of what a deleted disk left. Three passes are written whatever is said here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WipeBy {
    /// Zeros are written.
    Overwrite,
    /// The drive is told to ([`Op::WriteZeroes`](io_model::Op::WriteZeroes)), and what it then reads as is looked at.
    WriteZeroes,
}

/// How a tenant's doorbells reach us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doorbells {
    /// A page that the guest writes without an exit.
    Mapped,
    /// Each write is a message.
    Trapped,
}

/// Which threads serve a tenant's queues. A queue's commands are submitted and completed by one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Threads {
    /// Those of `[pollers]`, with other tenants' queues.
    Shared,
    /// One for this tenant alone: VBMq's data plane.
    Dedicated,
    /// One for each virtqueue: VBMq.
    PerQueue,
}

/// When a thread sleeps; a later one is more eager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Whenever there is nothing to do.
    Event,
    /// After [`Pollers::idle_after`](crate::Pollers::idle_after) without I/O.
    Adaptive,
    /// Never while a client is attached.
    Polling,
}

/// The owner of the key that a disk's data is encrypted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encryption {
    /// It is not encrypted.
    #[default]
    None,
    /// A random key that the host key wraps.
    Host,
    /// The tenant's own, which the daemon keeps in memory alone.
    Tenant,
}

pub(crate) const ENCRYPTIONS: &[(&str, Encryption)] =
    &[("none", Encryption::None), ("host", Encryption::Host), ("tenant", Encryption::Tenant)];
pub(crate) const BACKENDS: &[(&str, BackendWord)] = &[
    ("file", BackendWord::File),
    ("block", BackendWord::Block),
    ("nvme", BackendWord::Nvme),
    ("directory", BackendWord::Directory),
    ("memory", BackendWord::Memory),
    ("null", BackendWord::Null),
    ("model", BackendWord::Model),
];
pub(crate) const WIPES: &[(&str, WipeBy)] = &[("overwrite", WipeBy::Overwrite), ("write-zeroes", WipeBy::WriteZeroes)];
pub(crate) const DOORBELLS: &[(&str, Doorbells)] = &[("mapped", Doorbells::Mapped), ("trapped", Doorbells::Trapped)];
pub(crate) const THREADS: &[(&str, Threads)] =
    &[("shared", Threads::Shared), ("dedicated", Threads::Dedicated), ("per-queue", Threads::PerQueue)];
pub(crate) const MODES: &[(&str, Mode)] =
    &[("adaptive", Mode::Adaptive), ("polling", Mode::Polling), ("event", Mode::Event)];

impl Encryption {
    /// As the file names it.
    pub fn name(self) -> &'static str {
        word_of(ENCRYPTIONS, &self)
    }

    /// The LBA size of a new disk: as the file says, or else 4096 where it is encrypted.
    pub(crate) fn lba_bytes(self, bytes: u32, is_written: bool) -> u32 {
        if is_written || self == Self::None { bytes } else { ENCRYPTED_LBA_BYTES }
    }
}

impl Threads {
    /// As the file names them.
    pub fn name(self) -> &'static str {
        word_of(THREADS, &self)
    }
}

impl Mode {
    /// As the file names it.
    pub fn name(self) -> &'static str {
        word_of(MODES, &self)
    }
}

/// The word of a value.
pub(crate) fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}

pub(crate) fn account(value: &DeValue<'_>) -> Result<Account, Wrong> {
    let name = text(value)?;
    // What useradd(8) allows, and numbers.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$');
    if name.is_empty() || name.len() > 64 || name.starts_with('-') || !name.chars().all(allowed) {
        let what = format!("is {:?}", clip(&name));
        return Err(Wrong { what, remedy: "write the name or number of a user or group of this host".into() });
    }
    let id = name.parse().ok();
    Ok(Account { name, id })
}

/// Permission bits of a socket.
pub(crate) fn socket_mode(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let found = text(value).ok();
    let bits = found.as_deref().filter(|text| text.len() == 4 && text.starts_with('0'));
    let bits = bits.and_then(|text| u32::from_str_radix(text, 8).ok());
    // Writing is connecting, reading is for looks; nothing else means anything on a socket.
    bits.filter(|bits| bits & !0o666 == 0 && bits & 0o600 == 0o600).ok_or_else(|| Wrong {
        what: found.map_or_else(|| "is no text".into(), |found| format!("is {:?}", clip(&found))),
        remedy: "write \"0600\" (the user), \"0660\" (and the group) or \"0666\" (everybody)".into(),
    })
}

/// An address that other hosts can't reach: what goes over it is not encrypted.
pub(crate) fn loopback(value: &DeValue<'_>) -> Result<SocketAddr, Wrong> {
    let found = text(value)?;
    let remedy = "write an address of this host alone with a port, \"127.0.0.1:9560\" or \"[::1]:9560\"; for other \
                  hosts, put a proxy with TLS before it";
    let wrong = |why: &str| Wrong { what: format!("is {:?}, {why}", clip(&found)), remedy: remedy.into() };
    let address: SocketAddr = found.parse().map_err(|_| wrong("which is no address with a port"))?;
    match address {
        _ if !address.ip().is_loopback() => Err(wrong("which other hosts may reach")),
        _ if address.port() == 0 => Err(wrong("which nobody could find")),
        _ => Ok(address),
    }
}

pub(crate) fn absolute(value: &DeValue<'_>) -> Result<PathBuf, Wrong> {
    let found = text(value)?;
    if found.contains('\0') {
        return Err(Wrong { what: "has a NUL character in it".into(), remedy: "remove it".into() });
    }
    if !found.starts_with('/') {
        let what = format!("is {found:?}, which depends on where the daemon is started");
        return Err(Wrong { what, remedy: "write the whole path, from /".into() });
    }
    Ok(PathBuf::from(found))
}

/// A path that may be relative.
pub(crate) fn file_name(value: &DeValue<'_>) -> Result<PathBuf, Wrong> {
    let found = text(value)?;
    if found.is_empty() || found.contains('\0') {
        let what = if found.is_empty() { "is empty" } else { "has a NUL character in it" };
        return Err(Wrong { what: what.into(), remedy: "write the path of a file".into() });
    }
    Ok(PathBuf::from(found))
}

pub(crate) fn file_names(value: &DeValue<'_>) -> Result<Vec<PathBuf>, Wrong> {
    let names = list(value, "expected a list of paths such as [\"base.qcow2\"]", file_name)?;
    Ok(names.into_iter().map(Spanned::into_inner).collect())
}

/// A PCI function, in the kernel's words.
pub(crate) fn pci_address(value: &DeValue<'_>) -> Result<String, Wrong> {
    let found = text(value)?;
    let parsed: Result<PciAddress, _> = found.parse();
    parsed.map(|address| address.to_string()).map_err(|_| Wrong {
        what: format!("is {found:?}, which is no PCI address"),
        remedy: "write it as \"0000:03:00.0\"; `lspci -D` lists the devices".into(),
    })
}

/// What has a place in `runtime_dir`, where each tenant has its own: the keeper's socket, the API's token.
const OWN_NAMES: [&str; 2] = ["keeper", "token"];

/// Whether a disk or a snapshot can have that name: 1 to 63 of `a-z 0-9 _ -`, and first a letter or digit.
pub fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.starts_with(letter)
        && name.chars().all(|c| letter(c) || c == '_' || c == '-')
}

/// A tenant's name.
pub fn name(value: &DeValue<'_>) -> Result<String, Wrong> {
    let found = text(value)?;
    let shown: String = found.chars().take(80).collect();
    if OWN_NAMES.contains(&found.as_str()) {
        let what = format!("is {found:?}, a name that the daemon itself uses in its runtime_dir");
        return Err(Wrong { what, remedy: "choose another name".into() });
    }
    let remedy = "use 1 to 63 of a-z, 0-9, _ and -, and start with a letter or digit";
    Some(found)
        .filter(|found| is_name(found))
        .ok_or_else(|| Wrong { what: format!("is {shown:?}"), remedy: remedy.into() })
}

pub(crate) fn size_or_zero(value: &DeValue<'_>) -> Result<Size, Wrong> {
    size(value).map_err(|w| Wrong { remedy: format!("{}; \"0\" is the drive's start", w.remedy), ..w })
}

/// What a disk or namespace has whose section does not say, in bytes.
pub const LBA_BYTES: u32 = LBA_SIZES[0] as u32;
/// The block size of an encrypted disk without one of its own: small sectors cost the cipher three times as much.
pub(crate) const ENCRYPTED_LBA_BYTES: u32 = LBA_SIZES[1] as u32;
/// The block sizes that disks can have.
const LBA_SIZES: [u64; 2] = [512, 4096];

pub(crate) fn lba_size(value: &DeValue<'_>) -> Result<u32, Wrong> {
    let remedy = || format!("expected {} or {}", LBA_SIZES[0], LBA_SIZES[1]);
    match size(value) {
        Ok(Size(found)) if LBA_SIZES.contains(&found) => Ok(found as u32),
        Ok(other) => Err(Wrong { what: format!("is {}", other.0), remedy: remedy() }),
        Err(wrong) => Err(Wrong { remedy: remedy(), ..wrong }),
    }
}

/// Bytes of a pool's pieces.
const PIECES: std::ops::RangeInclusive<u64> = (64 << 10)..=(4 << 20);

pub(crate) fn piece(value: &DeValue<'_>) -> Result<Size, Wrong> {
    let remedy = || "expected 64KiB, 128KiB and so on up to 4MiB".to_owned();
    match size(value) {
        Ok(Size(bytes)) if bytes.is_power_of_two() && PIECES.contains(&bytes) => Ok(Size(bytes)),
        Ok(other) => Err(Wrong { what: format!("is {other}"), remedy: remedy() }),
        Err(wrong) => Err(Wrong { remedy: remedy(), ..wrong }),
    }
}

/// A tenant's labels, at most.
const LABELS_MAX: usize = 16;
/// Characters of a label's value, at most: those of a name of the DNS.
const LABEL_MAX_CHARS: usize = 253;

/// A tenant's labels. A key is a part of a metric's label (Prometheus, "Metric names and labels").
pub(crate) fn labels(value: &DeValue<'_>) -> Result<BTreeMap<String, String>, Wrong> {
    let DeValue::Table(table) = value else {
        let remedy = "expected texts, each with a key, such as { pvc = \"data-0\" }";
        return Err(Wrong { what: format!("is {}", kind(value)), remedy: remedy.into() });
    };
    if table.len() > LABELS_MAX {
        let remedy = format!("write {LABELS_MAX} at most");
        return Err(Wrong { what: format!("has {} entries", table.len()), remedy });
    }
    let label = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        let key = key.get_ref();
        let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !(1..=63).contains(&key.len())
            || !key.starts_with(|c: char| c.is_ascii_lowercase())
            || !key.chars().all(is_key)
        {
            let remedy = "use 1 to 63 of a-z, 0-9 and _, and start with a letter";
            return Err(Wrong { what: format!("has the key {:?}", clip(key)), remedy: remedy.into() });
        }
        let found = text(value.get_ref())
            .map_err(|wrong| Wrong { what: format!("has {key}, which {}", wrong.what), ..wrong })?;
        if found.chars().count() > LABEL_MAX_CHARS || found.chars().any(char::is_control) {
            let what = format!("has {key}, which is {:?}", clip(&found));
            let remedy = format!("write at most {LABEL_MAX_CHARS} characters, and no control characters");
            return Err(Wrong { what, remedy });
        }
        Ok((key.to_string(), found))
    };
    table.iter().map(label).collect()
}

/// A program and its arguments.
pub(crate) fn program(value: &DeValue<'_>) -> Result<Vec<String>, Wrong> {
    let remedy = "expected a program and its arguments such as [\"/usr/bin/keyctl\", \"pipe\", \"%user:evenkeel\"]";
    let wrong = |what: String| Wrong { what, remedy: remedy.into() };
    let words: Vec<String> = list(value, remedy, text)?.into_iter().map(Spanned::into_inner).collect();
    match words.first() {
        Some(first) if first.starts_with('/') => Ok(words),
        Some(first) => Err(wrong(format!("starts with {first:?}, which is no path from /"))),
        None => Err(wrong("is empty".into())),
    }
}

/// A list of words as a file has it.
pub(crate) fn quoted(words: &Vec<String>) -> String {
    format!("{words:?}")
}

/// A list of tenants.
pub(crate) fn names(value: &DeValue<'_>) -> Result<Vec<Spanned<String>>, Wrong> {
    list(value, "expected a list of tenants such as [\"db\", \"web\"]", text)
}

/// A list of values that `read` reads, each with its place. `remedy`: for what is no such list.
fn list<T>(
    value: &DeValue<'_>,
    remedy: &str,
    read: impl Fn(&DeValue<'_>) -> Result<T, Wrong>,
) -> Result<Vec<Spanned<T>>, Wrong> {
    let wrong = |what: String| Wrong { what, remedy: remedy.into() };
    let DeValue::Array(items) = value else { return Err(wrong("is not a list".into())) };
    let entry = |item: &Spanned<DeValue<'_>>| {
        let entry = read(item.get_ref()).map_err(|found| wrong(format!("has an entry that {}", found.what)))?;
        Ok(Spanned::new(item.span(), entry))
    };
    items.iter().map(entry).collect()
}
