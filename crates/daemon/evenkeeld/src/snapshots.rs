//! Snapshots of thin disks: made, deleted, cloned, and brought back.
//!
//! A snapshot is of one instant. The disks' maps are frozen: a write that is fetched from now on waits. Once the writes
//! before have ended, the maps are copied, and writes go on, to copies of what they change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use api::{Disk, DiskError, DiskSnapshot, DiskSpec, EventKind, Reason};
use client_socket::Level;
use io_model::Witness;
use io_model::units::Size;
use keys::StoredKey;
use layout::Snapshot;
use pieces::MapId;
use runtime::command::Reply;
use runtime::happening::{Happening, Teller};
use runtime::pieces::PiecesError;
use state::errors::{being_deleted, broken, no_such_snapshot, not_writable};
use state::{Command as StateCommand, Proposal};

use crate::error_texts::disk_error;
use crate::owner::Owner;
use crate::served_drive::ServedDrive;

/// Snapshots of a disk: the layout has a line of text for each.
const SNAPSHOTS_MAX: usize = 256;

/// What waits for writes to end.
#[derive(Default)]
pub(crate) struct Snapshots {
    pending: BTreeMap<u64, Pending>,
    /// What the next one is called.
    next: u64,
}

enum Pending {
    Make(Vec<(String, Snapshot)>, Vec<(MapId, MapId)>, Reply<Result<Vec<Disk>, DiskError>>),
    RollBack { disk: String, snapshot: String, maps: (MapId, MapId), reply: Reply<Result<Disk, DiskError>> },
}

/// Tells the owner, once it is dropped, that no write is in flight any more.
struct Quiet(Teller, u64);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.tell(Happening::Frozen(self.1));
    }
}

impl Owner {
    /// The drive that has all of these disks.
    pub(crate) fn drive_of_all(&mut self, wanted: &[(String, String)]) -> Result<&mut ServedDrive, DiskError> {
        let (first, _) = wanted.first().ok_or_else(broken)?;
        if let Some((missing, _)) = wanted.iter().find(|(disk, _)| self.find_drive(disk).is_none()) {
            return Err(self.no_such_disk(missing));
        }
        let is_on = |drive: &ServedDrive| wanted.iter().all(|(disk, _)| drive.has_disk(disk));
        self.find_drive(first).filter(|drive| is_on(drive)).ok_or_else(|| {
            let title = "the disks are on several drives, which have no instant in common";
            DiskError::new(Reason::OtherDrive, title, "make snapshots drive by drive")
        })
    }

    /// A disk that begins as a snapshot of another one, on its drive. `true`: it is new.
    pub(crate) fn clone_disk(&mut self, disk: &DiskSpec, of: &str) -> Result<(Disk, bool), DiskError> {
        let (origin, snapshot) = of
            .split_once('@')
            .ok_or_else(|| DiskError::new(Reason::Invalid, format!("clone_of is {of:?}"), "write DISK@SNAPSHOT"))?;
        let Some(drive) = self.find_drive(origin) else { return Err(self.no_such_disk(origin)) };
        let found = drive.find_snapshot(origin, snapshot)?;
        let spec = drive.spec_of_clone(disk, origin, &found)?;
        let section = spec.to_section().map_err(not_writable)?;
        if let Some(drive) = self.find_drive(&disk.name) {
            let id = drive.state.same_disk(&disk.name, &section)?;
            return Ok((drive.describe_disk(id).ok_or_else(broken)?, false));
        }
        self.refuse_absent_name(&disk.name)?;
        let (id, proposal) = self.choose_drive(&spec, &section)?;
        let drive = self.drives.get_mut(&id).ok_or_else(broken)?;
        Ok((drive.create_clone(proposal, origin, &found)?, true))
    }
}

impl ServedDrive {
    /// Makes snapshots of disks, all at one instant. `reply` comes once they are durable.
    pub(crate) fn make_snapshots(&mut self, wanted: Vec<(String, String)>, reply: Reply<Result<Vec<Disk>, DiskError>>) {
        match self.check_snapshots(&wanted) {
            Err(error) => reply(Err(error)),
            Ok((snapshots, pairs)) => {
                let frozen = pairs.iter().map(|(of, _)| *of).collect();
                self.freeze(frozen, Pending::Make(snapshots, pairs, reply));
            }
        }
    }

