//! Floors: the minimum throughput of best-effort tenants. A tenant below its floor goes before all others, whatever the
//! cap.
//!
//! Each floor has a clock. A command advances it by the time that the command takes at the floor's rate. A tenant is
//! behind if one of its clocks is: it may have one for commands and one for bytes per second (QoS paper, Eqs. 1 and 2).
//! If the drive can't give all floors, all clocks slow down by the same factor.

use io_model::Nanos;

use crate::Floor;
use crate::lowest::Lowest;

/// Clocks count in fractions of a nanosecond: then a floor of 10^7 commands per second is exact to 0.1 %.
const PARTS_PER_NS: u64 = 16;
/// How far a clock may be behind. A tenant makes up for what it did not get, up to this.
const MOST_BEHIND: u64 = 100_000_000 * PARTS_PER_NS;
/// How far behind for a tenant that had no commands: it does not save up what it did not ask for.
const MOST_BEHIND_AWOKEN: u64 = 1_000_000 * PARTS_PER_NS;
/// How far ahead a clock may be, or one command if that is more. What a tenant gets beyond its floor is not held
/// against it.
const MOST_AHEAD: u64 = 10_000_000 * PARTS_PER_NS;
/// Intervals over which a tenant's throughput is averaged.
const AVERAGED: f64 = 10.0;
/// A tenant without commands for this fraction of an interval did not ask for all that it could get.
const RESTED: f64 = 0.2;
/// Clocks run this much faster than the floors, to make up for random losses.
const MARGIN: f64 = 1.01;
/// How quickly clocks slow down while a tenant is behind all the time, and speed up again.
const SLOWED: f64 = 1.05;
const MOST_SLOWED: f64 = 100.0;
/// How quickly the cap that was lowered for a floor rises again.
const RELEASE: f64 = 1.05;
/// The lowest factor by which the cap is lowered at once.
const MOST_TAKEN: f64 = 0.5;
/// The need of a floor is at most this many times what its tenant gets.
const MOST_MORE: f64 = 2.0;
/// The lowest cap, in reference commands.
pub const LEAST_LEFT: f64 = 1.0;
/// A floor is hopeless if its tenant gets less than this fraction of it for `TRIED` intervals in spite of the lowered
/// cap. Its queue depth is too small then.
///
/// The cap is not lowered for it for `FIRST_GIVEN_UP` intervals, and twice as many each further time.
pub const HOPELESS: f64 = 0.9;
const TRIED: u32 = 20;
const FIRST_GIVEN_UP: u32 = 100;
const LONGEST_GIVEN_UP: u32 = 6_400;

#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    floor: Floor,
    /// The fraction of the floor that other pollers serve: 0 to less than 1.
    elsewhere: f64,
    /// How far one command, and one byte, advance the clocks. 0: no such floor.
    per_command: u64,
    per_byte: f64,
    command_clock: u64,
    byte_clock: u64,
    is_awoken: bool,
    /// Counts since the last interval.
    commands: u64,
    bytes: u64,
    work: u64,
    /// How long it had no commands, and since when.
    rested: Nanos,
    resting: Option<Nanos>,
    /// The fraction of its floor that it got lately. `None`: it did not ask for all of it.
    got: Option<f64>,
    /// Intervals with a lowered cap in which it fell short; intervals left without trying; how many the next time.
    tried: u32,
    given_up: u32,
    gives_up: u32,
}

impl Kept {
    /// Whether best-effort tenants must have less than `level` in flight for this floor.
    fn takes(&mut self, got: f64, level: f64) -> bool {
        if got >= 1.0 {
            (self.tried, self.gives_up) = (0, 0);
        } else if level <= LEAST_LEFT && got < HOPELESS {
            self.tried += 1;
        }
        if self.tried > TRIED {
            self.gives_up = (self.gives_up * 2).clamp(FIRST_GIVEN_UP, LONGEST_GIVEN_UP);
            (self.tried, self.given_up) = (0, self.gives_up);
        }
        self.given_up = self.given_up.saturating_sub(1);
        self.given_up == 0
    }

    /// Computes how far one command, and one byte, advance the clocks here.
    fn price(&mut self) {
        let (second, here) = ((1e9 * PARTS_PER_NS as f64 / MARGIN) as u64, 1.0 - self.elsewhere);
        let whole = second.checked_div(self.floor.ios_per_sec);
        self.per_command = whole.map_or(0, |parts| ((parts as f64 / here) as u64).max(1));
        let bytes = (self.floor.mbytes_per_sec << 20) as f64;
        self.per_byte = if bytes == 0.0 { 0.0 } else { second as f64 / bytes / here };
    }

