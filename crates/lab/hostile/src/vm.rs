//! A victim whose virtqueue and log of requests in flight outlive the daemon: whatever was in flight completes with the
//! next one, and nothing else is excused.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use load::verify::Verifier;
use rustix::event::{EventfdFlags, eventfd};
use test_clients::virtio::{FREE_AT, IN, OUT, RING, Virtio};

use crate::victim::{DRAIN_LIMIT, Plan, RESTART_LIMIT, Shared, UNIT_BYTES};

/// Units that each slot has to itself.
const UNITS: u64 = 128;

/// What a slot has in flight.
#[derive(Debug, Clone, Copy)]
struct Flight {
    start: Instant,
    /// The unit's place on the disk.
    offset_bytes: u64,
    /// Of a write.
    generation: Option<u32>,
}

/// The driver of one virtqueue.
pub struct Vm {
    shared: Arc<Shared>,
    directory: PathBuf,
    virtio: Virtio,
    /// Never read: it polls.
    call: OwnedFd,
    epoch: u32,
    random: fastrand::Rng,
    verifier: Verifier,
    /// By slot.
    flights: Vec<Option<Flight>>,
}

impl Vm {
    /// Attaches for the first time.
    pub fn attach(plan: &Plan, shared: Arc<Shared>) -> Result<Self> {
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let virtio = Virtio::start_logged(&plan.directory, call.as_fd())?;
        let range_bytes = u64::from(plan.depth) * UNITS * UNIT_BYTES;
        Ok(Self {
            epoch: shared.life.epoch.load(Relaxed),
            shared,
            directory: plan.directory.clone(),
            virtio,
            call,
            random: fastrand::Rng::with_seed(plan.seed),
            verifier: Verifier::new(plan.seed, UNIT_BYTES, 0, range_bytes, false),
            flights: vec![None; plan.depth.into()],
        })
    }

    /// Works until it is told to stop; returns how many units were checked.
    pub fn run(mut self) -> u64 {
        let worked = self.work().and_then(|()| self.read_all());
        if let Err(error) = worked {
            self.shared.problem(format!("{error:#}"));
        }
        if let Some(first) = self.verifier.mismatches.first() {
            let bad = self.verifier.mismatch_count;
            self.shared.problem(format!("{bad} units are not what was written, the first: {first}"));
        }
        self.verifier.checked_units
    }

    fn work(&mut self) -> Result<()> {
        while !self.shared.stop.load(Relaxed) {
            if self.epoch != self.shared.life.epoch.load(Relaxed) {
                self.reconnect()?;
            }
            for slot in 0..self.flights.len() {
                if self.flights[slot].is_none() {
                    let unit = self.random.u64(..UNITS);
                    let is_write = self.random.bool();
                    self.send(slot, unit, is_write)?;
                }
            }
            self.virtio.kick()?;
            if self.reap()? == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }

    fn send(&mut self, slot: usize, unit: u64, is_write: bool) -> Result<()> {
        let offset_bytes = (slot as u64 * UNITS + unit) * UNIT_BYTES;
        let at = FREE_AT + slot as u64 * UNIT_BYTES;
        ensure!(self.verifier.claim(offset_bytes, UNIT_BYTES, is_write), "a slot's unit is in use");
        let generation = is_write.then(|| {
            let mut data = vec![0; UNIT_BYTES as usize];
            let generation = self.verifier.stamp(offset_bytes, &mut data);
            self.virtio.memory.write_all_at(&data, at).map(|()| generation)
        });
        let generation = generation.transpose()?;
        self.flights[slot] = Some(Flight { start: Instant::now(), offset_bytes, generation });
        let kind = if is_write { OUT } else { IN };
        Ok(self.virtio.request(slot as u16, kind, offset_bytes / 512, RING + at, UNIT_BYTES as u32)?)
    }

    /// Takes what completed; returns how many requests that were.
    fn reap(&mut self) -> Result<u32> {
        let mut count = 0;
        while let Some(head) = self.virtio.take_used()? {
            let slot = usize::from(head / 3);
            let Some(flight) = self.flights.get_mut(slot).and_then(Option::take) else {
                bail!("chain {head} came back, which was not in flight");
            };
            self.completed(slot, flight)?;
            count += 1;
        }
        self.flights.iter().flatten().for_each(|flight| self.shared.waited(flight.start, self.epoch));
        Ok(count)
    }

    fn completed(&mut self, slot: usize, flight: Flight) -> Result<()> {
        let Flight { start, offset_bytes, generation } = flight;
        self.shared.waited(start, self.epoch);
        self.shared.commands.fetch_add(1, Relaxed);
        let status = self.virtio.status(slot as u16)?;
        ensure!(status == 0, "a request failed with status {status}");
        if generation.is_some() {
            self.verifier.written(offset_bytes, UNIT_BYTES, generation);
        } else {
            let mut data = vec![0; UNIT_BYTES as usize];
            self.virtio.memory.read_exact_at(&mut data, FREE_AT + slot as u64 * UNIT_BYTES)?;
            self.verifier.was_read(offset_bytes, UNIT_BYTES, Some(&data));
        }
        Ok(())
    }

    /// To the next daemon. Nobody measures how long it took to be there.
    fn reconnect(&mut self) -> Result<()> {
        self.epoch = self.shared.life.epoch.load(Relaxed);
        let start = Instant::now();
        while let Err(error) = self.virtio.reconnect(&self.directory, self.call.as_fd()) {
            ensure!(start.elapsed() < RESTART_LIMIT, "after a restart: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.flights.iter_mut().flatten().for_each(|flight| flight.start = Instant::now());
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.flights.iter().any(Option::is_some) {
            if self.reap()? == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
            let left = self.flights.iter().flatten().count();
            ensure!(start.elapsed() < DRAIN_LIMIT, "{left} requests never completed");
        }
        Ok(())
    }

    /// Reads everything of which something is known.
    fn read_all(&mut self) -> Result<()> {
        self.drain()?;
        for unit in 0..UNITS {
            for slot in 0..self.flights.len() {
                self.send(slot, unit, false)?;
            }
            self.virtio.kick()?;
            self.drain()?;
        }
        Ok(())
    }
}
