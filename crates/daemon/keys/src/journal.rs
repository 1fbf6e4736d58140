//! The position of a re-encryption, durably, with the data that it overwrites.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use openssl::sha::Sha256;

use crate::secret::DataSecret;

/// Bytes that are re-encrypted at a time, at most.
pub const WINDOW_BYTES: u64 = 1 << 20;

const NO_LINKS_NO_WAITING: i32 = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).bits();
const MAGIC: &[u8; 8] = b"EKREENC1";
const HEAD_BYTES: u64 = 4096;
const SLOT_BYTES: u64 = HEAD_BYTES + WINDOW_BYTES;
const DIGEST_BYTES: usize = 32;
/// Magic, sequence, start and length.
const FIELDS_BYTES: usize = 32;

/// Which disk and which change of its key a journal is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeId([u8; DIGEST_BYTES]);

impl ChangeId {
    /// That of a change to the key `next`.
    pub fn of(next: &DataSecret, serial: &str) -> Self {
        let mut digest = Sha256::new();
        [b"evenkeel key change 1:", serial.as_bytes(), &[0], next.bytes()].iter().for_each(|part| digest.update(part));
        Self(digest.finish())
    }
}

/// How far a re-encryption has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// All before it has the next key.
    pub start_bytes: u64,
    /// What the drive held from there on, before it was rewritten. Some of it may be rewritten; all behind it has the
    /// former key.
    pub former: Vec<u8>,
}

/// Why a re-encryption can't go on.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No slot of the file is whole, or it is of another change.
    #[error("it is damaged, or of another disk")]
    Damaged,
}

/// The file of a re-encryption: two slots, written by turns. A slot that was cut short leaves the other one.
#[derive(Debug)]
pub struct ChangeJournal {
    file: File,
    id: ChangeId,
    sequence: u64,
}

impl ChangeJournal {
    /// A journal for a change that has yet to begin, durably, in place of any former one. The room for it is taken at
    /// once, so that no full disk stops it half-way.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn create(path: &Path, id: ChangeId) -> io::Result<Self> {
        Self::remove(path)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let mut journal = Self { file, id, sequence: 0 };
        let whole = vec![0; SLOT_BYTES as usize];
        journal.file.write_all_at(&whole, 0)?;
        journal.file.write_all_at(&whole, SLOT_BYTES)?;
        journal.record(0, &[])?;
        journal.file.sync_all()?;
        sync_directory(path)?;
        Ok(journal)
    }

    /// Opens the journal of a change that was cut short, and says how far it is.
    ///
    /// # Errors
    /// It can't be read, or has no whole slot of this change.
    pub fn open(path: &Path, id: ChangeId) -> Result<(Self, Position), JournalError> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(NO_LINKS_NO_WAITING).open(path)?;
        if file.metadata()?.len() != 2 * SLOT_BYTES {
            return Err(JournalError::Damaged);
        }
        let slots = [read_slot(&file, 0, id)?, read_slot(&file, SLOT_BYTES, id)?];
        let last = slots.into_iter().flatten().max_by_key(|(sequence, _)| *sequence);
        let (sequence, position) = last.ok_or(JournalError::Damaged)?;
        Ok((Self { file, id, sequence: sequence.wrapping_add(1) }, position))
    }

    /// Makes a position durable: all before `start_bytes` has the next key, durably. `former`: what the drive holds
    /// from there on, which is overwritten next; at most [`WINDOW_BYTES`].
    ///
    /// # Errors
    /// The file can't be written. The position may be the former one or this one.
    pub fn record(&mut self, start_bytes: u64, former: &[u8]) -> io::Result<()> {
        let at = self.sequence % 2 * SLOT_BYTES;
        let mut head = [0; HEAD_BYTES as usize];
        let numbers = [self.sequence, start_bytes, former.len() as u64].map(u64::to_le_bytes);
        head[..FIELDS_BYTES].copy_from_slice(&[&MAGIC[..], numbers.as_flattened()].concat());
        let digest = digest(&head[..FIELDS_BYTES], self.id, former);
        head[FIELDS_BYTES..][..DIGEST_BYTES].copy_from_slice(&digest);
        self.file.write_all_at(former, at + HEAD_BYTES)?;
        self.file.write_all_at(&head, at)?;
        self.file.sync_data()?;
        self.sequence += 1;
        Ok(())
    }

    /// Removes the journal of a change that is over, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_directory(path),
        }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn digest(fields: &[u8], ChangeId(id): ChangeId, former: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut digest = Sha256::new();
    [fields, &id, former].iter().for_each(|part| digest.update(part));
    digest.finish()
}