    /// When the tenant is behind, in clock units.
    fn due(&self) -> u64 {
        let clock = |per: bool, clock: u64| if per { clock } else { u64::MAX };
        clock(self.per_command > 0, self.command_clock).min(clock(self.per_byte > 0.0, self.byte_clock))
    }
}

fn parts_at(now: Nanos) -> u64 {
    now.0.saturating_mul(PARTS_PER_NS)
}

/// The floors of all tenants.
#[derive(Debug)]
pub(super) struct Floors {
    /// By tenant.
    of: Vec<Kept>,
    /// Tenants with a floor that are ready, by the time at which they are behind.
    waiting: Lowest,
    /// Number of tenants with a floor.
    count: usize,
    /// The cap that lets tenants reach their floors at the queue depths that they have, in reference commands.
    level: f64,
    /// The factor by which the clocks are slowed down: at least 1.
    slower: f64,
    /// At some moment since the last interval no waiting tenant was behind.
    was_kept: bool,
    /// What the floors of all tenants that always asked need, as a fraction of the best-effort work of the last
    /// interval here.
    need: f64,
    /// Best-effort work since the last interval, in cost ticks.
    work: u64,
    /// When the last interval ended. `None`: none has.
    since: Option<Nanos>,
}

impl Floors {
    pub(super) fn new() -> Self {
        Self {
            of: Vec::new(),
            waiting: Lowest::default(),
            count: 0,
            level: f64::INFINITY,
            slower: 1.0,
            was_kept: true,
            need: 0.0,
            work: 0,
            since: None,
        }
    }

    pub(super) fn grow(&mut self, len: usize) {
        if self.of.len() < len {
            self.of.resize(len, Kept::default());
            self.waiting.grow(len);
        }
    }

    /// Sets the floor of a tenant that is not ready.
    pub(super) fn set(&mut self, tenant: u16, floor: Floor) {
        let kept = &mut self.of[usize::from(tenant)];
        if kept.floor == floor {
            return;
        }
        self.count += usize::from(!floor.is_empty());
        self.count -= usize::from(!kept.floor.is_empty());
        *kept = Kept { floor, elsewhere: kept.elsewhere, is_awoken: true, ..Kept::default() };
        kept.price();
    }

    /// Sets the fraction of the floor that this poller serves. The clocks keep their values.
    pub(super) fn set_part(&mut self, tenant: u16, part: f64) {
        let kept = &mut self.of[usize::from(tenant)];
        kept.elsewhere = 1.0 - part;
        kept.price();
    }

    #[inline]
    pub(super) fn has(&self, tenant: u16) -> bool {
        self.count > 0 && self.of.get(usize::from(tenant)).is_some_and(|kept| !kept.floor.is_empty())
    }

    /// A tenant is ready. `has_nothing`: it has no commands in flight.
    #[inline]
    pub(super) fn insert(&mut self, tenant: u16, has_nothing: bool, now: Nanos) {
        if self.has(tenant) {
            let kept = &mut self.of[usize::from(tenant)];
            kept.is_awoken |= has_nothing;
            if let Some(since) = kept.resting.take() {
                kept.rested += now - since;
            }
            self.place(tenant);
        }
    }

    fn place(&mut self, tenant: u16) {
        self.waiting.insert(tenant, self.of[usize::from(tenant)].due());
    }

    #[inline]
    pub(super) fn remove(&mut self, tenant: u16) {
        if self.has(tenant) {
            self.waiting.remove(tenant);
        }
    }

    /// The tenant that is ready and has been behind for longest.
    #[inline]
    pub(super) fn front(&mut self, now: Nanos) -> Option<u16> {
        if self.count == 0 {
            return None;
        }
        let front = self.waiting.first().filter(|(due, _)| *due <= parts_at(now));
        self.was_kept |= front.is_none();
        front.map(|(_, tenant)| tenant)
    }

    /// When the next tenant that is ready falls behind. If one is behind already, [`front`](Self::front) returns it.
    pub(super) fn next(&self) -> Nanos {
        self.waiting.first().map_or(Nanos::MAX, |(due, _)| Nanos(due.div_ceil(PARTS_PER_NS)))
    }

