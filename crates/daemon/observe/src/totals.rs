//! What `/metrics` counted of a tenant goes on where the daemon before ended: Prometheus takes a counter that fell for
//! one that began anew, and would count all of it again.
//!
//! It is recorded in `<runtime_dir>/totals.json` before anybody is shown it. So nothing that was shown falls: after an
//! orderly end all of it goes on, and after a kill what was recorded last, without what came since.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client_socket::{Level, Sink};
use io_model::TenantId;
use metrics::{BOUNDS_NS, Moved, Totals};
use poller::{Counters, HistogramCounts, TenantProbes};
use serde::{Deserialize, Serialize};

use crate::DriveView;

/// Of what the file says, and how.
const VERSION: u32 = 1;

/// A hundred thousand tenants take less.
const FILE_MAX_BYTES: u64 = 64 << 20;

/// By drive, then by tenant.
type ByDrive = BTreeMap<String, BTreeMap<String, Totals>>;

#[derive(Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    drives: ByDrive,
}

/// A tenant that is served.
struct Known {
    drive: Arc<str>,
    name: String,
    /// What the daemon before counted.
    before: Totals,
    /// All, when it was last looked at.
    total: Totals,
    /// Since the last record.
    is_seen: bool,
}

/// What each tenant's counters have reached.
pub struct Ledger {
    path: PathBuf,
    sink: Sink,
    /// What the daemon before recorded of tenants that have not been seen yet.
    earlier: ByDrive,
    known: BTreeMap<TenantId, Known>,
    is_in_trouble: bool,
}

impl Ledger {
    /// Continues with the file's counts. A file that can't be used is reported, and all counts start at 0.
    pub fn open(path: PathBuf, sink: Sink) -> Self {
        let earlier = read(&path).unwrap_or_else(|error| {
            let line = format!("{}: {error}; the counters of /metrics restart at 0", path.display());
            sink(Level::Warn.of_daemon(), &line);
            ByDrive::default()
        });
        Self { path, sink, earlier, known: BTreeMap::new(), is_in_trouble: false }
    }

    /// All that was counted of a tenant until now.
    pub fn total(&mut self, drive: &Arc<str>, name: &str, probes: &TenantProbes) -> Totals {
        let known = self.known.entry(probes.tenant()).or_insert_with(|| Known {
            drive: Arc::clone(drive),
            name: name.to_owned(),
            before: self.earlier.get_mut(&**drive).and_then(|tenants| tenants.remove(name)).unwrap_or_default(),
            total: Totals::default(),
            is_seen: true,
        });
        known.is_seen = true;
        known.total = known.before.clone();
        known.total += &counted(probes);
        known.total.clone()
    }

    /// Records readings before they are shown. A tenant without a reading since the last record has left.
    pub fn record(&mut self) {
        self.known.retain(|_, known| std::mem::take(&mut known.is_seen));
        let mut drives = ByDrive::new();
        for known in self.known.values() {
            // What is left there of a drive that is served is of disks that are gone.
            self.earlier.remove(&*known.drive);
            drives.entry(known.drive.to_string()).or_default().insert(known.name.clone(), known.total.clone());
        }
        drives.extend(self.earlier.clone());
        let written = write(&self.path, &Record { version: VERSION, drives });
        if let Err(error) = &written
            && !self.is_in_trouble
        {
            let line = format!("{}: {error}; if the daemon dies, /metrics restarts at 0", self.path.display());
            (self.sink)(Level::Warn.of_daemon(), &line);
        }
        self.is_in_trouble = written.is_err();
    }

    /// The last record of a daemon that ends, after all its tenants have left.
    pub fn record_last(&mut self, tenants: &[Served]) {
        for Served { drive, name, probes } in tenants {
            self.total(drive, name, probes);
        }
        self.record();
    }
}

/// A tenant, by name.
pub struct Served {
    drive: Arc<str>,
    name: String,
    probes: TenantProbes,
}

impl Served {
    /// All tenants with a name.
    pub fn all(views: &[DriveView]) -> Vec<Self> {
        let of_drive = |view: &DriveView| {
            let served = |probes: &TenantProbes| {
                let name = view.foresight.name(probes.tenant())?.to_owned();
                Some(Self { drive: Arc::clone(&view.name), name, probes: probes.clone() })
            };
            view.foresight.tenants().filter_map(served).collect::<Vec<_>>()
        };
        views.iter().flat_map(of_drive).collect()
    }
}

