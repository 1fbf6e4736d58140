//! Gives pieces of a drive's pool to its thin disks.
//!
//! Pollers ask for pieces. One thread has a [`Giver`] decide on all that were asked for at a time, makes that durable
//! by one write of the pool's file, puts it into the disks' maps, and then answers. Commands wait meanwhile; a poller
//! never does.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use confine::ThreadKind;
use io_model::{Ask, PieceMap, Witness};
use pieces::{Batch, Figures, Giver, Job, Jobs, MapId, NoRoom, PieceFile, Place, Pool, RoomState};

use crate::threads;

/// Orders that are carried out at a time.
const ORDERS: usize = 1024;

/// What is wanted of others. None of the calls may wait.
pub enum Wish {
    /// Copy and wipe these pieces, and say so by [`Pieces::moved`].
    Move(Jobs),
    /// Drop the witness once all commands to thin disks have ended that were fetched before.
    Quiet(Witness),
    /// How much room is left now.
    Room(RoomState),
    /// The pool's file can't be written: no disk gets a piece before the next start.
    Failed(String),
}

/// Why a change of maps was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PiecesError {
    /// Too many maps share a piece, or fewer pieces are free.
    #[error("the pool is full")]
    NoRoom,
    /// The file can't be written.
    #[error("the file of thin disks' maps can't be written: {0}")]
    Failed(String),
}

/// Where the answer goes, and the answer.
type Made = (Sender<Result<(), PiecesError>>, Result<(), PiecesError>);

type Change = Box<dyn FnOnce(&mut Giver) -> Result<(), NoRoom> + Send>;

enum Order {
    /// The mover is at its poller.
    Begin,
    Ask(MapId, Ask),
    Change(Change, Sender<Result<(), PiecesError>>),
    Moved(Vec<Job>, bool),
    Release(Vec<Place>),
    Figures(Sender<Figures>),
    Stop(Sender<()>),
}

/// Gives pieces of a drive's pool to thin disks.
pub struct Pieces {
    orders: Sender<Order>,
    piece_bytes: u64,
}

/// Pieces that nobody has, until no command uses them.
struct Freed {
    orders: Sender<Order>,
    places: Vec<Place>,
}

impl Drop for Freed {
    fn drop(&mut self) {
        // The thread may have ended.
        let _ = self.orders.send(Order::Release(std::mem::take(&mut self.places)));
    }
}

impl Pieces {
    /// Starts the thread, which does nothing before [`begin`](Self::begin). `file`: where maps are kept; `None`:
    /// nowhere. `wish` takes what the thread wants.
    ///
    /// # Errors
    /// The kernel has no thread left.
    pub fn start(
        pool: Pool,
        file: Option<PieceFile<File>>,
        piece_bytes: u64,
        wish: impl Fn(Wish) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, received) = channel();
        let thread = Thread {
            giver: Giver::new(pool, piece_bytes),
            file,
            orders: orders.clone(),
            wish: Box::new(wish),
            begun: BTreeSet::new(),
            room: RoomState::Enough,
        };
        threads::spawn("pieces", ThreadKind::Zeroing, move || thread.run(&received))?;
        Ok(Self { orders, piece_bytes })
    }

    /// Has pieces wiped that are not clean. The mover has to be at its poller: what is sent before is lost.
    pub fn begin(&self) {
        // If the thread has ended, nothing is wiped any more.
        let _ = self.orders.send(Order::Begin);
    }

    /// A disk of `size_bytes` with that map, for pollers to read. The map is made if there is none.
    ///
    /// # Errors
    /// That can't be made durable.
    pub fn open(&self, map: MapId, size_bytes: u64) -> Result<Arc<PieceMap>, PiecesError> {
        let orders = self.orders.clone();
        let ask = move |ask: Ask| {
            // If the thread has ended, the ask is dropped: it has failed.
            let _ = orders.send(Order::Ask(map, ask));
        };
        let table = Arc::new(PieceMap::new(self.piece_bytes, size_bytes, ask));
        let shown = Arc::clone(&table);
        self.change(move |giver| {
            giver.add(map, shown.count());
            giver.show(map, shown);
            Ok(())
        })?;
        Ok(table)
    }

    /// Removes maps of disks that no command uses, and of snapshots.
    ///
    /// # Errors
    /// That can't be made durable.
    pub fn remove(&self, maps: Vec<MapId>) -> Result<(), PiecesError> {
        self.change(move |giver| {
            giver.remove(&maps);
            Ok(())
        })
    }

    /// Keeps `reserve_bytes` of pieces for a map, those that it has included. Whether its copies come first:
    /// `is_promised`.
    ///
    /// # Errors
    /// Fewer are free.
    pub fn set_due(&self, map: MapId, reserve_bytes: u64, is_promised: bool) -> Result<(), PiecesError> {
        let pieces = reserve_bytes.div_ceil(self.piece_bytes) as u32;
        self.change(move |giver| {
            giver.set_promised(map, is_promised);
            giver.reserve(map, pieces)
        })
    }

    /// From now on no command that is fetched writes to a piece that these maps have.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn freeze(&self, maps: Vec<MapId>) -> Result<(), PiecesError> {
        self.change(move |giver| {
            giver.freeze(&maps);
            Ok(())
        })
    }

    /// Makes maps with what frozen ones, or snapshots, have: of each pair, the second one from the first. Then none of
    /// the first is frozen, even if it fails.
    ///
    /// # Errors
    /// That can't be made durable, or too many maps share a piece.
    pub fn share(&self, pairs: Vec<(MapId, MapId)>) -> Result<(), PiecesError> {
        self.change(move |giver| {
            let shared = giver.share(&pairs);
            giver.thaw(&pairs.iter().map(|(of, _)| *of).collect::<Vec<_>>());
            shared
        })
    }

    /// Gives a frozen map what another one has. Then it is not frozen any more, even if this fails.
    ///
    /// # Errors
    /// As for [`share`](Self::share).
    pub fn roll_back(&self, map: MapId, to: MapId) -> Result<(), PiecesError> {
        self.change(move |giver| {
            let done = giver.roll_back(map, to);
            giver.thaw(&[map]);
            done
        })
    }

    /// The pool has more pieces of the drive, each range with whether it reads as zeros. Writes that wait go on.
    ///
    /// # Errors
    /// That can't be made durable.
    pub fn extend(&self, ranges: Vec<(Range<u32>, bool)>) -> Result<(), PiecesError> {
        self.change(move |giver| {
            ranges.into_iter().for_each(|(range, is_clean)| giver.extend(range, is_clean));
            Ok(())
        })
    }

    /// These pieces are copied or wiped, durably; or not.
    pub fn moved(&self) -> impl Fn(&[Job], bool) + Send + use<> {
        let orders = self.orders.clone();
        move |jobs, is_ok| {
            // The thread may have ended.
            let _ = orders.send(Order::Moved(jobs.to_vec(), is_ok));
        }
    }

    /// Bytes of a piece.
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// What the pool has.
    pub fn figures(&self) -> Figures {
        let (reply, replied) = channel();
        let asked = self.orders.send(Order::Figures(reply)).ok();
        asked.and_then(|()| replied.recv().ok()).unwrap_or_default()
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Giver) -> Result<(), NoRoom> + Send + 'static,
    ) -> Result<(), PiecesError> {
        let (reply, replied) = channel();
        let ended = || PiecesError::Failed("its thread has ended".to_owned());
        self.orders.send(Order::Change(Box::new(change), reply)).map_err(|_| ended())?;
        replied.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// The daemon ends: a last, empty batch says that the file is whole.
    pub fn stop(self) {
        let (reply, replied) = channel();
        if self.orders.send(Order::Stop(reply)).is_ok() {
            let _ = replied.recv();
        }
    }
}