    /// A tenant sent a command, for its floor or otherwise.
    #[inline]
    pub(super) fn charge(&mut self, tenant: u16, len_bytes: u64, now: Nanos) {
        if !self.has(tenant) {
            return;
        }
        let kept = &mut self.of[usize::from(tenant)];
        let most_behind = if std::mem::take(&mut kept.is_awoken) { MOST_BEHIND_AWOKEN } else { MOST_BEHIND };
        let now = parts_at(now);
        let earliest = now.saturating_sub(most_behind);
        let (command, bytes) = (kept.per_command as f64 * self.slower, len_bytes as f64 * kept.per_byte * self.slower);
        let moved = |clock: u64, by: u64| (clock.max(earliest) + by).min(now + MOST_AHEAD.max(by));
        kept.command_clock = moved(kept.command_clock, command as u64);
        kept.byte_clock = moved(kept.byte_clock, bytes as u64);
        if self.waiting.remove(tenant) {
            self.place(tenant);
        }
    }

    /// A command ended. `rests`: the tenant has no other command since then.
    #[inline]
    pub(super) fn completed(&mut self, tenant: u16, len_bytes: u64, cost: u32, rests: Option<Nanos>) {
        if self.has(tenant) {
            let kept = &mut self.of[usize::from(tenant)];
            kept.commands += 1;
            kept.bytes += len_bytes;
            kept.work += u64::from(cost);
            kept.resting = kept.resting.or(rests);
        }
    }

    /// Work of a best-effort tenant was done.
    #[inline]
    pub(super) fn worked(&mut self, cost: u32) {
        self.work += u64::from(cost);
    }

    /// An interval ended. `units`: the most best-effort work in flight.
    ///
    /// If a tenant falls short of its floor although it always had commands, its commands wait in the drive. So the cap
    /// is lowered by the fraction that it lacks.
    pub(super) fn learn(&mut self, now: Nanos, units: f64) {
        let since = self.since.replace(now).filter(|since| *since < now);
        let all = std::mem::take(&mut self.work) as f64;
        self.need = 0.0;
        if self.count == 0 {
            self.level = f64::INFINITY;
            return;
        }
        let Some(since) = since else {
            self.of.iter_mut().for_each(|kept| (kept.commands, kept.bytes, kept.work) = (0, 0, 0));
            return;
        };
        let was_kept = std::mem::take(&mut self.was_kept);
        self.slower = if was_kept { (self.slower / SLOWED).max(1.0) } else { (self.slower * SLOWED).min(MOST_SLOWED) };
        let seconds = (now - since).0 as f64 / 1e9;
        let mut least: Option<f64> = None;
        for kept in self.of.iter_mut().filter(|kept| !kept.floor.is_empty()) {
            let (commands, bytes) = (std::mem::take(&mut kept.commands), std::mem::take(&mut kept.bytes));
            let work = std::mem::take(&mut kept.work) as f64;
            let rested = std::mem::take(&mut kept.rested);
            let resting = kept.resting.as_mut().map(|from| now - std::mem::replace(from, now).max(since));
            let rested = (rested + resting.unwrap_or_default()).0 as f64 / 1e9;
            if rested > RESTED * seconds || commands == 0 && kept.got.is_none() {
                kept.got = None;
                continue;
            }
            let here = 1.0 - kept.elsewhere;
            let part = |got: u64, floor: u64| got as f64 / seconds / (floor.max(1) as f64 * here);
            let now = [
                (kept.per_command > 0).then(|| part(commands, kept.floor.ios_per_sec)),
                (kept.per_byte > 0.0).then(|| part(bytes, kept.floor.mbytes_per_sec << 20)),
            ];
            let now = now.into_iter().flatten().fold(f64::INFINITY, f64::min);
            // The tenant began to ask in the middle of its first interval.
            let got = kept.got.map_or(now.max(1.0), |got| got + (now - got) / AVERAGED);
            kept.got = Some(got);
            if now > 0.0 && all > 0.0 {
                self.need += work / all * (MARGIN / now).min(MOST_MORE);
            }
            if kept.takes(got, self.level) {
                least = Some(least.map_or(got, |least| least.min(got)));
            }
        }
        self.level = match least {
            Some(got) if got < 1.0 => (self.level.min(units) * got.max(MOST_TAKEN)).max(LEAST_LEFT),
            _ if self.level < units * 2.0 => self.level * RELEASE,
            _ => f64::INFINITY,
        };
    }

    /// Whether there are no floors.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What all floors here need, as a fraction of the work done here in the last interval.
    pub(super) fn need(&self) -> f64 {
        self.need
    }

    /// The cap on best-effort work in flight, in reference commands.
    pub(super) fn level(&self) -> f64 {
        self.level
    }

