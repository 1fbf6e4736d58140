//! The drive's part: fetching, controller, units or dies, links, the write buffer.

use ssd_model::Writes;

use super::work::{Service, Work};
use super::{
    CONTROLLER, CONTROLLER_FULL, DRAIN, Flow, LINK_READ, LINK_WRITE, Level, Model, READ, STATIONS, UNITS, WRITE,
};
use crate::figures::transfer_ns;

impl Model<'_> {
    /// What newcomers wait at each station.
    pub(super) fn reckon_drive(&mut self) {
        let controller_ns = self.profile.controller_ns as f64;
        let crowd: f64 = self.flows.iter().map(|flow| flow.x * flow.slot_ns).sum();
        let buffer_variance = self.buffer_variance();
        for at in 0..self.flows.len() {
            let flow = &self.flows[at];
            let pool = &self.pools[flow.pool];
            let capped = pool.level != Level::ALL;
            let waits = std::array::from_fn(|s| {
                let own = flow.own[s] / flow.population;
                let own = if capped { own.max(self.backlog[s] / crowd.max(1.0)) } else { own };
                (self.backlog[s] - own).max(0.0)
            });
            let sent = pool.sends_rate * pool.busy * pool.pass_ns;
            let burst = (sent / 2.0).min(f64::from(self.host.poller_batch) / 2.0);
            let flow = &mut self.flows[at];
            flow.waits = waits;
            flow.waits[CONTROLLER] += burst * controller_ns;
            for kind in [READ, WRITE] {
                let work = &flow.works[kind];
                let link_at = if kind == READ { LINK_READ } else { LINK_WRITE };
                let link = flow.waits[link_at];
                let mut wait = flow.waits[CONTROLLER];
                let mut service = controller_ns + work.delay_ns;
                let mut variance = work.link.variance();
                for (wait, s) in [(wait, CONTROLLER), (link, link_at)] {
                    // A long queue of a closed load is always about as long.
                    variance += spread(wait, self.busy[s]).min(4.0 * wait * self.service_ns[s]);
                }
                if work.pieces > 0.0 {
                    let fan =
                        Fan::new(work, self.channel_ns, self.parallel, flow.waits[UNITS], self.busy[UNITS], self.alike);
                    service += fan.service_ns;
                    wait += fan.wait_ns;
                    let left = (link + work.link.mean_ns - work.lead_ns - fan.spread_ns).max(0.0);
                    wait += left.min(link);
                    service += (left - link).max(0.0);
                    // As in an M/G/1 queue. Of few units none has more than its part of what closed loads have.
                    let few = (self.parallel - 1.0) / (self.parallel + 1.0);
                    let wait = flow.waits[UNITS];
                    variance += wait * (wait * few + self.uneven_ns) + work.piece.variance();
                } else {
                    wait += link + self.buffer_ns;
                    service += work.link.mean_ns;
                    variance += buffer_variance;
                }
                flow.inside_ns[kind] = wait + service;
                flow.inside_waits[kind] = wait;
                flow.inside_variance[kind] = variance;
            }
        }
    }

    /// How long commands wait in the drive's queues for their turn, when its window is full or its controller busy.
    /// Every queue has its turn in every round, and is first in, first out.
    pub(super) fn take_turns(&mut self) {
        let window = f64::from(self.profile.window.max(1));
        let drive =
            |flow: &Flow| flow.works[READ].part * flow.inside_ns[READ] + flow.works[WRITE].part * flow.inside_ns[WRITE];
        let inside: f64 = self.flows.iter().map(|flow| flow.x * drive(flow)).sum();
        let full = (inside / window).max(self.busy[CONTROLLER] / CONTROLLER_FULL);
        let least = self.profile.controller_ns.max(100) as f64;
        let round_ns = self.round_ns;
        self.round_ns = (self.round_ns * (0.12 * (full - 1.0).clamp(-1.0, 1.0)).exp()).clamp(least, 1e10);
        self.round_moved = (self.round_ns / round_ns - 1.0).abs();
        if self.round_ns <= least * 1.01 {
            self.flows.iter_mut().for_each(|flow| flow.window_ns *= 0.5);
            self.hwqs.iter_mut().for_each(|hwq| hwq.wait_ns *= 0.5);
            return;
        }
        let free = |flow: &Flow| flow.cycle_ns() - flow.window_ns + flow.policy_ns;
        for hwq in &mut self.hwqs {
            let (mut rate, mut slope) = (0.0, 0.0);
            for &(at, part) in &hwq.users {
                let flow = &self.flows[at];
                let cycle = free(flow) + hwq.wait_ns;
                let x = part * flow.wants(cycle);
                rate += x;
                slope += x / cycle;
            }
            let too_many = rate * self.round_ns - 1.0;
            if slope > 0.0 {
                hwq.wait_ns += 0.7 * too_many.clamp(-0.9, 2.0) * rate / slope;
            }
            hwq.wait_ns = hwq.wait_ns.max(self.round_ns / 2.0);
        }
        for flow in &mut self.flows {
            flow.window_sum = (0.0, 0.0);
        }
        for hwq in &self.hwqs {
            for &(at, part) in &hwq.users {
                let flow = &mut self.flows[at];
                let x = part * flow.wants(free(flow) + hwq.wait_ns);
                flow.window_sum.0 += x * hwq.wait_ns;
                flow.window_sum.1 += x;
            }
        }
        for flow in &mut self.flows {
            let (sum, x) = flow.window_sum;
            let wait = if x > 0.0 { sum / x } else { 0.0 };
            flow.window_ns = 0.5 * (flow.window_ns + wait);
        }
    }

    /// What newcomers find at the stations now.
    pub(super) fn reckon_backlog(&mut self) {
        self.reckon_pages();
        let controller = Service::fixed(self.profile.controller_ns as f64);
        let channel_ns = self.channel_ns;
        let mut pieces = (0.0, 0.0);
        let mut moments = Moments::default();
        self.busy = [0.0; STATIONS];
        let mut rates = [0.0; STATIONS];
        for flow in &mut self.flows {
            flow.own = [0.0; STATIONS];
            let mut queue = |s: usize, visits: f64, wait: f64, service: Service| {
                flow.own[s] += flow.x * visits * (wait * service.mean_ns + service.square / 2.0);
                self.busy[s] += flow.x * visits * service.mean_ns;
                rates[s] += flow.x * visits;
            };
            for (kind, work) in flow.works.iter().enumerate() {
                queue(CONTROLLER, work.part, flow.waits[CONTROLLER], controller);
                let link = if kind == READ { LINK_READ } else { LINK_WRITE };
                queue(link, work.part, flow.waits[link], work.link);
                if work.pieces > 0.0 {
                    let visits = work.part * work.pieces / self.parallel;
                    let piece = work.piece.after(channel_ns);
                    queue(UNITS, visits, flow.waits[UNITS], piece);
                    let load = flow.x * visits * piece.mean_ns;
                    moments.add(flow.x * visits, &piece);
                    pieces.0 += load;
                    pieces.1 += load * ((work.pieces - 1.0) / (self.parallel - 1.0).max(1.0)).min(1.0);
                }
            }
        }
        self.service_ns = std::array::from_fn(|s| if rates[s] > 0.0 { self.busy[s] / rates[s] } else { 0.0 });
        self.alike = if pieces.0 > 0.0 { pieces.1 / pieces.0 } else { 0.0 };
        for s in 0..STATIONS {
            self.backlog[s] = self.flows.iter().map(|flow| flow.own[s]).sum();
        }
        if let Writes::Programmed { nand, .. } = self.profile.writes {
            let visits = self.pages_rate / self.parallel;
            self.busy[UNITS] += visits * self.page.mean_ns;
            // Pages go to the dies in turn: a die has a second one only when there are more than dies.
            let queued = (visits * (self.page_wait_ns + self.page.mean_ns) - 1.0).max(0.0);
            let wait = self.backlog[UNITS] + queued * self.page.mean_ns;
            self.page_wait_ns = 0.5 * (self.page_wait_ns + wait);
            if nand.reads_wait_for_programs {
                self.backlog[UNITS] += visits * (wait * self.page.mean_ns + self.page.square / 2.0);
                moments.add(visits, &self.page);
            }
        }
        self.uneven_ns = moments.uneven_ns();
        self.move_buffer_wait();
    }

    /// Flash: how many pages are programmed, and what that takes.
    fn reckon_pages(&mut self) {
        let Writes::Programmed { nand, .. } = self.profile.writes else { return };
        let transfer = transfer_ns(nand.channel_mb_s, nand.page_bytes);
        let bytes: f64 = self.flows.iter().map(|f| f.x * f.works[WRITE].part * f.works[WRITE].room_bytes).sum();
        self.pages_rate = bytes / nand.page_bytes as f64;
        // The other dies of the channel.
        let others = (self.parallel / f64::from(nand.channels.max(1)) - 1.0).max(0.0) / self.parallel;
        let mut wait = self.pages_rate * others * transfer * transfer / 2.0;
        for flow in &self.flows {
            for work in &flow.works {
                wait += flow.x * work.part * work.pieces * others * work.channel.square / 2.0;
            }
        }
        self.channel_ns = wait;
        let program = nand.program_ns as f64 + transfer + wait;
        let amplification = self.profile.write_amplification();
        let sense = self.profile.read_ns as f64
            + (nand.page_bytes.div_ceil(4096).max(1) - 1) as f64 * self.profile.further_ns as f64;
        let copies = (amplification - 1.0) * (program + sense + transfer);
        let erases = if amplification > 1.0 {
            amplification * nand.erase_ns as f64 / f64::from(nand.pages_per_block.max(1))
        } else {
            0.0
        };
        self.page = Service::fixed(program).after(copies + erases);
    }

    /// A short mean wait for room is a long one of few writes, those that find the buffer full.
    fn buffer_variance(&self) -> f64 {
        let full_ns = self.room_ns * self.room_ns / (self.room_ns + self.buffer_ns).max(1.0);
        2.0 * self.buffer_ns * full_ns + (0.1 * self.buffer_ns).powi(2)
    }

    /// How long the buffer takes to make room for a write, where large ones count for their size.
    fn room_ns(&self) -> f64 {
        let (mut sum, mut of) = (0.0, 0.0);
        for flow in &self.flows {
            let work = &flow.works[WRITE];
            let service = match self.profile.writes {
                Writes::Programmed { nand, .. } => {
                    let pages = work.room_bytes / nand.page_bytes as f64;
                    Service::fixed(pages * self.page.mean_ns / self.parallel)
                }
                _ => work.drain,
            };
            sum += flow.x * work.part * service.square;
            of += flow.x * work.part * service.mean_ns;
        }
        if of > 0.0 { sum / of } else { 0.0 }
    }

    /// Lets writes wait for room in the buffer just so long that it takes no more than it gives on.
    fn move_buffer_wait(&mut self) {
        let full = match self.profile.writes {
            Writes::InPlace { .. } => return,
            Writes::Buffered { .. } => {
                self.flows.iter().map(|flow| flow.x * flow.works[WRITE].part * flow.works[WRITE].drain.mean_ns).sum()
            }
            Writes::Programmed { buffer_bytes, nand, .. } => {
                let pages = (buffer_bytes / nand.page_bytes.max(1)).max(1) as f64;
                self.pages_rate * (self.page_wait_ns + self.page.mean_ns) / pages
            }
        };
        self.busy[DRAIN] = full;
        self.room_ns = self.room_ns();
        // How much longer a writer's round gets for each ns of waiting.
        let (mut rounds, mut writes) = (0.0, 0.0);
        for flow in &self.flows {
            let work = &flow.works[WRITE];
            let takes = flow.x * work.part * work.room_bytes;
            let held = self.pools[flow.pool].level != Level::ALL;
            let round = if held { flow.slot_ns } else { flow.cycle_ns() };
            rounds += takes * round / work.part.max(0.01);
            writes += takes;
        }
        if writes > 0.0 {
            let step = 0.15 * (full - 1.0).clamp(-0.5, 1.0) * rounds / writes;
            self.buffer_ns = (self.buffer_ns + step).max(0.0);
        }
    }
}