    /// The snapshots with their maps, and of which map each is.
    #[expect(clippy::type_complexity, reason = "two lists, named where they are used")]
    fn check_snapshots(
        &self,
        wanted: &[(String, String)],
    ) -> Result<(Vec<(String, Snapshot)>, Vec<(MapId, MapId)>), DiskError> {
        let made_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let next_map = self.state.layout().and_then(|layout| layout.pool()).map_or(0, |pool| pool.next_map);
        let (mut snapshots, mut pairs) = (Vec::<(String, Snapshot)>::new(), Vec::new());
        for (map, (disk, name)) in (next_map..).zip(wanted) {
            let refused = |title: String, remedy: &str| Err(DiskError::new(Reason::Invalid, title, remedy));
            let thin = self.thin_of(disk)?;
            if !config::is_name(name) {
                return refused(format!("{name:?} is no name for a snapshot"), "use 1 to 63 of a-z 0-9 _ -");
            }
            let is_taken = thin.snapshots.iter().any(|it| it.name == *name);
            if is_taken || snapshots.iter().any(|(of, it)| of == disk && it.name == *name) {
                let title = format!("disk {disk:?} has a snapshot {name:?} already");
                return Err(DiskError::new(Reason::NameTaken, title, "choose another name, or delete that one first"));
            }
            if thin.snapshots.len() >= SNAPSHOTS_MAX {
                return refused(format!("disk {disk:?} has {SNAPSHOTS_MAX} snapshots, the most"), "delete one");
            }
            let snapshot = Snapshot { name: name.clone(), map, size_bytes: thin.size_bytes, made_s };
            snapshots.push((disk.clone(), snapshot));
            pairs.push((MapId(thin.map), MapId(map)));
        }
        Ok((snapshots, pairs))
    }

    fn thin_of(&self, disk: &str) -> Result<&layout::Thin, DiskError> {
        let id = self.find_disk(disk).ok_or_else(|| DiskError::no_such_disk(disk))?;
        if self.is_being_deleted(id) {
            return Err(being_deleted(disk));
        }
        let thin = self.state.placement(disk).and_then(|placement| placement.thin.as_ref());
        thin.filter(|_| self.pool.is_some()).ok_or_else(|| {
            let title = format!("disk {disk:?} is not thin, and has no snapshots");
            DiskError::new(Reason::Invalid, title, "create another disk with thin = true, and copy the data")
        })
    }

    /// Keeps writes from these maps, and goes on with `pending` once those before have ended.
    fn freeze(&mut self, maps: Vec<MapId>, pending: Pending) {
        let Some(pool) = &self.pool else { return };
        let frozen = pool.pieces().freeze(maps.clone());
        let token = self.snapshots.next;
        self.snapshots.next += 1;
        self.snapshots.pending.insert(token, pending);
        if let Err(error) = frozen {
            return self.end_frozen(token, Err(error));
        }
        // Each poller that serves one of the disks has a part of it.
        let witness: Witness = Arc::new(Quiet(self.teller.clone(), token));
        maps.into_iter().for_each(|map| self.drop_when_quiet(map, &witness));
    }

    /// No write is in flight to the disks that were frozen for this.
    pub(crate) fn frozen(&mut self, token: u64) {
        self.end_frozen(token, Ok(()));
    }

    fn end_frozen(&mut self, token: u64, frozen: Result<(), PiecesError>) {
        match self.snapshots.pending.remove(&token) {
            None => {}
            Some(Pending::Make(snapshots, pairs, reply)) => reply(self.share(snapshots, pairs, frozen)),
            Some(Pending::RollBack { disk, snapshot, maps, reply }) => {
                reply(self.end_rollback(&disk, &snapshot, maps, frozen));
            }
        }
    }

