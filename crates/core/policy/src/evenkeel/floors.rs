//! What best-effort tenants get at least: who is behind that goes before all others, whatever the cap.
//!
//! Each floor has a clock, which a command moves on by what it is worth at the floor's rate. A tenant is behind while
//! one of its clocks is (QoS paper, Eqs. 1 and 2: commands and bytes per second, each a promise). Where the drive can't
//! give all floors, all clocks are slower by the same factor.

use io_model::Nanos;

use crate::Floor;
use crate::lowest::Lowest;

/// Clocks count in these parts of a nanosecond: a floor of 10^7 commands per second is exact to 0.1 %.
const PARTS_PER_NS: u64 = 16;
/// How far a clock may be behind: what a tenant could not be given is made up for, up to that.
const MOST_BEHIND: u64 = 100_000_000 * PARTS_PER_NS;
/// The same for who comes back from having nothing: what it did not ask for is not saved.
const MOST_BEHIND_AWOKEN: u64 = 1_000_000 * PARTS_PER_NS;
/// How far ahead it may be, or a command: what a tenant gets beyond its floor is not held against it.
const MOST_AHEAD: u64 = 10_000_000 * PARTS_PER_NS;
/// Intervals over which what a tenant gets is averaged.
const AVERAGED: f64 = 10.0;
/// A tenant that had nothing for that part of an interval did not ask for all it could get.
const RESTED: f64 = 0.2;
/// Clocks are that much faster than floors: what is lost to chance is not a part of the promise.
const MARGIN: f64 = 1.01;
/// How fast clocks are slowed down while somebody waits behind a floor all the time, and how fast that is taken back.
const SLOWED: f64 = 1.05;
const MOST_SLOWED: f64 = 100.0;
/// How fast others get back what was taken for a floor.
const RELEASE: f64 = 1.05;
/// The most that is taken at once.
const MOST_TAKEN: f64 = 0.5;
/// A floor is taken for that many times what its tenant gets at most, at a time.
const MOST_MORE: f64 = 2.0;
/// Work that is left with the drive at least, in reference commands.
pub const LEAST_LEFT: f64 = 1.0;
/// Where a tenant gets less than that part of its floor for so many intervals although others have no more than that,
/// its depth is too small for it: nothing more is taken for it, for so many intervals the first time, and twice as many
/// each further time.
pub const HOPELESS: f64 = 0.9;
const TRIED: u32 = 20;
const FIRST_GIVEN_UP: u32 = 100;
const LONGEST_GIVEN_UP: u32 = 6_400;

#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    floor: Floor,
    /// The part of it that is another poller's: 0 to less than 1.
    elsewhere: f64,
    /// What a command and a byte are worth, in parts; 0: no such floor.
    per_command: u64,
    per_byte: f64,
    command_clock: u64,
    byte_clock: u64,
    is_awoken: bool,
    /// Since the last interval.
    commands: u64,
    bytes: u64,
    work: u64,
    /// How long it had nothing, here or with the drive, and since when it has.
    rested: Nanos,
    resting: Option<Nanos>,
    /// What it got of its floor lately, while it asked all along.
    got: Option<f64>,
    /// Intervals in which all was done for it and it was short; in which nothing is done; how many the next time.
    tried: u32,
    given_up: u32,
    gives_up: u32,
}

impl Kept {
    /// Whether others are to have less for it, who have so much.
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

    /// What a command and a byte are worth at its floor here.
    fn price(&mut self) {
        let (second, here) = ((1e9 * PARTS_PER_NS as f64 / MARGIN) as u64, 1.0 - self.elsewhere);
        let whole = second.checked_div(self.floor.ios_per_sec);
        self.per_command = whole.map_or(0, |parts| ((parts as f64 / here) as u64).max(1));
        let bytes = (self.floor.mbytes_per_sec << 20) as f64;
        self.per_byte = if bytes == 0.0 { 0.0 } else { second as f64 / bytes / here };
    }

    /// When it is behind, in parts.
    fn due(&self) -> u64 {
        let clock = |per: bool, clock: u64| if per { clock } else { u64::MAX };
        clock(self.per_command > 0, self.command_clock).min(clock(self.per_byte > 0.0, self.byte_clock))
    }
}

fn parts_at(now: Nanos) -> u64 {
    now.0.saturating_mul(PARTS_PER_NS)
}

/// All of them.
#[derive(Debug)]
pub(super) struct Floors {
    /// By tenant.
    of: Vec<Kept>,
    /// Those that are ready, by when they are due, in parts.
    waiting: Lowest,
    /// Tenants that have one.
    count: usize,
    /// Work that others may have with the drive so that a floor can be kept at the depth that its tenant has.
    level: f64,
    /// By what clocks are slower than they should be: at least 1.
    slower: f64,
    /// At some moment since the last interval nobody waited who was behind.
    was_kept: bool,
    /// All floors of those who asked all along, in parts of the work that best-effort tenants did here in the last
    /// interval.
    need: f64,
    /// Work that best-effort tenants did since, in cost ticks.
    work: u64,
    /// When the last interval ended; none did yet.
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