struct Thread {
    giver: Giver,
    file: Option<PieceFile<File>>,
    orders: Sender<Order>,
    wish: Box<dyn Fn(Wish) + Send>,
    /// Copies that the mover has.
    begun: BTreeSet<Place>,
    room: RoomState,
}

impl Thread {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(first) = orders.recv() {
            let mut replies = Vec::new();
            for order in [first].into_iter().chain(orders.try_iter().take(ORDERS)) {
                match order {
                    Order::Begin => {}
                    Order::Ask(map, ask) => self.giver.ask(map, ask),
                    Order::Change(change, reply) => {
                        let made = change(&mut self.giver).map_err(|NoRoom| PiecesError::NoRoom);
                        replies.push((reply, made));
                    }
                    Order::Moved(jobs, is_ok) => self.giver.moved(&jobs, is_ok),
                    Order::Release(places) => self.giver.release(&places),
                    // Its end may have gone.
                    Order::Figures(reply) => drop(reply.send(self.giver.figures())),
                    Order::Stop(stopped) => {
                        self.go_on(replies);
                        let _ = self.commit(Batch::default());
                        return drop(stopped);
                    }
                }
            }
            self.go_on(replies);
        }
    }

    /// Makes durable what was decided, and then carries it out.
    fn go_on(&mut self, replies: Vec<Made>) {
        let batch = self.giver.take_batch();
        let committed = if batch.is_empty() { Ok(()) } else { self.commit(batch) };
        match &committed {
            Ok(()) => {
                let places = self.giver.publish();
                if !places.is_empty() {
                    (self.wish)(Wish::Quiet(Arc::new(Freed { orders: self.orders.clone(), places })));
                }
                let jobs = self.giver.jobs(&mut self.begun);
                if jobs != Jobs::default() {
                    (self.wish)(Wish::Move(jobs));
                }
            }
            Err(why) => {
                self.giver.give_up();
                (self.wish)(Wish::Failed(why.clone()));
            }
        }
        self.tell_room();
        for (reply, made) in replies {
            let made = committed.clone().map_err(PiecesError::Failed).and(made);
            // Its end may have gone.
            let _ = reply.send(made);
        }
    }

    fn commit(&mut self, batch: Batch) -> Result<(), String> {
        self.file.as_mut().map_or(Ok(()), |file| file.commit(batch)).map_err(|error| error.to_string())
    }

    fn tell_room(&mut self) {
        let room = self.giver.room();
        if std::mem::replace(&mut self.room, room) != room {
            (self.wish)(Wish::Room(room));
        }
    }
}
