//! The three rules.

use io_model::{QueuePriority, WrrWeights};

use crate::queue_set::QueueSet;

/// Most queues that an arbiter can know.
pub const MAX_QUEUES: u16 = 4_096;

/// What a command counts for at least in deficit round robin: a flush is not free.
const MIN_COST_BYTES: u64 = 512;

/// No command costs more: the largest debt that a queue can have.
const MAX_COST_BYTES: u64 = 1 << 32;

/// Bytes of a queue's turn in deficit round robin, in KiB, by the queue's class. At least 1 each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantaKib {
    /// Of [`QueuePriority::High`].
    pub high: u32,
    /// Of [`QueuePriority::Medium`].
    pub medium: u32,
    /// Of [`QueuePriority::Low`].
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
    /// Urgent queues first, by round robin; all others in one ring, each for its class's quantum in bytes (Shreedhar
    /// and Varghese, SIGCOMM '95). A turn goes on while the queue has credit left, and its last command may overdraw:
    /// what a command costs is known only after it was fetched. The debt is the *queue's*, and is carried over to its
    /// next turns even if it runs empty meanwhile; credit is lost then. So backlogged queues get bytes in proportion to
    /// their quanta, whatever their sizes.
    DeficitRoundRobin {
        /// Bytes of one turn.
        quanta: QuantaKib,
    },
}

/// Round robin among a set of queues.
#[derive(Debug, Clone)]
struct Ring {
    backlogged: QueueSet,
    at: u16,
    left_in_burst: u32,
}

impl Ring {
    /// Empty; queue 0 is the first one that has its turn.
    fn new(queues: u16) -> Self {
        Self { backlogged: QueueSet::new(queues), at: MAX_QUEUES - 1, left_in_burst: 0 }
    }

    fn is_at_backlogged(&self) -> bool {
        self.backlogged.contains(self.at)
    }

