//! Weighted max-min filling: who gets how much of what is not enough for all.

/// One flow that competes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Its rate if nobody else were there: it never gets more.
    pub(super) wants: f64,
    /// What it gets whatever its turns are: `wants` at most.
    pub(super) least: f64,
    /// Commands in one turn.
    pub(super) turn: f64,
    /// What each command takes of each resource.
    pub(super) uses: [f64; RESOURCES],
    /// Among which flows it competes for its class's part.
    pub(super) class: usize,
}

/// Things that run out: work in flight, the poller's time, tokens.
pub(super) const RESOURCES: usize = 3;
/// Of them, the place of what commands cost.
pub(super) const COST: usize = 2;

/// Sums over the flows of a class, those that want least for their turn first.
#[derive(Debug, Default)]
struct Class {
    /// Commands in one turn of the class; `None`: its flows have turns of their own.
    turn: Option<f64>,
    /// `wants / turn` of each flow, ascending.
    ratios: Vec<f64>,
    /// Before each flow: what those before it want together, in commands and of each resource.
    wants: Vec<(f64, [f64; RESOURCES])>,
    /// From each flow on: turns.
    turns: Vec<(f64, [f64; RESOURCES])>,
}

impl Class {
    fn fill(&mut self, turn: Option<f64>, mut claims: Vec<&Claim>) {
        let ratio = |claim: &Claim| claim.wants / claim.turn;
        claims.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        self.turn = turn;
        self.ratios.extend(claims.iter().map(|claim| ratio(claim)));
        let mut sum = (0.0, [0.0; RESOURCES]);
        self.wants.push(sum);
        for claim in &claims {
            add(&mut sum, claim.wants, &claim.uses);
            self.wants.push(sum);
        }
        let mut sum = (0.0, [0.0; RESOURCES]);
        self.turns.push(sum);
        for claim in claims.iter().rev() {
            add(&mut sum, claim.turn, &claim.uses);
            self.turns.push(sum);
        }
        self.turns.reverse();
    }

    /// The level within the class if it gets turns this often.
    fn level(&self, rate: f64) -> f64 {
        let Some(turn) = self.turn else { return rate };
        let most = turn * rate;
        if self.wants.last().is_none_or(|all| all.0 <= most) {
            return f64::INFINITY;
        }
        // The first flow that is not satisfied when all before it are.
        let (mut at, mut end) = (0, self.ratios.len().saturating_sub(1));
        while at < end {
            let middle = at.midpoint(end);
            let satisfied = self.wants[middle].0 + self.turns[middle].0 * self.ratios[middle] < most;
            if satisfied { at = middle + 1 } else { end = middle }
        }
        (most - self.wants[at].0) / self.turns[at].0.max(f64::MIN_POSITIVE)
    }

    fn uses(&self, level: f64) -> [f64; RESOURCES] {
        let satisfied = self.ratios.partition_point(|ratio| *ratio <= level);
        let (wants, turns) = (&self.wants[satisfied].1, &self.turns[satisfied].1);
        std::array::from_fn(|at| wants[at] + if turns[at] > 0.0 { turns[at] * level } else { 0.0 })
    }
}

fn add(sum: &mut (f64, [f64; RESOURCES]), commands: f64, uses: &[f64; RESOURCES]) {
    sum.0 += commands;
    for (sum, uses) in sum.1.iter_mut().zip(uses) {
        *sum += commands * uses;
    }
}

/// What everyone gets: `turns` of each flow, this often; infinite: all that it wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Level {
    /// Rounds: how often each class, or each flow where classes have no turns, has its turn.
    pub(super) rounds: f64,
    /// By class: how often its flows have their turns.
    pub(super) by_class: [f64; CLASSES],
}

pub(super) const CLASSES: usize = 3;

impl Level {
    /// Enough for all.
    pub(super) const ALL: Self = Self { rounds: f64::INFINITY, by_class: [f64::INFINITY; CLASSES] };

    pub(super) fn or_higher(self, other: Self) -> Self {
        if self.rounds > other.rounds { self } else { other }
    }

    /// The rate of a flow.
    pub(super) fn rate(&self, claim: &Claim) -> f64 {
        self.turns(claim).max(claim.least)
    }

    /// What its turns give it.
    pub(super) fn turns(&self, claim: &Claim) -> f64 {
        claim.wants.min(claim.turn * self.by_class[claim.class])
    }
}

/// Finds the level at which the scarcest resource is just used up.
pub(super) fn fill(claims: &[Claim], class_turns: Option<[f64; CLASSES]>, has: &[f64; RESOURCES]) -> Level {
    // The usual case, at little cost.
    let mut all = (0.0, [0.0; RESOURCES]);
    claims.iter().for_each(|claim| add(&mut all, claim.wants, &claim.uses));
    if all.1.iter().zip(has).all(|(uses, has)| uses <= has) {
        return Level::ALL;
    }
    let mut classes: [Class; CLASSES] = Default::default();
    for (at, class) in classes.iter_mut().enumerate() {
        class.fill(class_turns.map(|turns| turns[at]), claims.iter().filter(|claim| claim.class == at).collect());
    }
    let level = |rounds: f64| Level { rounds, by_class: std::array::from_fn(|at| classes[at].level(rounds)) };
    let fits = |level: &Level| {
        let mut sum = [0.0; RESOURCES];
        for (class, level) in classes.iter().zip(level.by_class) {
            let level = if level.is_finite() { level } else { f64::MAX };
            for (sum, uses) in sum.iter_mut().zip(class.uses(level)) {
                *sum += uses;
            }
        }
        sum.iter().zip(has).all(|(uses, has)| uses <= has)
    };
    // Rates are per ns: none is above 1 or so, none below one in an hour.
    let (mut low, mut high) = (1e-15_f64, 10.0_f64);
    for _ in 0..60 {
        let middle = (low * high).sqrt();
        if fits(&level(middle)) {
            low = middle
        } else {
            high = middle
        }
        if high / low < 1.0 + 1e-6 {
            break;
        }
    }
    level(low)
}
