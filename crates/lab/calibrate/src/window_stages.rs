//! How many commands the drive takes in, and from which queue it takes the next one.

use io_model::Backend;

use crate::clock::Clock;
use crate::estimate::Estimate;
use crate::rig::{Failure, Finish, Shot};
use crate::seen::Window;
use crate::session::{BLOCK_BYTES, Session, median};

/// Commands that the drive is filled with.
pub const BACKLOG: usize = 4096;

/// Length of the commands that fill a drive whose units have no addresses.
const FILL_BYTES: u64 = 32 << 10;

/// How long a filled drive may take to empty.
const SWEEP_NS: f64 = 1e9;

/// Whether a command beside this many others was delayed.
#[derive(Debug, Clone, Copy)]
struct Probe {
    others: usize,
    is_late: bool,
}

/// Marks the probe among the backlog's commands.
const PROBE: usize = usize::MAX;

impl<B: Backend, C: Clock> Session<'_, B, C> {
    pub(crate) fn window(&mut self) -> Result<Window, Failure> {
        let none = Window { commands: None, tried: 0 };
        let Some(basics) = self.seen.basics else { return Ok(none) };
        let unit_ns = basics.same_spacing.value.max(1.0);
        let backlog = BACKLOG.min(self.rig.backlog_max()).min((SWEEP_NS / unit_ns) as usize);
        if backlog < 16 {
            return Ok(none);
        }
        let units = self.seen.units.as_ref();
        let two = units.and_then(|units| Some((*units.addresses.first()?, *units.addresses.get(1)?)));
        match two {
            Some((busy, idle)) => self.window_by_sweep(backlog, busy, idle),
            None => self.window_by_latency(backlog),
        }
    }

    /// Fills the drive with commands for one unit, and sends one to another unit now and then, over a queue of its own:
    /// while the drive can't take it in, it waits for a command of the busy unit to end.
    fn window_by_sweep(&mut self, backlog: usize, busy: u64, idle: u64) -> Result<Window, Failure> {
        let mut probes = Vec::new();
        for round in 0..3 {
            self.sweep(backlog - round, busy, idle, &mut probes)?;
        }
        let tried = backlog as u32;
        let Some(rough) = border(&probes) else { return Ok(Window { commands: None, tried }) };
        // Again from a little above, at other phases: the probes of one sweep leave out every second or third number.
        let again = (rough as usize * 5 / 4 + 64).min(backlog);
        for round in 0..5 {
            self.sweep(again - round.min(again / 2), busy, idle, &mut probes)?;
        }
        probes.retain(|probe| probe.others <= again);
        let value = border(&probes).unwrap_or(rough);
        let of = |late: bool| probes.iter().filter(move |probe| probe.is_late == late).map(|probe| probe.others as f64);
        let low = of(false).filter(|others| *others < value).fold(0.0, f64::max) + 1.0;
        let high = of(true).filter(|others| *others >= value).fold(f64::MAX, f64::min);
        let commands = Estimate { value, low: low.min(value), high: high.max(value) };
        Ok(Window { commands: Some(commands), tried })
    }

    fn sweep(&mut self, backlog: usize, busy: u64, idle: u64, probes: &mut Vec<Probe>) -> Result<(), Failure> {
        let Some(basics) = self.seen.basics else { return Ok(()) };
        let late_ns = basics.read.value + self.rig.facts().own_ns.0 + basics.same_spacing.value / 2.0;
        let start_ns = self.rig.now_ns();
        for id in 0..backlog {
            let hwq = self.rig.backlog_hwq(id);
            self.rig.submit(Shot::read(busy, BLOCK_BYTES).on(hwq), id, start_ns);
        }
        let (mut left, mut finished, mut sent): (_, Vec<Finish>, Option<(usize, u64)>) = (backlog, vec![], None);
        while left > 0 {
            if let Err(failure) = self.rig.finish_some(&mut finished) {
                self.rig.drain()?;
                return Err(failure);
            }
            let before = left;
            for finish in finished.drain(..) {
                if finish.id != PROBE {
                    left -= 1;
                } else if let Some((others, at_ns)) = sent.take() {
                    let is_late = finish.at_ns.saturating_sub(at_ns) as f64 > late_ns;
                    probes.push(Probe { others, is_late });
                }
            }
            // At the start the drive has not taken in all that it can. Right after the busy unit ended one, because
            // then it is longest until the next: a probe that waits is clearly late.
            if sent.is_none() && left < before && left < backlog - backlog / 8 && left > 0 {
                let now_ns = self.rig.now_ns();
                self.rig.submit(Shot::read(idle, BLOCK_BYTES), PROBE, now_ns);
                sent = Some((left, now_ns));
            }
        }
        self.rig.drain()
    }

    /// Keeps the drive full and sends one command at a time over a queue of its own. What is inside is its rate times
    /// the time that a command spends there (Little's law). Large commands, or the controller would be what they wait
    /// for, outside.
    fn window_by_latency(&mut self, backlog: usize) -> Result<Window, Failure> {
        let (wanted, mut probes) = (self.effort.rounds, vec![]);
        let (mut done, mut since_ns) = (0_u64, None);
        let mut finished = vec![];
        let start_ns = self.rig.now_ns();
        for id in 0..backlog {
            let shot = Shot::read(self.place(BLOCK_BYTES, FILL_BYTES), FILL_BYTES).on(self.rig.backlog_hwq(id));
            self.rig.submit(shot, id, start_ns);
        }
        let (mut sent_ns, mut warm) = (None, 2 * backlog as u64);
        let mut now_ns = start_ns;
        while probes.len() < wanted && now_ns - start_ns < 4 * SWEEP_NS as u64 {
            if let Err(failure) = self.rig.finish_some(&mut finished) {
                self.rig.drain()?;
                return Err(failure);
            }
            now_ns = self.rig.now_ns();
            for finish in std::mem::take(&mut finished) {
                if finish.id == PROBE {
                    probes.extend(sent_ns.take().map(|at_ns: u64| finish.at_ns.saturating_sub(at_ns) as f64));
                    continue;
                }
                let hwq = self.rig.backlog_hwq(finish.id);
                let shot = Shot::read(self.place(BLOCK_BYTES, FILL_BYTES), FILL_BYTES).on(hwq);
                self.rig.submit(shot, finish.id, now_ns);
                warm = warm.saturating_sub(1);
                if warm == 0 {
                    since_ns.get_or_insert(finish.at_ns);
                    done += 1;
                }
            }
            if warm == 0 && sent_ns.is_none() {
                let shot = Shot::read(self.place(BLOCK_BYTES, FILL_BYTES), FILL_BYTES);
                self.rig.submit(shot, PROBE, now_ns);
                sent_ns = Some(now_ns);
            }
        }
        self.rig.drain()?;
        let span_ns = now_ns.saturating_sub(since_ns.unwrap_or(now_ns)).max(1) as f64;
        let inside = median(probes).times(done as f64 / span_ns);
        let is_full = inside.value < 0.8 * backlog as f64 && inside.value >= 1.0;
        Ok(Window { commands: is_full.then_some(inside), tried: backlog as u32 })
    }

    /// Two queues with as much to do; from which of them the drive takes how many in a row shows in the order in which
    /// one unit finishes them.
    pub(crate) fn turns(&mut self) -> Result<Option<u32>, Failure> {
        let units = self.seen.units.as_ref();
        let Some((busy, idle)) = units.and_then(|units| Some((*units.addresses.first()?, *units.addresses.get(1)?)))
        else {
            return Ok(None);
        };
        // One queue that fills the drive, and two that take turns.
        if self.rig.hwqs() < 3 {
            return Ok(None);
        }
        let full =
            self.seen.window.and_then(|window| window.commands).map_or(0, |commands| commands.value as usize + 8);
        let filler = full.min(self.rig.backlog_max() / 2);
        let each = 128;
        let mut shots: Vec<Shot> =
            (0..filler).map(|id| Shot::read(busy, BLOCK_BYTES).on(self.rig.backlog_hwq(id))).collect();
        let two = [self.rig.backlog_hwq(filler) + 1, 0];
        for hwq in two {
            shots.extend((0..each).map(|_| Shot::read(idle, BLOCK_BYTES).on(hwq)));
        }
        let finished = self.rig.burst(&shots)?;
        let mut order: Vec<(u64, usize)> =
            finished.iter().enumerate().skip(filler).map(|(index, at_ns)| (*at_ns, (index - filler) / each)).collect();
        order.sort_by_key(|(at_ns, _)| *at_ns);
        let queues: Vec<usize> = order.into_iter().map(|(_, queue)| queue).collect();
        let mut runs: Vec<usize> = queues.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
        runs.sort_unstable();
        let typical = runs.get(runs.len() / 2).copied().unwrap_or(each);
        // Whole queues one after another: nothing had to wait for its turn.
        Ok((typical <= each / 4).then_some(typical as u32))
    }
}

