//! Thin disks, and the pool that they share.
//!
//! The layout says which map of the pool each disk has. The pool's file has the maps. A [`Pieces`] thread gives pieces
//! to disks. Two [`Mover`]s, best-effort tenants of ours, copy and wipe pieces: one makes the copies for which commands
//! of guaranteed tenants wait, the other one does the rest.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use api::{DiskError, EventKind, PoolRoom};
use backend_cipher::Access;
use client_socket::Level;
use config::{Config, Tenant};
use io_model::{PieceMap, TenantId, Witness};
use layout::Pool as Recorded;
use pieces::{Figures, FileError, Job, Jobs, MapId, Maps, PieceFile, Pool, PoolId, RoomState};
use policy::Terms;
use runtime::front_end::{Move, Mover};
use runtime::happening::Happening;
use runtime::pieces::{Pieces, Wish};
use runtime::poller_thread::Message;
use rustix::fs::OFlags;
use state::Command as StateCommand;

use crate::error_texts::failed;
use crate::served_drive::ServedDrive;
use crate::snapshots::pool_error;

/// The weight of copies for guaranteed tenants, the largest that there is: they come before nearly all other
/// best-effort work, and never hurt a promise.
const PROMISED_WEIGHT: u32 = 10_000;

/// What the thin disks of a drive share.
pub(crate) struct ThinPool {
    pieces: Pieces,
    /// What pollers read, by map.
    tables: BTreeMap<u32, Arc<PieceMap>>,
}

impl ThinPool {
    /// What pollers read of a disk.
    pub(crate) fn table(&self, map: u32) -> Option<Arc<PieceMap>> {
        self.tables.get(&map).cloned()
    }

    /// What gives pieces.
    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Bytes of the pieces of a map.
    pub(crate) fn bytes_of(&self, map: u32) -> Option<u64> {
        Some(u64::from(*self.pieces.figures().maps.get(&MapId(map))?) * self.pieces.piece_bytes())
    }
}

impl ServedDrive {
    /// How much of the pool is left.
    pub(crate) fn pool_room(&self) -> Option<PoolRoom> {
        let Figures { size, free, .. } = self.pool.as_ref()?.pieces.figures();
        let piece_bytes = self.pool.as_ref()?.pieces.piece_bytes();
        let [size_bytes, free_bytes] = [size, free].map(|pieces| u64::from(pieces) * piece_bytes);
        let promised_bytes = self.state.layout().map_or(0, |layout| layout.thin_bytes());
        Some(PoolRoom { size_bytes, free_bytes, piece_bytes, promised_bytes })
    }

    /// Opens the pool, if the drive has one that is not open. Comes before any thin disk is served.
    ///
    /// # Errors
    /// The file of its maps is missing, damaged or an older copy, or can't be written.
    pub(crate) fn open_pool(&mut self) -> Result<()> {
        let Some(recorded) = self.state.layout().and_then(|layout| layout.pool()).filter(|_| self.pool.is_none())
        else {
            return Ok(());
        };
        let recorded = recorded.clone();
        let id = fastrand::u32(1..);
        let (mut file, maps) = match self.layout_file.pieces() {
            None => (None, Maps::new()),
            Some(path) => {
                let opened = self.open_maps(&path, &recorded, id);
                let (file, maps) = opened.with_context(|| format!("the maps of thin disks, {}", path.display()))?;
                (Some(file), maps)
            }
        };
        let counts = self.state.layout().into_iter().flat_map(|layout| layout.maps());
        let counts = counts.map(|(map, size_bytes)| (MapId(map), recorded.pieces_of(size_bytes))).collect();
        let mut pool = Pool::new(recorded.ranges(), maps, &counts)?;
        self.refuse_lost_snapshots(&pool)?;
        recorded.clean_ranges().into_iter().flatten().for_each(|number| pool.is_zero(number));
        if let Some(file) = &mut file {
            file.set_id(PoolId(id.into()));
            file.commit(pool.take_batch()).context("the maps of thin disks can't be written")?;
        }
        self.apply(StateCommand::PoolRenewed)?;
        self.start_pool(pool, file, recorded.piece_bytes)
    }