    fn share(
        &mut self,
        snapshots: Vec<(String, Snapshot)>,
        pairs: Vec<(MapId, MapId)>,
        frozen: Result<(), PiecesError>,
    ) -> Result<Vec<Disk>, DiskError> {
        let made: Vec<u32> = pairs.iter().map(|(_, MapId(map))| *map).collect();
        let pool = self.pool.as_ref().ok_or_else(broken)?;
        frozen.and_then(|()| pool.pieces().share(pairs)).map_err(pool_error)?;
        let disks: Vec<String> = snapshots.iter().map(|(disk, _)| disk.clone()).collect();
        let names: Vec<String> = snapshots.iter().map(|(disk, it)| format!("{disk}@{}", it.name)).collect();
        if let Err(error) = self.apply(StateCommand::Snapshot(snapshots)) {
            // They would go at the next start.
            let _ = self.remove_maps(made);
            return Err(disk_error(error));
        }
        for (disk, name) in disks.iter().zip(names) {
            (self.around.sink)(Level::Info.of_tenant(disk), &format!("{name}: a snapshot was made"));
            self.events.tell(EventKind::Changed, Some(disk), Some(format!("snapshot {name}")));
        }
        let ids = disks.iter().map(|disk| self.find_disk(disk).and_then(|id| self.describe_disk(id)));
        ids.collect::<Option<_>>().ok_or_else(broken)
    }

    /// Has a disk become as its snapshot is. `reply` comes once that is durable.
    pub(crate) fn roll_back(&mut self, disk: &str, snapshot: &str, reply: Reply<Result<Disk, DiskError>>) {
        let maps = self.check_rollback(disk, snapshot);
        match maps {
            Err(error) => reply(Err(error)),
            Ok(maps) => {
                let (disk, snapshot) = (disk.to_owned(), snapshot.to_owned());
                self.freeze(vec![maps.0], Pending::RollBack { disk, snapshot, maps, reply });
            }
        }
    }

    fn check_rollback(&self, disk: &str, snapshot: &str) -> Result<(MapId, MapId), DiskError> {
        let thin = self.thin_of(disk)?;
        let of = thin.snapshots.iter().find(|it| it.name == snapshot);
        let of = of.ok_or_else(|| no_such_snapshot(disk, snapshot))?;
        let server = self.find_disk(disk).and_then(|id| self.tenants.get(&id)).and_then(|live| live.server.as_ref());
        if server.is_some_and(runtime::front_end::Reached::has_client) {
            let title = format!("{disk:?} is attached to a client, which would find other data than it wrote");
            return Err(DiskError::new(Reason::Attached, title, "shut its guest down, or unmount the block device"));
        }
        Ok((MapId(thin.map), MapId(of.map)))
    }

    fn end_rollback(
        &mut self,
        disk: &str,
        snapshot: &str,
        (map, to): (MapId, MapId),
        frozen: Result<(), PiecesError>,
    ) -> Result<Disk, DiskError> {
        let pool = self.pool.as_ref().ok_or_else(broken)?;
        frozen.and_then(|()| pool.pieces().roll_back(map, to)).map_err(pool_error)?;
        (self.around.sink)(Level::Info.of_tenant(disk), &format!("{disk}: it is as {disk}@{snapshot} again"));
        self.events.tell(EventKind::Changed, Some(disk), Some(format!("rolled back to {disk}@{snapshot}")));
        self.find_disk(disk).and_then(|id| self.describe_disk(id)).ok_or_else(broken)
    }

    /// A snapshot goes. Clones of it stay.
    pub(crate) fn delete_snapshot(&mut self, disk: &str, snapshot: &str) -> Result<Disk, DiskError> {
        self.thin_of(disk)?;
        let (disk, snapshot) = (disk.to_owned(), snapshot.to_owned());
        let told = format!("deleted snapshot {disk}@{snapshot}");
        self.apply(StateCommand::DeleteSnapshot { disk: disk.clone(), snapshot }).map_err(disk_error)?;
        self.events.tell(EventKind::Changed, Some(&disk), Some(told));
        self.find_disk(&disk).and_then(|id| self.describe_disk(id)).ok_or_else(broken)
    }

