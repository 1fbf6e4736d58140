//! Connection slots of the API, shared so that no client keeps others out: operators by process, all others by user.
//!
//! An owner may have twice as many slots as are free: alone 2/3 of them, and less beside others.
//! Half of all slots are operators' alone. A user without any right has a few, and none waits for one. Where slots are
//! missing, an idle connection makes room for a role with more rights, or for a user with fewer connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;
use tokio::sync::Notify;

use crate::roles::Role;

/// How many slots are others' than operators', of each 100.
const OTHERS_PERCENT: usize = 50;
/// Connections of users without any right, all together.
const MAX_NOBODIES: usize = 4;
/// Connections that wait for a slot: of operators, of each role besides, and of one user of these.
const MAX_OPERATORS_WAITING: usize = 128;
const MAX_OTHERS_WAITING: usize = 64;
const MAX_USER_WAITING: usize = 16;

/// An owner of slots. Higher ranks go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    rank: Rank,
    /// The process of an operator, the user of all others.
    id: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Nobody,
    Tenant,
    Viewer,
    Operator,
}

impl Who {
    /// A client by its role and credentials.
    pub fn new(role: Role, process: Pid, user: u32) -> Self {
        let process = process.as_raw_nonzero().get().unsigned_abs();
        let (rank, id) = match role {
            Role::Operator => (Rank::Operator, process),
            Role::Viewer => (Rank::Viewer, user),
            Role::Tenant(user) => (Rank::Tenant, user),
            Role::Nobody(user) => (Rank::Nobody, user),
        };
        Self { rank, id }
    }
}

/// All slots.
pub struct Places {
    shares: Mutex<Shares>,
    freed: Notify,
}

struct Shares {
    free: usize,
    free_for_others: usize,
    held: Vec<Held>,
    waiting: Vec<Who>,
    next: u64,
}

struct Held {
    number: u64,
    who: Who,
    connection: Arc<Connected>,
}

/// A connection that has a slot.
#[derive(Debug, Default)]
pub struct Connected {
    is_busy: AtomicBool,
    has_to_go: AtomicBool,
    gone: Notify,
}

impl Connected {
    /// A request is being answered, or none is.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Waits until its slot is for another connection.
    pub async fn has_to_go(&self) {
        self.gone.notified().await;
    }
}

/// A slot, given back when this is dropped.
pub struct Place {
    places: Arc<Places>,
    number: u64,
    /// The connection that it is for.
    pub connection: Arc<Connected>,
}

/// A client that waits for a slot.
struct Waiter<'a> {
    places: &'a Places,
    who: Who,
}

impl Places {
    /// This many slots, all free.
    pub fn new(count: usize) -> Arc<Self> {
        let free_for_others = count * OTHERS_PERCENT / 100;
        let shares = Shares { free: count, free_for_others, held: Vec::new(), waiting: Vec::new(), next: 0 };
        Arc::new(Self { shares: Mutex::new(shares), freed: Notify::new() })
    }

    /// A slot, as soon as there is one that it may have. `None`: it has no right to wait, or too many wait already.
    pub async fn take(self: &Arc<Self>, who: Who) -> Option<Place> {
        if let Some(place) = self.try_take(who) {
            return Some(place);
        }
        let _waiter = self.wait(who)?;
        loop {
            // Before the look: what is given back after it ends the wait.
            let freed = self.freed.notified();
            if let Some(place) = self.try_take(who) {
                return Some(place);
            }
            self.shares().make_room(who);
            freed.await;
        }
    }

    fn try_take(self: &Arc<Self>, who: Who) -> Option<Place> {
        let mut shares = self.shares();
        if !shares.may_take(who) {
            return None;
        }
        shares.free -= 1;
        shares.free_for_others -= usize::from(who.rank != Rank::Operator);
        let (number, connection) = (shares.next, Arc::<Connected>::default());
        shares.next += 1;
        shares.held.push(Held { number, who, connection: Arc::clone(&connection) });
        Some(Place { places: Arc::clone(self), number, connection })
    }