    /// Opens the file of the pool's maps, or makes it. The layout knows its next identity by then.
    fn open_maps(&mut self, path: &Path, recorded: &Recorded, id: u32) -> Result<(PieceFile<File>, Maps)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        let Some(former) = recorded.id else {
            // A start that was cut short may have left one, which no disk relies on.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            let file = PieceFile::create(options.create_new(true).open(path)?, PoolId(id.into()))?;
            self.apply(StateCommand::RenewPool { former: None, id })?;
            return Ok((file, Maps::new()));
        };
        const REMEDY: &str = "restore it from a backup of the layout's time";
        let ids = [Some(former), recorded.former_id].map(|id| PoolId(id.unwrap_or(former).into()));
        let (file, maps) =
            match options.open(path).map_err(FileError::from).and_then(|file| PieceFile::open(file, &ids)) {
                Ok(opened) => opened,
                Err(error) => return Err(anyhow!("{error}; {REMEDY}")),
            };
        let former = u32::try_from(file.id().0).ok();
        self.apply(StateCommand::RenewPool { former, id })?;
        Ok((file, maps))
    }

    /// A disk without a map was never written. A snapshot without one is lost.
    fn refuse_lost_snapshots(&self, pool: &Pool) -> Result<()> {
        for placement in self.placements() {
            let snapshots = placement.thin.iter().flat_map(|thin| &thin.snapshots);
            if let Some(lost) = snapshots.into_iter().find(|snapshot| !pool.has(MapId(snapshot.map))) {
                return Err(anyhow!("snapshot {:?} of disk {:?} is not in the pool's maps", lost.name, placement.name));
            }
        }
        Ok(())
    }

    fn start_pool(&mut self, pool: Pool, file: Option<PieceFile<File>>, piece_bytes: u64) -> Result<()> {
        let parts = self.pollers.open_for(self.state.config(), &self.policy, &Tenant::background("mover"))?;
        let poller = parts.first().map(|part| part.poller).context("no poller takes the movers on")?;
        let (to_poller, teller) = (self.pollers.sender(poller).context("its poller has ended")?, self.teller.clone());
        let [copier, mover] = [self.new_id(), self.new_id()];
        let send = move |id: TenantId, jobs: Vec<Job>| {
            if !jobs.is_empty() {
                to_poller.send(Message::Order(id, Move(jobs).into()));
            }
        };
        let pieces = Pieces::start(pool, file, piece_bytes, move |wish| match wish {
            Wish::Move(Jobs { promised, others }) => {
                send(copier, promised);
                send(mover, others);
            }
            Wish::Quiet(witness) => teller.tell(Happening::Quiet(witness)),
            Wish::Room(room) => teller.tell(Happening::Room(room)),
            Wish::Failed(why) => teller.tell(Happening::PoolFailed(why)),
        })?;
        for (id, weight) in [(copier, PROMISED_WEIGHT), (mover, 1)] {
            let moved = pieces.moved();
            let sink = self.around.sink.clone();
            let drive = self.config().device.name.clone();
            let on_moved = Box::new(move |jobs: &[_], result: Result<(), _>| {
                if let Err(error) = &result {
                    let line = format!("{drive}: the drive failed to copy or wipe pieces of thin disks ({error:?})");
                    sink(Level::Warn.of_drive(&drive), &line);
                }
                moved(jobs, result.is_ok());
            });
            self.pollers.keys().set(id, 0, Access::Plain);
            self.pollers.add(poller, id, Mover::new(id, piece_bytes, on_moved)?.into(), Terms::best_effort(weight));
        }
        pieces.begin();
        self.pool = Some(ThinPool { pieces, tables: BTreeMap::new() });
        Ok(())
    }

    /// The pool is as large as `config` wants it, and allows as much.
    ///
    /// # Errors
    /// There is no room, the pool can't be as small, or that can't be made durable.
    pub(crate) fn take_pool(&mut self, config: &Config) -> Result<(), DiskError> {
        let wanted = config.device.pool;
        let is_new = wanted != self.config().device.pool;
        let taken = if is_new { self.apply(StateCommand::SetPool(wanted)) } else { Ok(()) };
        let opened = taken.and_then(|()| self.open_pool());
        let remedy = "apply the file again once that is fixed";
        opened.map_err(|error| error.downcast().unwrap_or_else(|error| failed(&error, remedy)))
    }

    /// Pollers can look up the pieces of a disk from now on, at its present size. Nothing is done for others.
    ///
    /// # Errors
    /// The map can't be made durable, or the pool has not as much as is to be kept for it.
    pub(crate) fn open_map(&mut self, tenant: &Tenant) -> Result<()> {
        let Some(thin) = self.state.placement(&tenant.name).and_then(|placement| placement.thin.clone()) else {
            return Ok(());
        };
        let pool = self.pool.as_mut().context("the drive has no pool")?;
        let table = pool.pieces.open(MapId(thin.map), thin.size_bytes)?;
        pool.tables.insert(thin.map, table);
        self.keep_for(tenant)
    }

    /// Keeps of the pool for a thin disk what it reserves, and has its copies made as it is promised.
    ///
    /// # Errors
    /// The pool has not as much.
    pub(crate) fn keep_for(&self, tenant: &Tenant) -> Result<()> {
        let Tenant { name, reserve, .. } = tenant;
        let thin = self.state.placement(name).and_then(|placement| placement.thin.as_ref());
        let (Some(thin), Some(pool)) = (thin, &self.pool) else { return Ok(()) };
        let (reserve_bytes, is_promised) = (reserve.0.min(thin.size_bytes), tenant.is_guaranteed());
        let kept = pool.pieces.set_due(MapId(thin.map), reserve_bytes, is_promised);
        kept.map_err(|error| {
            let DiskError { reason, remedy, .. } = pool_error(error);
            DiskError::new(reason, format!("{reserve} of the pool can't be kept for disk {name:?}"), remedy).into()
        })
    }

    /// No poller uses these maps any more.
    pub(crate) fn remove_maps(&mut self, maps: Vec<u32>) -> Result<()> {
        let Some(pool) = self.pool.as_mut().filter(|_| !maps.is_empty()) else { return Ok(()) };
        maps.iter().for_each(|map| drop(pool.tables.remove(map)));
        Ok(pool.pieces.remove(maps.into_iter().map(MapId).collect())?)
    }

    /// Has pollers drop `witness` once the commands to a disk that they have fetched are over.
    pub(crate) fn drop_when_quiet(&self, MapId(map): MapId, witness: &Witness) {
        self.tenant_of_map(map).iter().for_each(|id| self.send_witness(*id, witness));
    }

    /// As [`drop_when_quiet`](Self::drop_when_quiet), of all disks: a command in flight may read a piece that its disk
    /// had before, and that a snapshot or a clone kept since.
    pub(crate) fn drop_when_all_are_quiet(&self, witness: &Witness) {
        self.tenants.keys().for_each(|id| self.send_witness(*id, witness));
    }

    fn send_witness(&self, id: TenantId, witness: &Witness) {
        for poller in self.tenants.get(&id).into_iter().flat_map(|live| &live.pollers) {
            self.pollers.send(*poller, Message::DropWhenQuiet(id, Arc::clone(witness)));
        }
    }

    fn tenant_of_map(&self, map: u32) -> Option<TenantId> {
        let has_map = |thin: &layout::Thin| thin.map == map;
        let placement = self.placements().iter().find(|placement| placement.thin.as_ref().is_some_and(has_map))?;
        self.find_disk(&placement.name)
    }

    /// How much of the pool is left has changed.
    pub(crate) fn tell_room(&self, room: RoomState) {
        let drive = &self.config().device.name;
        let (level, kind, what) = match room {
            RoomState::Enough => (Level::Info, EventKind::PoolRoom, "its pool has room again"),
            RoomState::Low => (Level::Warn, EventKind::PoolLow, "less than a tenth of its pool is free"),
            RoomState::Full => (Level::Warn, EventKind::PoolFull, "its pool is full: writes of thin disks fail"),
        };
        let remedy = if room == RoomState::Enough { "" } else { "; make it larger, or delete snapshots or disks" };
        (self.around.sink)(level.of_drive(drive), &format!("drive {drive}: {what}{remedy}"));
        self.events.tell(kind, None, Some(format!("{drive}: {what}")));
    }

    /// The pool's file can't be written.
    pub(crate) fn pool_fails(&self, why: &str) {
        let drive = &self.config().device.name;
        let line = format!(
            "drive {drive}: the maps of thin disks can't be written: {why}; thin disks get no pieces until the daemon \
             starts again"
        );
        (self.around.sink)(Level::Warn.of_drive(drive), &line);
        self.events.tell(EventKind::DriveFailing, None, Some(line));
    }

    /// The daemon ends, and no poller is left.
    pub(crate) fn close_pool(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.pieces.stop();
        }
    }
}