    /// A snapshot of a disk.
    pub(crate) fn find_snapshot(&self, disk: &str, snapshot: &str) -> Result<Snapshot, DiskError> {
        let thin = self.thin_of(disk)?;
        let found = thin.snapshots.iter().find(|it| it.name == snapshot).cloned();
        found.ok_or_else(|| no_such_snapshot(disk, snapshot))
    }

    /// What a clone of a snapshot is made with.
    ///
    /// # Errors
    /// It would be smaller, on another drive, or encrypted otherwise.
    pub(crate) fn spec_of_clone(&self, disk: &DiskSpec, origin: &str, of: &Snapshot) -> Result<DiskSpec, DiskError> {
        let refused = |title: String, remedy: String| Err(DiskError::new(Reason::Invalid, title, remedy));
        let placement = self.state.placement(origin).ok_or_else(broken)?;
        let drive = &self.config().device.name;
        if disk.drive.as_ref().is_some_and(|wanted| wanted != drive) {
            let title = format!("{origin}@{} is on drive {drive:?}, and so is its clone", of.name);
            return refused(title, format!("leave drive out, or write {drive:?}"));
        }
        let size: Size = if disk.size.is_empty() { Size(of.size_bytes) } else { disk.size.parse().unwrap_or(Size(0)) };
        if size.0 < of.size_bytes {
            let least = Size(of.size_bytes);
            return refused(
                format!("the clone has {size}, and {origin}@{} {least}", of.name),
                format!("ask for {least}"),
            );
        }
        let owner = placement.key.as_ref().map_or("none", StoredKey::owner);
        if disk.encryption.as_deref().is_some_and(|wanted| wanted != owner) {
            return refused(
                format!("disk {origin:?} has encryption = {owner:?}, and so have its clones"),
                "leave encryption out, or copy the data to a new disk".to_owned(),
            );
        }
        Ok(DiskSpec {
            size: size.to_string(),
            drive: Some(drive.clone()),
            thin: Some(true),
            encryption: Some(owner.to_owned()),
            lba_size: Some(placement.lba_bytes),
            clone_of: None,
            ..disk.clone()
        })
    }

    /// Creates a clone: its map shares all pieces of the snapshot before the layout has the disk.
    pub(crate) fn create_clone(&mut self, proposal: Proposal, origin: &str, of: &Snapshot) -> Result<Disk, DiskError> {
        let placement = self.state.placement(origin).ok_or_else(broken)?;
        let key = self.disk_keys.of_clone(placement, &proposal.tenant.name)?;
        let map = self.state.layout().and_then(|layout| layout.pool()).map(|pool| pool.next_map).ok_or_else(broken)?;
        let pool = self.pool.as_ref().ok_or_else(broken)?;
        pool.pieces().share(vec![(MapId(of.map), MapId(map))]).map_err(pool_error)?;
        self.create_disk(proposal, key).inspect_err(|_| {
            // It would go at the next start.
            let _ = self.pool.as_ref().map(|pool| pool.pieces().remove(vec![MapId(map)]));
        })
    }

    /// The snapshots of a disk, for the API.
    pub(crate) fn describe_snapshots(&self, thin: Option<&layout::Thin>) -> Vec<DiskSnapshot> {
        let Some((thin, pool)) = thin.zip(self.pool.as_ref()) else { return Vec::new() };
        let described = |it: &Snapshot| DiskSnapshot {
            name: it.name.clone(),
            size_bytes: it.size_bytes,
            pool_bytes: pool.bytes_of(it.map).unwrap_or(0),
            made_s: it.made_s,
        };
        thin.snapshots.iter().map(described).collect()
    }
}

/// What the pool's thread refuses.
pub(crate) fn pool_error(error: PiecesError) -> DiskError {
    match error {
        PiecesError::NoRoom => {
            let title = "the pool has not as much, or too many disks share a piece";
            DiskError::new(Reason::NoRoom, title, "make the pool larger, or delete snapshots or disks")
        }
        PiecesError::Failed(_) => DiskError::new(
            Reason::NotDurable,
            error.to_string(),
            "see to the disk of the layout, and start the daemon again",
        ),
    }
}