    /// A tenant that is not ready has this one from now on.
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

    /// A tenant asks for that part of its floor here. Its clocks go on.
    pub(super) fn set_part(&mut self, tenant: u16, part: f64) {
        let kept = &mut self.of[usize::from(tenant)];
        kept.elsewhere = 1.0 - part;
        kept.price();
    }

    #[inline]
    pub(super) fn has(&self, tenant: u16) -> bool {
        self.count > 0 && self.of.get(usize::from(tenant)).is_some_and(|kept| !kept.floor.is_empty())
    }

    /// It is ready. `has_nothing`: neither has it anything with the drive.
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

    /// Who is ready and behind, the one that has been for longest first.
    #[inline]
    pub(super) fn front(&mut self, now: Nanos) -> Option<u16> {
        if self.count == 0 {
            return None;
        }
        let front = self.waiting.first().filter(|(due, _)| *due <= parts_at(now));
        self.was_kept |= front.is_none();
        front.map(|(_, tenant)| tenant)
    }

    /// Until then nobody who is ready is behind, unless [`front`](Self::front) says so now.
    pub(super) fn next(&self) -> Nanos {
        self.waiting.first().map_or(Nanos::MAX, |(due, _)| Nanos(due.div_ceil(PARTS_PER_NS)))
    }

    /// It sent a command, for its floor or otherwise.
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

    /// A command ended. `rests`: it has no other, here or with the drive, from now on.
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

    /// A best-effort tenant's work was done.
    #[inline]
    pub(super) fn worked(&mut self, cost: u32) {
        self.work += u64::from(cost);
    }

    /// An interval ended, in which best-effort tenants had `units` of work with the drive at most. Where a tenant gets
    /// less than its floor although it always had a command here or there, its commands wait with the drive: others
    /// may have as much less there.
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
            // The first interval in which it asks did not begin with that.
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

    /// Nobody has one.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What all floors here are, of the work that was done here in the last interval.
    pub(super) fn need(&self) -> f64 {
        self.need
    }

    /// Work that best-effort tenants may have with the drive, in reference commands.
    pub(super) fn level(&self) -> f64 {
        self.level
    }

    /// The part of its floor that a tenant got lately; `None`: it has none, or did not ask for all of it.
    pub(super) fn got(&self, tenant: u16) -> Option<f64> {
        self.of.get(usize::from(tenant))?.got
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Asks for all it can get of a drive that takes a command each `each_ns`, from `from_ns` on.
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
        // Of both it gets the one that is more commands.
        let mut both = floors(&[Floor { ios_per_sec: 10_000, mbytes_per_sec: 100 }]);
        let got = sent(&mut both, 0, (0, 1_000 * MS), 7_000, 4_096);
        assert!((25_600..25_640).contains(&without_margin(got)), "{got}");
    }

    #[test]
    fn what_a_tenant_gets_beyond_its_floor_is_not_held_against_it() {
        let mut one = floors(&[Floor { ios_per_sec: 1_000, mbytes_per_sec: 0 }]);
        // Ten times its floor for a second, by its weight; then nothing but its floor.
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
        // Half of them together, for two seconds; the second one counts.
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
        // 50 ms in which nothing could be sent, and then half of a second.
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
        // 60 % of it, whatever others have.
        let levels: Vec<f64> = (1..400).map(|at| interval(at, 60)).collect();
        assert!(levels[..30].contains(&LEAST_LEFT), "{levels:?}");
        let given_up = levels.iter().filter(|level| **level > 40.0).count();
        assert!(given_up > levels.len() / 4, "{levels:?}");
        // Nine tenths and more of it may be all that there is to have.
        (400..1_000).for_each(|at| _ = interval(at, 95));
        assert!((1_000..1_400).all(|at| interval(at, 95) < 2.0));
    }

    #[test]
    fn others_have_less_where_a_floor_is_short_and_all_where_nobody_asks() {
        let mut floors = floors(&[Floor { ios_per_sec: 10_000, mbytes_per_sec: 0 }]);
        // What came before the first interval is over says nothing: nobody knows when it began.
        floors.completed(0, 512, 16, None);
        floors.learn(Nanos(7_000 * MS), 40.0);
        assert_eq!((floors.level(), floors.got(0)), (f64::INFINITY, None));
        // 80 commands in each interval of 10 ms, after the last of which it has nothing for a while.
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