    /// Moves to the next backlogged queue; back to the current one if there is no other.
    fn turn(&mut self) {
        self.at = self.backlogged.next_after(self.at);
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

fn index(class: QueuePriority) -> usize {
    match class {
        QueuePriority::Urgent => URGENT,
        QueuePriority::High => 1,
        QueuePriority::Medium => 2,
        QueuePriority::Low => 3,
    }
}

/// Picks queues by an [`Arbitration`], in O(1) per command, however many queues idle. In deficit round robin a command
/// costs its queue one more visit for each quantum that it is long, and rounds in which no queue could send are skipped
/// at once.
#[derive(Debug, Clone)]
pub struct Arbiter {
    arbitration: Arbitration,
    class_of: Vec<QueuePriority>,
    /// All queues: round robin.
    all: Ring,
    /// By class: weighted round robin. The urgent one serves deficit round robin too.
    rings: [Ring; CLASSES],
    /// The class whose turn it is, and what is left of it.
    class_at: usize,
    left_in_class: u32,
    /// All but the urgent queues: deficit round robin.
    ring: Ring,
    /// What each queue may still send; below 0: its debt.
    credit_bytes: Vec<i64>,
}

impl Arbiter {
    /// An arbiter of `queues` queues, [`MAX_QUEUES`] at most, all medium and without commands.
    pub fn new(arbitration: Arbitration, queues: u16) -> Self {
        let queues = queues.min(MAX_QUEUES);
        Self {
            arbitration,
            class_of: vec![QueuePriority::Medium; queues.into()],
            all: Ring::new(queues),
            rings: std::array::from_fn(|_| Ring::new(queues)),
            class_at: LAST_CLASS,
            left_in_class: 0,
            ring: Ring::new(queues),
            credit_bytes: vec![0; queues.into()],
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

    /// Changes the rule from the next pick on. Turns, credit and debts start anew, unless it is the rule in force.
    pub fn set_arbitration(&mut self, arbitration: Arbitration) {
        if self.arbitration == arbitration {
            return;
        }
        self.arbitration = arbitration;
        for ring in self.rings.iter_mut().chain([&mut self.all, &mut self.ring]) {
            ring.left_in_burst = 0;
        }
        (self.class_at, self.left_in_class) = (LAST_CLASS, 0);
        self.credit_bytes.fill(0);
    }

    /// Changes the weights of weighted round robin, from the next turn of a class on; nothing starts anew. Another rule
    /// has none.
    pub fn set_weights(&mut self, to: WrrWeights) {
        if let Arbitration::WeightedRoundRobin { weights, .. } = &mut self.arbitration {
            *weights = to;
        }
    }

    /// Puts a queue into a class. `false`: there is no such queue.
    pub fn set_class(&mut self, queue: u16, class: QueuePriority) -> bool {
        let backlogged = self.is_backlogged(queue);
        self.set_backlogged(queue, false);
        let Some(place) = self.class_of.get_mut(usize::from(queue)) else { return false };
        *place = class;
        self.set_backlogged(queue, backlogged);
        true
    }

    /// Forgets what a queue owes: another one takes its number.
    pub fn forgive(&mut self, queue: u16) {
        if let Some(credit) = self.credit_bytes.get_mut(usize::from(queue)) {
            *credit = 0;
        }
    }

    /// Whether any queue has commands.
    #[inline]
    pub fn any_backlogged(&self) -> bool {
        !self.all.backlogged.is_empty()
    }

    /// Whether a queue has commands. Queues that do not exist have none.
    #[inline]
    pub fn is_backlogged(&self, queue: u16) -> bool {
        self.all.backlogged.contains(queue)
    }

    /// Tells whether a queue has commands. One that runs empty loses the rest of its turn and its credit, but not its
    /// debt.
    #[inline]
    pub fn set_backlogged(&mut self, queue: u16, backlogged: bool) {
        let at = usize::from(queue);
        let (Some(&class), Some(credit)) = (self.class_of.get(at), self.credit_bytes.get_mut(at)) else { return };
        self.all.backlogged.set(queue, backlogged);
        self.rings[index(class)].backlogged.set(queue, backlogged);
        if class != QueuePriority::Urgent {
            self.ring.backlogged.set(queue, backlogged);
        }
        if !backlogged {
            *credit = (*credit).min(0);
        }
    }

    /// The queue whose first command is next; `None` if no queue is backlogged. The command is then taken and
    /// [charged](Self::charge).
    #[inline]
    pub fn pick(&mut self) -> Option<u16> {
        if self.all.backlogged.is_empty() {
            return None;
        }
        let urgent = !self.rings[URGENT].backlogged.is_empty();
        Some(match self.arbitration {
            Arbitration::RoundRobin { burst } => self.all.pick(burst),
            Arbitration::WeightedRoundRobin { burst, .. } if urgent => self.rings[URGENT].pick(burst),
            Arbitration::WeightedRoundRobin { burst, weights } => self.pick_weighted(burst, weights),
            Arbitration::DeficitRoundRobin { .. } if urgent => self.rings[URGENT].pick(1),
            Arbitration::DeficitRoundRobin { quanta } => self.pick_by_credit(quanta),
        })
    }

    /// What the command of a picked queue costs. Only deficit round robin counts it, and not that of urgent queues.
    #[inline]
    pub fn charge(&mut self, queue: u16, len_bytes: u64) {
        let at = usize::from(queue);
        let weighted = self.class_of.get(at).is_some_and(|class| *class != QueuePriority::Urgent);
        if weighted && matches!(self.arbitration, Arbitration::DeficitRoundRobin { .. }) {
            let cost = len_bytes.clamp(MIN_COST_BYTES, MAX_COST_BYTES) as i64;
            self.credit_bytes[at] = self.credit_bytes[at].saturating_sub(cost);
        }
    }

    fn pick_weighted(&mut self, burst: u32, weights: WrrWeights) -> u16 {
        if self.left_in_class == 0 || self.rings[self.class_at].backlogged.is_empty() {
            // One of the three classes has commands, the current one last.
            for _ in 0..LAST_CLASS {
                self.class_at = self.class_at % LAST_CLASS + 1;
                if !self.rings[self.class_at].backlogged.is_empty() {
                    break;
                }
            }
            let weight = [weights.high, weights.high, weights.medium, weights.low][self.class_at];
            self.left_in_class = u32::from(weight).max(1);
        }
        self.left_in_class -= 1;
        self.rings[self.class_at].pick(burst)
    }

    fn pick_by_credit(&mut self, quanta: QuantaKib) -> u16 {
        // The first look is at the queue whose turn it is; its quantum was added when the turn began.
        let mut visits_to_a_round = self.ring.backlogged.len();
        while !self.ring.is_at_backlogged() || self.credit_bytes[usize::from(self.ring.at)] <= 0 {
            if visits_to_a_round == 0 {
                self.skip_fruitless_rounds(quanta);
                visits_to_a_round = self.ring.backlogged.len();
            }
            visits_to_a_round -= 1;
            self.ring.turn();
            let at = usize::from(self.ring.at);
            self.credit_bytes[at] = self.credit_bytes[at].saturating_add(quantum_bytes(quanta, self.class_of[at]));
        }
        self.ring.at
    }

    /// Adds at once the quanta of all rounds in which no queue could send.
    fn skip_fruitless_rounds(&mut self, quanta: QuantaKib) {
        let Self { ring, credit_bytes, class_of, .. } = self;
        let quantum = |queue: u16| quantum_bytes(quanta, class_of[usize::from(queue)]);
        // Whole quanta that leave a queue without credit: with one more it may send.
        let rounds = |queue| credit_bytes[usize::from(queue)].saturating_neg().max(0) / quantum(queue);
        let fruitless = ring.backlogged.iter().map(rounds).min().unwrap_or(0);
        for queue in ring.backlogged.iter() {
            let credit = &mut credit_bytes[usize::from(queue)];
            *credit = credit.saturating_add(fruitless.saturating_mul(quantum(queue)));
        }
    }
}

fn quantum_bytes(quanta: QuantaKib, class: QueuePriority) -> i64 {
    let kib = match class {
        QueuePriority::Urgent | QueuePriority::High => quanta.high,
        QueuePriority::Medium => quanta.medium,
        QueuePriority::Low => quanta.low,
    };
    i64::from(kib.max(1)) << 10
}