    /// The fraction of its floor that a tenant got lately. `None`: it has no floor, or did not ask for all of it.
    pub(super) fn got(&self, tenant: u16) -> Option<f64> {
        self.of.get(usize::from(tenant))?.got
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Asks for all that it can get of a drive that takes a command each `each_ns`, from `from_ns` to `to_ns`.
    fn sent(floors: &mut Floors, tenant: u16, (from_ns, to_ns): (u64, u64), each_ns: u64, len_bytes: u64) -> u64 {
        let mut sent = 0;
        for at in (from_ns..to_ns).step_by(each_ns as usize) {
            if floors.front(Nanos(at)) == Some(tenant) {
                floors.charge(tenant, len_bytes, Nanos(at));
                sent += 1;
            }
        }
        sent
    }

    fn floors(of: &[Floor]) -> Floors {
        let mut floors = Floors::new();
        floors.grow(of.len());
        for (tenant, floor) in (0..).zip(of) {
            floors.set(tenant, *floor);
            floors.insert(tenant, true, Nanos(0));
        }
        floors
    }

    #[test]
    fn who_asks_again_after_any_time_is_served() {
        let mut one = floors(&[Floor { ios_per_sec: 5_000, mbytes_per_sec: 0 }]);
        let mut at = 0;
        for pause_s in [1, 9, 17, 20, 100, 10_000] {
            assert!(sent(&mut one, 0, (at, at + 20 * MS), 50_000, 4_096) > 90, "before {pause_s} s");
            one.remove(0);
            at += pause_s * 1_000 * MS;
            one.insert(0, true, Nanos(at));
            assert_eq!(one.front(Nanos(at)), Some(0), "after {pause_s} s");
        }
    }

    #[test]
    fn a_floor_is_what_a_tenant_gets_and_no_more() {
        let mut one = floors(&[Floor { ios_per_sec: 12_345, mbytes_per_sec: 0 }]);
        let got = sent(&mut one, 0, (0, 1_000 * MS), 7_000, 4_096);
        assert!((12_345..12_360).contains(&without_margin(got)), "{got}");
        let mut bytes = floors(&[Floor { ios_per_sec: 0, mbytes_per_sec: 100 }]);
        let got = sent(&mut bytes, 0, (0, 1_000 * MS), 7_000, 131_072);
        assert!((800..=803).contains(&without_margin(got)), "{got}");
        // With both floors it gets the one that is more commands.
        let mut both = floors(&[Floor { ios_per_sec: 10_000, mbytes_per_sec: 100 }]);
        let got = sent(&mut both, 0, (0, 1_000 * MS), 7_000, 4_096);
        assert!((25_600..25_640).contains(&without_margin(got)), "{got}");
    }

    #[test]
    fn what_a_tenant_gets_beyond_its_floor_is_not_held_against_it() {
        let mut one = floors(&[Floor { ios_per_sec: 1_000, mbytes_per_sec: 0 }]);
        // For a second it gets ten times its floor because of its weight, then only its floor.
        (0..10_000).for_each(|at| one.charge(0, 4_096, Nanos(at * 100_000)));
        let got = sent(&mut one, 0, (1_000 * MS, 1_100 * MS), 50_000, 4_096);
        assert!((89..=92).contains(&got), "{got}");
    }

    fn without_margin(got: u64) -> u64 {
        (got as f64 / MARGIN) as u64
    }

    #[test]
    fn of_floors_that_do_not_fit_all_get_the_same_part() {
        let of = [40_000, 10_000, 1_000].map(|ios_per_sec| Floor { ios_per_sec, mbytes_per_sec: 0 });
        let mut floors = floors(&of);
        let mut got = [0; 3];
        // Each gets half for two seconds. Only the second one is counted.
        for at in 0..51_000_u64 {
            let now = Nanos(at * 2_000 * MS / 51_000);
            if at % 255 == 0 {
                floors.learn(now, 1.0);
            }
            if let Some(tenant) = floors.front(now) {
                floors.charge(tenant, 512, now);
                got[usize::from(tenant)] += u64::from(at >= 25_500);
            }
        }
        let parts: Vec<f64> = got.iter().zip(of).map(|(got, of)| *got as f64 / of.ios_per_sec as f64).collect();
        assert!(parts.iter().all(|part| (0.45..0.55).contains(part)), "{parts:?}");
    }

    #[test]
    fn what_could_not_be_given_is_made_up_for_and_rest_is_not_saved() {
        let floor = Floor { ios_per_sec: 10_000, mbytes_per_sec: 0 };
        let mut late = floors(&[floor]);
        assert!((10..=12).contains(&sent(&mut late, 0, (0, MS), 5_000, 512)));
        // For 50 ms nothing can be sent, then half a second follows.
        let got = sent(&mut late, 0, (51 * MS, 500 * MS), 5_000, 512);
        assert!((4_985..=5_000).contains(&without_margin(got)), "{got}");
        late.remove(0);
        late.insert(0, true, Nanos(5_000 * MS));
        let got = sent(&mut late, 0, (5_000 * MS, 5_100 * MS), 5_000, 512);
        assert!((1_000..=1_012).contains(&without_margin(got)), "{got}");
    }

    #[test]
    fn who_is_behind_longest_goes_first_and_the_next_time_is_told() {
        let slow = Floor { ios_per_sec: 100, mbytes_per_sec: 0 };
        let mut two = floors(&[slow, Floor { ios_per_sec: 1_000, mbytes_per_sec: 0 }]);
        let start = Nanos(1_000 * MS);
        while let Some(first) = two.front(start) {
            two.charge(first, 512, start);
        }
        let mut now = start;
        while two.front(now).is_none() {
            let next = two.next();
            assert!(next > now);
            now = next;
        }
        let due = 1_000.0 * MS as f64 + MS as f64 / MARGIN;
        assert_eq!((two.front(now), (now.0 as f64 - due).abs() < MS as f64 / 100.0), (Some(1), true));
        two.remove(1);
        assert_eq!(two.front(Nanos(1_010 * MS)), Some(0));
        two.set(1, Floor::default());
        assert!(!two.has(1) && two.has(0));
    }

    #[test]
    fn others_get_back_what_did_not_help() {
        let mut floors = floors(&[Floor { ios_per_sec: 10_000, mbytes_per_sec: 0 }]);
        let mut interval = |at: u64, commands: u64| {
            (0..commands).for_each(|_| floors.completed(0, 512, 16, None));
            floors.learn(Nanos(at * 10 * MS), floors.level().min(40.0));
            floors.level()
        };
        // 60 % of the floor, whatever other tenants have.
        let levels: Vec<f64> = (1..400).map(|at| interval(at, 60)).collect();
        assert!(levels[..30].contains(&LEAST_LEFT), "{levels:?}");
        let given_up = levels.iter().filter(|level| **level > 40.0).count();
        assert!(given_up > levels.len() / 4, "{levels:?}");
        // 90 % and more may be all that the drive can give.
        (400..1_000).for_each(|at| _ = interval(at, 95));
        assert!((1_000..1_400).all(|at| interval(at, 95) < 2.0));
    }

    #[test]
    fn others_have_less_where_a_floor_is_short_and_all_where_nobody_asks() {
        let mut floors = floors(&[Floor { ios_per_sec: 10_000, mbytes_per_sec: 0 }]);
        // Counts before the end of the first interval don't matter: its start is unknown.
        floors.completed(0, 512, 16, None);
        floors.learn(Nanos(7_000 * MS), 40.0);
        assert_eq!((floors.level(), floors.got(0)), (f64::INFINITY, None));
        // 80 commands in each interval of 10 ms, then no commands for `rest_ns`.
        let mut interval = |at: u64, rest_ns: u64| {
            let end = Nanos((700 + at) * 10 * MS);
            (0..80).for_each(|command| {
                let rests = command == 79 && rest_ns > 0;
                floors.completed(0, 512, 16, rests.then_some(Nanos(end.0 - 3 * MS)));
            });
            floors.remove(0);
            floors.insert(0, true, Nanos(end.0 - 3 * MS + rest_ns));
            floors.learn(end, 40.0);
            (floors.level(), floors.got(0))
        };
        assert_eq!(interval(1, 0), (f64::INFINITY, Some(1.0)));
        let (level, got) = (2..30).map(|at| interval(at, 0)).last().unwrap();
        assert!(level < 40.0 && (got.unwrap() - 0.8).abs() < 0.03, "{level} {got:?}");
        let (shorter, got) = (30..40).map(|at| interval(at, MS / 10)).last().unwrap();
        assert!(shorter <= level && got.is_some(), "a moment between two commands: {shorter} {got:?}");
        let (level, got) = (40..300).map(|at| interval(at, 5 * MS / 2)).last().unwrap();
        assert_eq!((level, got), (f64::INFINITY, None));
    }
}