    fn wait(&self, who: Who) -> Option<Waiter<'_>> {
        let mut shares = self.shares();
        let of_rank = shares.waiting.iter().filter(|other| other.rank == who.rank).count();
        let of_user = shares.waiting.iter().filter(|other| **other == who).count();
        let may_wait = match who.rank {
            Rank::Nobody => false,
            Rank::Operator => of_rank < MAX_OPERATORS_WAITING,
            Rank::Tenant | Rank::Viewer => of_rank < MAX_OTHERS_WAITING && of_user < MAX_USER_WAITING,
        };
        if !may_wait {
            return None;
        }
        shares.waiting.push(who);
        drop(shares);
        Some(Waiter { places: self, who })
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shares {
    fn count(&self, is_counted: impl Fn(Who) -> bool) -> usize {
        self.held.iter().filter(|held| is_counted(held.who)).count()
    }

    fn may_take(&self, who: Who) -> bool {
        let free = if who.rank == Rank::Operator { self.free } else { self.free_for_others };
        let has_share = self.count(|other| other == who) < 2 * free;
        // Operators have slots of their own; among the others the higher role goes first.
        let goes_first = |other: &Who| other.rank > who.rank && other.rank != Rank::Operator;
        let is_next = who.rank == Rank::Operator || !self.waiting.iter().any(goes_first);
        let is_let_in = who.rank != Rank::Nobody || self.count(|other| other.rank == Rank::Nobody) < MAX_NOBODIES;
        has_share && is_next && is_let_in
    }

    /// Has the most dispensable idle connection end, if there is one: that of a lower role, else of the user with most.
    fn make_room(&self, who: Who) {
        let own = self.count(|other| other == who);
        let is_idle = |held: &&Held| {
            !held.connection.is_busy.load(Ordering::Relaxed) && !held.connection.has_to_go.load(Ordering::Relaxed)
        };
        let may_go = |held: &&Held| {
            let is_lower = held.who.rank < who.rank;
            let is_greedier = held.who.rank == who.rank && self.count(|other| other == held.who) >= own + 2;
            held.who.rank != Rank::Operator && (is_lower || is_greedier)
        };
        let most = |held: &&Held| {
            let has = self.count(|other| other == held.who);
            (std::cmp::Reverse(held.who.rank), has, std::cmp::Reverse(held.number))
        };
        if let Some(held) = self.held.iter().filter(is_idle).filter(may_go).max_by_key(most) {
            held.connection.has_to_go.store(true, Ordering::Relaxed);
            held.connection.gone.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut shares = self.places.shares();
        if let Some(at) = shares.held.iter().position(|held| held.number == self.number) {
            let held = shares.held.swap_remove(at);
            shares.free += 1;
            shares.free_for_others += usize::from(held.who.rank != Rank::Operator);
        }
        drop(shares);
        self.places.freed.notify_waiters();
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut shares = self.places.shares();
        if let Some(at) = shares.waiting.iter().position(|who| *who == self.who) {
            shares.waiting.swap_remove(at);
        }
        drop(shares);
        // Those whom it went before.
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(rank: Rank, id: u32) -> Who {
        Who { rank, id }
    }

    fn all_of(places: &Arc<Places>, rank: Rank, id: u32) -> Vec<Place> {
        std::iter::from_fn(|| places.try_take(who(rank, id))).collect()
    }

    #[test]
    fn no_process_takes_all_and_what_is_given_back_is_free() {
        let places = Places::new(64);
        let of = |id| all_of(&places, Rank::Operator, id);
        let greedy = of(1);
        assert_eq!(greedy.len(), 43);
        // Several greedy ones leave room too.
        let rest: Vec<Vec<Place>> = (2..8).map(of).collect();
        let counts: Vec<usize> = rest.iter().map(Vec::len).collect();
        assert_eq!(counts, [14, 5, 2, 0, 0, 0]);
        drop(greedy);
        assert_eq!(of(9).len(), 29);
        drop(rest);
        let shares = places.shares();
        assert_eq!((shares.free, shares.free_for_others, shares.held.len()), (64, 32, 0));
    }

    /// Only here: users without a right take the slots of users with one.
    #[test]
    fn users_have_shares_and_nobodies_a_few_whatever_their_processes() {
        let places = Places::new(64);
        let nobodies: Vec<Place> = (1..100).flat_map(|id| all_of(&places, Rank::Nobody, id)).collect();
        assert_eq!(nobodies.len(), MAX_NOBODIES);
        let tenant = all_of(&places, Rank::Tenant, 7);
        assert_eq!(tenant.len(), 19, "2/3 of what is left");
        assert!(places.try_take(who(Rank::Viewer, 8)).is_some());
        assert_eq!(all_of(&places, Rank::Operator, 9).len(), 28, "half is operators' alone");
        assert!(places.wait(who(Rank::Nobody, 1)).is_none());
    }

    #[test]
    fn an_idle_connection_goes_first_where_places_are_missing() {
        let places = Places::new(8);
        let greedy = all_of(&places, Rank::Tenant, 1);
        let second = all_of(&places, Rank::Tenant, 2);
        let last = places.try_take(who(Rank::Viewer, 3));
        assert_eq!((greedy.len(), second.len(), last.is_some()), (3, 1, false));
        let told = || greedy.iter().chain(&second).map(|it| it.connection.has_to_go.load(Ordering::Relaxed));
        // A busy connection stays, and so do those of a user with no more of them than the one that asks.
        greedy[0].connection.set_busy(true);
        places.shares().make_room(who(Rank::Tenant, 9));
        assert_eq!(told().collect::<Vec<_>>(), [false, true, false, false]);
        places.shares().make_room(who(Rank::Tenant, 2));
        assert_eq!(told().filter(|told| *told).count(), 2);
        greedy.iter().for_each(|it| it.connection.set_busy(true));
        places.shares().make_room(who(Rank::Tenant, 9));
        assert_eq!(told().filter(|told| *told).count(), 2, "nobody else has more");
        places.shares().make_room(who(Rank::Viewer, 3));
        assert_eq!(told().collect::<Vec<_>>(), [false, true, true, true], "a lower role's");
        // While a viewer waits, no tenant takes what is given back.
        let waiter = places.wait(who(Rank::Viewer, 3));
        drop(greedy);
        assert!(places.try_take(who(Rank::Tenant, 4)).is_none() && waiter.is_some());
        assert!(places.try_take(who(Rank::Viewer, 3)).is_some());
    }
}