/// What probes counted. They are read one after another, while the poller counts on.
fn counted(probes: &TenantProbes) -> Totals {
    let counts: Counters = probes.counters();
    let moved = |completions, bytes, errors| Moved { completions, bytes, errors };
    let others = counts.completed.saturating_sub(counts.reads + counts.writes);
    let other_errors = counts.errors.saturating_sub(counts.read_errors + counts.write_errors);
    // Nothing is read of tenants that are idle for good.
    let latencies = if counts.completed == 0 { HistogramCounts::default() } else { probes.latency_counts() };
    Totals {
        reads: moved(counts.reads, counts.read_bytes, counts.read_errors),
        writes: moved(counts.writes, counts.write_bytes, counts.write_errors),
        others: moved(others, 0, other_errors),
        late: counts.violations,
        at_most: latencies.at_most(BOUNDS_NS).collect(),
        latency_ns: counts.latency_sum_ns,
        served_ns: counts.served_sum_ns,
    }
}

/// Nothing where there is no file.
fn read(path: &Path) -> io::Result<ByDrive> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ByDrive::new()),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut text)?;
    let record: Record = serde_json::from_slice(&text)?;
    let is_known = record.version == VERSION && record.drives.values().flat_map(BTreeMap::values).all(has_these_bounds);
    is_known.then_some(record.drives).ok_or_else(|| io::Error::other("another version wrote it"))
}

fn has_these_bounds(totals: &Totals) -> bool {
    totals.at_most.len() == BOUNDS_NS.len()
}

/// Whole or not at all: a daemon may die at any point.
fn write(path: &Path, record: &Record) -> io::Result<()> {
    let next = path.with_extension("next");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    let mut file = BufWriter::new(file);
    serde_json::to_writer(&mut file, record)?;
    file.flush()?;
    fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn ledger(path: &Path) -> (Ledger, Arc<Mutex<Vec<String>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&said);
        let sink: Sink = Arc::new(move |_, line: &str| hears.lock().unwrap().push(line.to_owned()));
        (Ledger::open(path.to_owned(), sink), said)
    }

    fn of_reads(completions: u64) -> Totals {
        let reads = Moved { completions, bytes: 4096 * completions, errors: 0 };
        Totals { reads, at_most: vec![completions; BOUNDS_NS.len()], ..Totals::default() }
    }

    /// A file in which `db` and `gone` of the drive `fast`, and `away` of `slow`, have read.
    fn recorded(path: &Path) {
        let of =
            |names: &[(&str, u64)]| names.iter().map(|&(name, count)| (name.to_owned(), of_reads(count))).collect();
        let drives = [("fast", of(&[("db", 7), ("gone", 9)])), ("slow", of(&[("away", 5)]))];
        let drives = drives.map(|(drive, tenants)| (drive.to_owned(), tenants)).into();
        write(path, &Record { version: VERSION, drives }).unwrap();
    }

    fn probes(id: u32) -> TenantProbes {
        [Arc::new(poller::Probe::new(TenantId(id), policy::Class::BestEffort { weight: 1 }))].into_iter().collect()
    }

    #[test]
    fn a_tenant_goes_on_and_one_that_is_made_anew_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("totals.json");
        recorded(&path);
        let (mut ledger, said) = ledger(&path);
        let drive = Arc::from("fast");
        assert_eq!(ledger.total(&drive, "db", &probes(1)), of_reads(7));
        ledger.record();
        // A tenant that left is forgotten. A drive that is missing is not.
        let again = read(&path).unwrap();
        assert_eq!(again["fast"], BTreeMap::from([("db".to_owned(), of_reads(7))]));
        assert_eq!(again["slow"]["away"], of_reads(5));
        // Deleted, and made anew under that name.
        assert_eq!(ledger.total(&drive, "db", &probes(2)).reads, Moved::default());
        assert!(said.lock().unwrap().is_empty());
    }

    #[test]
    fn what_can_not_be_read_is_told_of_and_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("totals.json");
        let whole = {
            recorded(&path);
            fs::read(&path).unwrap()
        };
        let other_version = String::from_utf8(whole.clone()).unwrap().replace("\"version\":1", "\"version\":2");
        let other_bounds = String::from_utf8(whole.clone()).unwrap().replacen("[7,", "[", 1);
        for bad in [&whole[..whole.len() / 2], b"", other_version.as_bytes(), other_bounds.as_bytes()] {
            fs::write(&path, bad).unwrap();
            let (ledger, said) = ledger(&path);
            assert!(ledger.earlier.is_empty());
            assert_eq!(said.lock().unwrap().len(), 1);
        }
    }

    #[test]
    fn a_directory_that_takes_nothing_is_told_of_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, said) = ledger(&dir.path().join("gone/totals.json"));
        ledger.record();
        ledger.record();
        assert_eq!(said.lock().unwrap().len(), 1);
    }
}
