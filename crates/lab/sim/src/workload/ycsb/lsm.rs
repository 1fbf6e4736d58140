//! The log-structured merge tree as bytes: how much lies where, and what has to move.

use super::Lsm;

/// What the store has written and read, and why. The log is counted when it is written to the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LsmStats {
    /// Records that the application updated or inserted.
    pub user_bytes: u64,
    /// Write-ahead log.
    pub wal_bytes: u64,
    /// Memtables written as files of level 0.
    pub flush_bytes: u64,
    /// Files read to be merged.
    pub compaction_read_bytes: u64,
    /// Files written by merging.
    pub compaction_write_bytes: u64,
    /// Old versions that merging into the last level dropped.
    pub dropped_bytes: u64,
    /// Times that a write had to stop until a flush or a compaction ended.
    pub stopped_writes: u64,
    /// Times that a write was delayed because of too many files on level 0.
    pub delayed_writes: u64,
}

impl LsmStats {
    /// Bytes written to the drive for each byte that the application wrote; 0 before the first.
    pub fn write_amplification(&self) -> f64 {
        if self.user_bytes == 0 {
            return 0.0;
        }
        let written = self.wal_bytes + self.flush_bytes + self.compaction_write_bytes;
        written as f64 / self.user_bytes as f64
    }
}

/// One compaction: files of one level merged with those of the next that overlap them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Merge {
    /// 0: all files of level 0. Else the level that gives up a file.
    level: usize,
    upper_bytes: u64,
    lower_bytes: u64,
    dropped_bytes: u64,
    /// For level 0: how many files.
    files: usize,
}

impl Merge {
    pub(super) fn read_bytes(&self) -> u64 {
        self.upper_bytes + self.lower_bytes
    }

    pub(super) fn write_bytes(&self) -> u64 {
        self.read_bytes() - self.dropped_bytes
    }
}

/// The sizes of the levels.
#[derive(Debug)]
pub(super) struct Tree {
    /// The files of level 0.
    l0: Vec<u64>,
    /// Levels 1 and up; the last holds what the others don't.
    levels: Vec<u64>,
    l0_trigger: usize,
    l1_bytes: u64,
    fanout: u64,
    file_bytes: u64,
}

impl Tree {
    /// A loaded store at rest: every level but the last at its target, level 0 empty.
    pub(super) fn loaded(lsm: &Lsm, db_bytes: u64) -> Self {
        let mut levels = Vec::new();
        let mut left = db_bytes;
        let mut target = lsm.l1_bytes;
        while left > target {
            levels.push(target);
            left -= target;
            target = target.saturating_mul(lsm.fanout.into());
        }
        levels.push(left);
        Self {
            l0: Vec::new(),
            levels,
            l0_trigger: lsm.l0_trigger as usize,
            l1_bytes: lsm.l1_bytes,
            fanout: lsm.fanout.into(),
            file_bytes: lsm.file_bytes,
        }
    }

    pub(super) fn l0_files(&self) -> usize {
        self.l0.len()
    }

    pub(super) fn levels(&self) -> &[u64] {
        &self.levels
    }

    #[cfg(test)]
    pub(super) fn total_bytes(&self) -> u64 {
        self.l0.iter().sum::<u64>() + self.levels.iter().sum::<u64>()
    }

    pub(super) fn flushed(&mut self, bytes: u64) {
        self.l0.push(bytes);
    }

    /// The compaction that is most due: the level furthest above its target, if any is. `new_share` is the part of
    /// the written records that are new, not new versions of old ones.
    pub(super) fn due(&self, new_share: f64) -> Option<Merge> {
        let l0_score = self.l0.len() as f64 / self.l0_trigger as f64;
        let mut best = (l0_score >= 1.0).then_some((0, l0_score));
        for (index, bytes) in self.levels.iter().enumerate().take(self.levels.len() - 1) {
            let score = *bytes as f64 / self.target(index) as f64;
            // At its target a level has nothing to give up; a file more makes it due.
            let over = *bytes >= self.target(index) + self.file_bytes;
            if over && best.is_none_or(|(_, most)| score > most) {
                best = Some((index + 1, score));
            }
        }
        best.map(|(level, _)| self.merge(level, new_share))
    }

    fn target(&self, index: usize) -> u64 {
        self.l1_bytes.saturating_mul(self.fanout.saturating_pow(index as u32))
    }

    fn merge(&self, level: usize, new_share: f64) -> Merge {
        let (upper_bytes, lower_bytes) = match level.checked_sub(1) {
            // Files of level 0 overlap each other and all of level 1.
            None => (self.l0.iter().sum(), self.levels[0]),
            Some(index) => {
                let upper = self.file_bytes.min(self.levels[index]);
                let below = self.levels[index + 1];
                let overlap = upper as f64 * below as f64 / self.levels[index].max(1) as f64;
                (upper, blocks(overlap.min(below as f64)))
            }
        };
        let into_last = level + 1 == self.levels.len();
        let dropped_bytes = if into_last { blocks(upper_bytes as f64 * (1.0 - new_share)) } else { 0 };
        Merge { level, upper_bytes, lower_bytes, dropped_bytes, files: self.l0.len() }
    }

    pub(super) fn merged(&mut self, merge: &Merge) {
        match merge.level.checked_sub(1) {
            // Files that were flushed meanwhile stay.
            None => drop(self.l0.drain(..merge.files)),
            Some(index) => self.levels[index] -= merge.upper_bytes,
        }
        self.levels[merge.level] += merge.upper_bytes - merge.dropped_bytes;
    }
}

/// Down to whole blocks.
fn blocks(bytes: f64) -> u64 {
    bytes as u64 / 4096 * 4096
}