/// The sequence and position of a slot. `None`: it is not whole, or of another change.
fn read_slot(file: &File, at: u64, id: ChangeId) -> io::Result<Option<(u64, Position)>> {
    let mut head = [0; HEAD_BYTES as usize];
    file.read_exact_at(&mut head, at)?;
    let (fields, rest) = head.split_at(FIELDS_BYTES);
    let (numbers, _) = fields[MAGIC.len()..].as_chunks();
    let [sequence, start_bytes, len_bytes] = [0, 1, 2].map(|at: usize| u64::from_le_bytes(numbers[at]));
    if &fields[..MAGIC.len()] != MAGIC || len_bytes > WINDOW_BYTES {
        return Ok(None);
    }
    let mut former = vec![0; len_bytes as usize];
    file.read_exact_at(&mut former, at + HEAD_BYTES)?;
    let is_whole = digest(fields, id, &former) == rest[..DIGEST_BYTES];
    Ok(is_whole.then_some((sequence, Position { start_bytes, former })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> ChangeId {
        ChangeId::of(&DataSecret::random().unwrap(), "db")
    }

    /// A record that was cut anywhere must leave the one before: the range that it names is being rewritten.
    #[test]
    fn a_record_that_is_cut_short_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id) = (dir.path().join("journal"), change());
        let mut journal = ChangeJournal::create(&path, id).unwrap();
        let at = |path: &Path| ChangeJournal::open(path, id).map(|(_, position)| position);
        assert_eq!(at(&path).unwrap(), Position { start_bytes: 0, former: Vec::new() });
        let (first, second) = (vec![1; WINDOW_BYTES as usize], vec![2; 8192]);
        journal.record(0, &first).unwrap();
        let before = std::fs::read(&path).unwrap();
        journal.record(WINDOW_BYTES, &second).unwrap();
        let after = std::fs::read(&path).unwrap();
        let torn = dir.path().join("torn");
        for kept in [0, 1, FIELDS_BYTES, FIELDS_BYTES + 1, 4096, 4097, 4096 + 8191, 4096 + 8192] {
            let mixed = [&after[..kept], &before[kept..]].concat();
            std::fs::write(&torn, mixed).unwrap();
            let (start_bytes, former) =
                if kept < 4096 + 8192 { (0, first.clone()) } else { (WINDOW_BYTES, second.clone()) };
            let found = at(&torn).unwrap();
            assert!(found == Position { start_bytes, former }, "{kept}: at {}", found.start_bytes);
        }
        let (mut again, _) = ChangeJournal::open(&path, id).unwrap();
        again.record(2 * WINDOW_BYTES, &[]).unwrap();
        assert_eq!(at(&path).unwrap(), Position { start_bytes: 2 * WINDOW_BYTES, former: Vec::new() });
    }

    #[test]
    fn no_other_file_is_taken_for_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        drop(ChangeJournal::create(&path, change()).unwrap());
        let opened = |path: &Path| ChangeJournal::open(path, change()).map(drop);
        assert!(matches!(opened(&path), Err(JournalError::Damaged)), "of another change");
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(opened(&path), Err(JournalError::Damaged)));
        ChangeJournal::remove(&path).unwrap();
        assert!(matches!(opened(&path), Err(JournalError::Io(_))));
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        drop(ChangeJournal::create(&path, change()).unwrap());
        assert!(!dir.path().join("elsewhere").exists(), "a link is not followed");
    }
}
