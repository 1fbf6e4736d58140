//! A disk that is an image: the table that pollers read, and the thread that changes the image.
//!
//! Commands to clusters that the image has go straight to its file. Others wait for this thread, and hold up none: the
//! thread has the image's tables changed, durably, and then shows the clusters to the pollers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use backend_uring::WINDOW_BYTES;
use confine::ThreadKind;
use images::{Cluster, DiskImage};
use io_model::{Ask, Piece, PieceMap, Witness};

use crate::{panics, threads};

/// Orders that are carried out at a time.
const ORDERS: usize = 1024;

/// A disk's image, open.
pub struct OpenedImage {
    /// The tenant's name.
    pub tenant: String,
    /// Where its file is in the drive's addresses.
    pub(crate) base_bytes: u64,
    /// Or why it can't be opened.
    pub(crate) image: Result<DiskImage, String>,
}

/// What is wanted of others. None of the calls may wait.
pub enum Wish {
    /// Drop the witness once all commands to the disk have ended that were fetched before.
    Quiet(Witness),
    /// The image can't be changed, for this reason: the commands that needed it have failed.
    Failed(String),
}

enum Order {
    Ask(Ask),
    /// No command uses clusters any more that are to be discarded.
    Quiet,
    Stop(Sender<()>),
}

/// A disk that is an image.
pub struct ImageDisk {
    map: Arc<PieceMap>,
    orders: Sender<Order>,
}

impl OpenedImage {
    /// Reads where all clusters are, and starts the thread. `wish` takes what the thread wants.
    ///
    /// # Errors
    /// It can't be opened, its tables can't be read, or the kernel has no thread left.
    pub fn start(self, wish: impl Fn(Wish) + Send + 'static) -> io::Result<ImageDisk> {
        let Self { tenant, base_bytes, image } = self;
        let image = image.map_err(io::Error::other)?;
        let (orders, received) = channel();
        let to_thread = orders.clone();
        let ask = move |ask: Ask| {
            // If the thread has ended, the ask is dropped: it has failed.
            let _ = to_thread.send(Order::Ask(ask));
        };
        let map = PieceMap::new(image.cluster_bytes(), image.size_bytes(), ask).with_base(base_bytes);
        let map = Arc::new(map);
        let mut thread = Thread {
            image,
            map: Arc::clone(&map),
            orders: orders.clone(),
            wish: Box::new(wish),
            waiting: VecDeque::new(),
            discards: Vec::new(),
            is_broken: false,
        };
        thread.show(0, map.count())?;
        threads::spawn(format!("image-{tenant}"), ThreadKind::Image, move || thread.run(&received))?;
        Ok(ImageDisk { map, orders })
    }
}

impl ImageDisk {
    /// What pollers read.
    pub fn map(&self) -> Arc<PieceMap> {
        Arc::clone(&self.map)
    }

    /// The daemon ends, and no poller is left. Waits until nothing is being changed.
    pub fn stop(self) {
        let (reply, replied) = channel();
        if self.orders.send(Order::Stop(reply)).is_ok() {
            let _ = replied.recv();
        }
    }
}

/// Tells a thread when it is dropped.
struct Quiet(Sender<Order>);

impl Drop for Quiet {
    fn drop(&mut self) {
        // The thread may have ended.
        let _ = self.0.send(Order::Quiet);
    }
}

struct Thread {
    image: DiskImage,
    map: Arc<PieceMap>,
    orders: Sender<Order>,
    wish: Box<dyn Fn(Wish) + Send>,
    /// Asks in their order.
    waiting: VecDeque<Ask>,
    /// Those of them that are carried out once no command uses their clusters. Others wait meanwhile.
    discards: Vec<Ask>,
    /// The code that changes images panicked.
    is_broken: bool,
}