/// Variance of a wait that only the part `busy` of all commands has, exponentially distributed.
fn spread(wait: f64, busy: f64) -> f64 {
    let busy = busy.clamp(0.1, 1.0);
    wait * wait * (2.0 - busy) / busy
}

/// Sums of the second and third moments of times of service.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    square: f64,
    cube: f64,
}

impl Moments {
    /// Adds visits at this rate per ns. The third moment is estimated from the others: exact for equal times.
    fn add(&mut self, rate: f64, service: &Service) {
        self.square += rate * service.square;
        self.cube += rate * service.square * service.square / service.mean_ns.max(1.0);
    }

    /// The variance of a wait is the square of its mean and its mean times this (Takács, for M/G/1).
    fn uneven_ns(&self) -> f64 {
        if self.square > 0.0 { self.cube / self.square * 2.0 / 3.0 } else { 0.0 }
    }
}

/// How a command's pieces end.
struct Fan {
    service_ns: f64,
    wait_ns: f64,
    /// Between the first end and the last.
    spread_ns: f64,
}

impl Fan {
    fn new(work: &Work, channel_ns: f64, parallel: f64, wait: f64, busy: f64, alike: f64) -> Self {
        let side_by_side = work.pieces.min(parallel).max(1.0);
        let service = (work.piece.mean_ns + channel_ns) * work.pieces / side_by_side;
        let busy = busy.clamp(1e-9, 1.0);
        let free = 1.0 + (side_by_side - 1.0) * (1.0 - alike);
        let theta = wait / busy;
        let whole = free.floor();
        let harmonic =
            |count: f64| (1..=count as u32).map(|j| (1.0 - (1.0 - busy).powi(j as i32)) / f64::from(j)).sum::<f64>();
        let low = harmonic(whole);
        let high = low + (1.0 - (1.0 - busy).powi(whole as i32 + 1)) / (whole + 1.0);
        let slowest = theta * (low + (free - whole) * (high - low));
        let quickest = theta * busy.powf(free) / free;
        Self { service_ns: service, wait_ns: slowest, spread_ns: (slowest - quickest).max(0.0) }
    }
}