/// The least number of others with which a probe is late, so that as few probes as possible contradict. `None`: none
/// is late.
fn border(probes: &[Probe]) -> Option<f64> {
    let mut probes = probes.to_vec();
    probes.sort_by_key(|probe| probe.others);
    let late = probes.iter().filter(|probe| probe.is_late).count();
    // From "all should be late" upwards: each probe that is on time and below the border is right, each late one wrong.
    let mut wrong = probes.len() - late;
    let (mut fewest, mut after) = (wrong, 0);
    for (index, probe) in probes.iter().enumerate() {
        wrong = if probe.is_late { wrong + 1 } else { wrong - 1 };
        if wrong < fewest {
            (fewest, after) = (wrong, index + 1);
        }
    }
    let (on_time, late) = (probes.get(after.checked_sub(1)?), probes.get(after)?);
    Some(((on_time?.others + 1 + late.others) as f64 / 2.0).round())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_stands_a_few_wrong_probes() {
        let probe = |others, is_late| Probe { others, is_late };
        let clean: Vec<Probe> = (0..500).map(|others| probe(others, others >= 256)).collect();
        assert_eq!(border(&clean), Some(256.0));
        let noisy: Vec<Probe> = (0..500).map(|n| probe(n, (n >= 256) != (n % 17 == 0))).collect();
        assert!((255.0..=257.0).contains(&border(&noisy).expect("late ones")), "{:?}", border(&noisy));
        assert_eq!(border(&(0..500).map(|n| probe(n, false)).collect::<Vec<_>>()), None);
        assert_eq!(border(&[]), None);
    }
}