impl Thread {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(first) = orders.recv() {
            for order in [first].into_iter().chain(orders.try_iter().take(ORDERS)) {
                match order {
                    Order::Ask(ask) => self.waiting.push_back(ask),
                    Order::Quiet => self.discard(),
                    Order::Stop(stopped) => return drop(stopped),
                }
            }
            self.go_on();
        }
    }

    /// Carries out asks in their order, as far as it can.
    fn go_on(&mut self) {
        while self.discards.is_empty() && !self.waiting.is_empty() {
            let is_discard = |ask: &Ask| ask.wish == io_model::Wish::Discard;
            let is_first = self.waiting.front().is_some_and(is_discard);
            let count = self.waiting.iter().take_while(|ask| is_discard(ask) == is_first).count();
            let asks: Vec<Ask> = self.waiting.drain(..count).collect();
            match is_first {
                true => self.begin_to_discard(asks),
                false => self.allocate(asks),
            }
        }
    }

    /// Gives the disk clusters of its own.
    fn allocate(&mut self, asks: Vec<Ask>) {
        let (mut done, mut changed) = (Vec::new(), false);
        for ask in asks {
            // An earlier ask may have had it done.
            if self.is_own(&ask) {
                ask.done();
                continue;
            }
            changed = true;
            match self.change(|image| image.allocate(ask.first, ask.count)) {
                Ok(()) => done.push(ask),
                Err(error) if is_full(&error) => ask.refuse(),
                // Dropped: it has failed.
                Err(_) => {}
            }
        }
        // Also what is left of changes that failed.
        if changed && self.change(|image| image.flush()).is_ok() {
            for ask in done {
                // Otherwise the command would ask again and again.
                if self.show(ask.first, ask.count).is_ok() && self.is_own(&ask) {
                    ask.done();
                }
            }
        }
    }

    /// Whether the disk has all clusters for itself that an ask is for.
    fn is_own(&self, ask: &Ask) -> bool {
        (ask.first..ask.first + ask.count).all(|index| matches!(self.map.piece(index), Piece::Own(_)))
    }

    /// From now on no command is fetched that uses these clusters. Waits for those that were.
    fn begin_to_discard(&mut self, asks: Vec<Ask>) {
        for ask in &asks {
            for index in ask.first..ask.first + ask.count {
                self.map.set(index, Piece::None);
            }
        }
        self.discards = asks;
        (self.wish)(Wish::Quiet(Arc::new(Quiet(self.orders.clone()))));
    }

    fn discard(&mut self) {
        for ask in std::mem::take(&mut self.discards) {
            let done = self.change(|image| image.discard(ask.first, ask.count));
            // What it is now: some may be discarded, even if others are not.
            if self.show(ask.first, ask.count).is_ok() && done.is_ok() {
                ask.done();
            }
        }
    }

    /// Changes the image, by code that may panic: whatever is in the image, its neighbours go on.
    fn change(&mut self, change: impl FnOnce(&mut DiskImage) -> io::Result<()>) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("it is not changed any more"));
        }
        let changed = panics::contained(|| change(&mut self.image)).unwrap_or_else(|| {
            self.is_broken = true;
            Err(io::Error::other("its tables are damaged; it is not changed until the daemon starts again"))
        });
        changed.inspect_err(|error| (self.wish)(Wish::Failed(error.to_string())))
    }

    /// Shows pollers where clusters are.
    fn show(&mut self, first: u32, count: u32) -> io::Result<()> {
        let mut next = first;
        while next < first + count
            && let Some((cluster, run)) =
                panics::contained(|| self.image.find(next)).unwrap_or_else(|| Err(io::Error::other("it panicked")))?
        {
            for index in 0..run.min(first + count - next) {
                self.map.set(next + index, self.piece(cluster, index));
            }
            next = next.saturating_add(run);
        }
        Ok(())
    }

    /// The cluster that follows another one, `after` clusters later.
    fn piece(&self, cluster: Cluster, after: u32) -> Piece {
        let cluster_bytes = self.image.cluster_bytes();
        let number = |file: usize, at: u64| {
            let at = at + u64::from(after) * cluster_bytes;
            let number = (file as u64 * WINDOW_BYTES + at) / cluster_bytes;
            u32::try_from(number).ok().filter(|number| at < WINDOW_BYTES && *number < Piece::NUMBERS)
        };
        match cluster {
            Cluster::Nothing => Piece::None,
            Cluster::Packed => Piece::Packed,
            Cluster::Own(at) => number(0, at).map_or(Piece::Packed, Piece::Own),
            Cluster::Shared(file, at) => number(file, at).map_or(Piece::Packed, Piece::Shared),
        }
    }
}

/// Whether there is no room on the image's file system.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
