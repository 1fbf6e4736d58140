//! Which queue is served next: round robin, weighted round robin with an urgent class, deficit round robin.
//!
//! Shared by everything that fetches from several submission queues. It holds no commands: the caller says which
//! queues are backlogged, asks for the next one, takes a command from there, and says when a queue ran empty.

use io_model::{HwqClass, WrrWeights};

/// Most queues that an arbiter can know.
pub const MAX_QUEUES: u16 = 128;

/// What a command counts for at least in deficit round robin: a flush is not free.
const MIN_COST_BYTES: u64 = 512;

/// Bytes of a queue's turn in deficit round robin, in KiB, by the queue's class. At least 1 each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantaKib {
    /// Of [`HwqClass::High`].
    pub high: u32,
    /// Of [`HwqClass::Medium`].
    pub medium: u32,
    /// Of [`HwqClass::Low`].
    pub low: u32,
}

/// The rule. A `burst` of 0 counts as 1, and so does a weight or a quantum of 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arbitration {
    /// Up to `burst` commands from one queue, then the next one that has any. Classes don't count.
    RoundRobin {
        /// Commands in one turn.
        burst: u32,
    },
    /// Weighted round robin with urgent priority class (NVMe base specification, "Command Arbitration"): urgent queues
    /// first and without limit; then each class up to its weight in commands, in turn. Within a class, round robin
    /// with `burst`. A class that has no commands forfeits the rest of its turn.
    WeightedRoundRobin {
        /// Commands in one turn of a queue; the turn of its class may end earlier.
        burst: u32,
        /// Commands in one turn of a class.
        weights: WrrWeights,
    },
    /// Urgent queues first, by round robin; all others in one ring, each up to its class's quantum in bytes. What a
    /// queue could not use for its next command it keeps for its next turn, until it runs empty (Shreedhar and
    /// Varghese, SIGCOMM '95). The deficit is the *queue's*: queues of one class get equal bytes, whatever their sizes.
    DeficitRoundRobin {
        /// Bytes of one turn.
        quanta: QuantaKib,
    },
}

/// Round robin among a set of queues.
#[derive(Debug, Clone, Copy)]
struct Ring {
    /// Bit `i`: queue `i` is backlogged.
    backlogged: u128,
    at: u16,
    left_in_burst: u32,
}

impl Ring {
    /// Empty; queue 0 is the first one that has its turn.
    const NEW: Self = Self { backlogged: 0, at: MAX_QUEUES - 1, left_in_burst: 0 };

    #[inline]
    fn set(&mut self, bit: u128, backlogged: bool) {
        self.backlogged = if backlogged { self.backlogged | bit } else { self.backlogged & !bit };
    }

    fn is_at_backlogged(&self) -> bool {
        self.backlogged & (1 << self.at) != 0
    }

    /// Moves to the next backlogged queue; back to the current one if there is no other.
    fn turn(&mut self) {
        let next = u32::from(self.at) + 1;
        let distance = self.backlogged.rotate_right(next).trailing_zeros();
        self.at = ((next + distance) % u32::from(MAX_QUEUES)) as u16;
    }

    /// The queue of the next command. Something must be backlogged.
    fn pick(&mut self, burst: u32) -> u16 {
        if self.left_in_burst == 0 || !self.is_at_backlogged() {
            self.turn();
            self.left_in_burst = burst.max(1);
        }
        self.left_in_burst -= 1;
        self.at
    }
}

const URGENT: usize = 0;
const LAST_CLASS: usize = 3;
const CLASSES: usize = 4;

fn index(class: HwqClass) -> usize {
    match class {
        HwqClass::Urgent => URGENT,
        HwqClass::High => 1,
        HwqClass::Medium => 2,
        HwqClass::Low => 3,
    }
}

/// Picks queues by an [`Arbitration`]. Costs O(1) for each pick, however many queues idle; in deficit round robin
/// O(backlogged queues) for a command larger than its queue's quantum.
#[derive(Debug, Clone)]
pub struct Arbiter {
    arbitration: Arbitration,
    class_of: Vec<HwqClass>,
    /// All queues: round robin.
    all: Ring,
    /// By class: weighted round robin. The urgent one serves deficit round robin too.
    rings: [Ring; CLASSES],
    /// The class whose turn it is, and what is left of it.
    class_at: usize,
    left_in_class: u32,
    /// All but the urgent queues: deficit round robin.
    ring: Ring,
    deficit_bytes: Vec<u64>,
}

impl Arbiter {
    /// An arbiter of `queues` queues, [`MAX_QUEUES`] at most, all medium and without commands.
    pub fn new(arbitration: Arbitration, queues: u16) -> Self {
        let queues = usize::from(queues.min(MAX_QUEUES));
        Self {
            arbitration,
            class_of: vec![HwqClass::Medium; queues],
            all: Ring::NEW,
            rings: [Ring::NEW; CLASSES],
            class_at: LAST_CLASS,
            left_in_class: 0,
            ring: Ring::NEW,
            deficit_bytes: vec![0; queues],
        }
    }

    /// Number of queues.
    pub fn queues(&self) -> u16 {
        self.class_of.len() as u16
    }

    /// The rule in force.
    pub fn arbitration(&self) -> Arbitration {
        self.arbitration
    }

    /// Changes the rule from the next pick on. Turns and deficits start anew, unless it is the rule in force.
    pub fn set_arbitration(&mut self, arbitration: Arbitration) {
        if self.arbitration == arbitration {
            return;
        }
        self.arbitration = arbitration;
        for ring in self.rings.iter_mut().chain([&mut self.all, &mut self.ring]) {
            ring.left_in_burst = 0;
        }
        (self.class_at, self.left_in_class) = (LAST_CLASS, 0);
        self.deficit_bytes.fill(0);
    }

    /// Puts a queue into a class. `false`: there is no such queue.
    pub fn set_class(&mut self, queue: u16, class: HwqClass) -> bool {
        let backlogged = self.is_backlogged(queue);
        self.set_backlogged(queue, false);
        let Some(place) = self.class_of.get_mut(usize::from(queue)) else { return false };
        *place = class;
        self.set_backlogged(queue, backlogged);
        true
    }

    /// Whether any queue has commands.
    #[inline]
    pub fn any_backlogged(&self) -> bool {
        self.all.backlogged != 0
    }

    fn is_backlogged(&self, queue: u16) -> bool {
        queue < self.queues() && self.all.backlogged & (1 << queue) != 0
    }

    /// Whether a queue has commands. One that runs empty loses the rest of its turn and its deficit. Queues that do
    /// not exist have none.
    #[inline]
    pub fn set_backlogged(&mut self, queue: u16, backlogged: bool) {
        let Some(&class) = self.class_of.get(usize::from(queue)) else { return };
        let bit = 1 << queue;
        self.all.set(bit, backlogged);
        self.rings[index(class)].set(bit, backlogged);
        if class != HwqClass::Urgent {
            self.ring.set(bit, backlogged);
        }
        if !backlogged {
            self.deficit_bytes[usize::from(queue)] = 0;
        }
    }

    /// The queue whose first command is next, and charges it; `None` if no queue is backlogged. `head_bytes` tells the
    /// size of a backlogged queue's first command; only deficit round robin asks.
    #[inline]
    pub fn pick(&mut self, head_bytes: impl Fn(u16) -> u64) -> Option<u16> {
        if self.all.backlogged == 0 {
            return None;
        }
        Some(match self.arbitration {
            Arbitration::RoundRobin { burst } => self.all.pick(burst),
            Arbitration::WeightedRoundRobin { burst, .. } if self.rings[URGENT].backlogged != 0 => {
                self.rings[URGENT].pick(burst)
            }
            Arbitration::WeightedRoundRobin { burst, weights } => self.pick_weighted(burst, weights),
            Arbitration::DeficitRoundRobin { .. } if self.rings[URGENT].backlogged != 0 => self.rings[URGENT].pick(1),
            Arbitration::DeficitRoundRobin { quanta } => self.pick_by_deficit(quanta, head_bytes),
        })
    }

    fn pick_weighted(&mut self, burst: u32, weights: WrrWeights) -> u16 {
        if self.left_in_class == 0 || self.rings[self.class_at].backlogged == 0 {
            // One of the three classes has commands, the current one last.
            for _ in 0..LAST_CLASS {
                self.class_at = self.class_at % LAST_CLASS + 1;
                if self.rings[self.class_at].backlogged != 0 {
                    break;
                }
            }
            let weight = [weights.high, weights.high, weights.medium, weights.low][self.class_at];
            self.left_in_class = u32::from(weight).max(1);
        }
        self.left_in_class -= 1;
        self.rings[self.class_at].pick(burst)
    }

    fn pick_by_deficit(&mut self, quanta: QuantaKib, head_bytes: impl Fn(u16) -> u64) -> u16 {
        let cost_bytes = |queue| head_bytes(queue).max(MIN_COST_BYTES);
        // The first look is at the queue whose turn it is; its quantum was added when the turn began.
        let mut visits_to_a_round = self.ring.backlogged.count_ones();
        loop {
            if self.ring.is_at_backlogged() {
                let cost = cost_bytes(self.ring.at);
                let deficit = &mut self.deficit_bytes[usize::from(self.ring.at)];
                if *deficit >= cost {
                    *deficit -= cost;
                    return self.ring.at;
                }
            }
            if visits_to_a_round == 0 {
                self.skip_fruitless_rounds(quanta, cost_bytes);
                visits_to_a_round = self.ring.backlogged.count_ones();
            }
            visits_to_a_round -= 1;
            self.ring.turn();
            let deficit = &mut self.deficit_bytes[usize::from(self.ring.at)];
            *deficit = deficit.saturating_add(quantum_bytes(quanta, self.class_of[usize::from(self.ring.at)]));
        }
    }

    /// Adds at once the quanta of all rounds in which no queue could send.
    fn skip_fruitless_rounds(&mut self, quanta: QuantaKib, cost_bytes: impl Fn(u16) -> u64) {
        let queues = || (0..self.queues()).filter(|&queue| self.ring.backlogged & (1 << queue) != 0);
        let rounds = |queue| {
            let missing = cost_bytes(queue).saturating_sub(self.deficit_bytes[usize::from(queue)]);
            missing.div_ceil(quantum_bytes(quanta, self.class_of[usize::from(queue)]))
        };
        let fruitless = queues().map(rounds).min().unwrap_or(0).saturating_sub(1);
        let mut left = self.ring.backlogged;
        while left != 0 {
            let queue = left.trailing_zeros() as usize;
            left &= left - 1;
            let more = fruitless.saturating_mul(quantum_bytes(quanta, self.class_of[queue]));
            self.deficit_bytes[queue] = self.deficit_bytes[queue].saturating_add(more);
        }
    }
}

fn quantum_bytes(quanta: QuantaKib, class: HwqClass) -> u64 {
    let kib = match class {
        HwqClass::Urgent | HwqClass::High => quanta.high,
        HwqClass::Medium => quanta.medium,
        HwqClass::Low => quanta.low,
    };
    u64::from(kib.max(1)) << 10
}
