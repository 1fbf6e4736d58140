//! Streams of reads straight into a drive's queues: what arbitration does, with no host in between.

use arbitration::Arbitration;
use fastrand::Rng;
use io_model::{Nanos, QueuePriority};
use ssd_model::{Drive, Kind, Profile, Request};

/// How a stream asks.
#[derive(Debug, Clone, Copy)]
pub enum Demand {
    /// It keeps this many reads in flight.
    Depth(u32),
    /// It asks so often, whatever comes back, at even intervals.
    PerSecond(f64),
}

/// One stream, with a queue of its own.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Its queue's class.
    pub class: QueuePriority,
    /// Sizes of its reads in bytes, one after another.
    pub sizes_bytes: &'static [u32],
    /// How it asks.
    pub demand: Demand,
}

/// What a stream got.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Reads per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_s: f64,
    /// Mean latency, µs.
    pub mean_us: f64,
}

/// Part of the time that is not measured: the queues fill.
const WARMUP_DIVISOR: u64 = 10;

/// Addresses lie in the first 64 GiB.
const SPACE_BYTES: u64 = 64 << 30;

/// Plays streams for `span` on a drive with that arbitration.
pub fn play(
    profile: &Profile,
    arbitration: Arbitration,
    streams: &[Stream],
    span: Nanos,
    seed: u64,
) -> Result<Vec<Seen>, String> {
    let queues = u16::try_from(streams.len()).map_err(|_| "too many streams".to_owned())?;
    let mut drive = Drive::new(profile.clone(), queues);
    drive.set_arbitration(arbitration);
    for (hwq, stream) in (0..queues).zip(streams) {
        drive.set_class(hwq, stream.class).map_err(|error| error.to_string())?;
    }
    let mut play = Play {
        drive,
        streams,
        tallies: vec![Tally::default(); streams.len()],
        reads: Vec::new(),
        free: Vec::new(),
        finished: Vec::new(),
        rng: Rng::with_seed(seed),
        from_ns: span.0 / WARMUP_DIVISOR,
        until_ns: span.0,
    };
    for (at, stream) in streams.iter().enumerate() {
        if let Demand::Depth(depth) = stream.demand {
            (0..depth).try_for_each(|_| play.submit(at, 0))?;
        }
    }
    while let Some(now_ns) = play.next_ns().filter(|now_ns| *now_ns < span.0) {
        play.step(now_ns)?;
    }
    Ok(play.seen())
}

/// A read with the drive.
#[derive(Debug, Clone, Copy)]
struct Read {
    stream: usize,
    since_ns: u64,
    len_bytes: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    asked: u64,
    reads: u64,
    bytes: u64,
    latency_ns: u64,
}

struct Play<'a> {
    drive: Drive,
    streams: &'a [Stream],
    tallies: Vec<Tally>,
    reads: Vec<Read>,
    free: Vec<u32>,
    finished: Vec<(u32, u64)>,
    rng: Rng,
    from_ns: u64,
    until_ns: u64,
}

impl Play<'_> {
    /// When the next read of an open stream is due.
    fn due_ns(&self, stream: usize) -> Option<u64> {
        match self.streams[stream].demand {
            Demand::PerSecond(rate) if rate > 0.0 => Some((self.tallies[stream].asked as f64 / rate * 1e9) as u64),
            _ => None,
        }
    }

    fn next_ns(&self) -> Option<u64> {
        (0..self.streams.len()).filter_map(|stream| self.due_ns(stream)).chain(self.drive.next_event()).min()
    }

    fn step(&mut self, now_ns: u64) -> Result<(), String> {
        for stream in 0..self.streams.len() {
            while self.due_ns(stream).is_some_and(|due_ns| due_ns <= now_ns) {
                self.submit(stream, now_ns)?;
            }
        }
        let mut finished = std::mem::take(&mut self.finished);
        self.drive.poll(now_ns, &mut |_, tag, at_ns| finished.push((tag, at_ns)));
        for (tag, at_ns) in finished.drain(..) {
            self.end(tag, at_ns, now_ns)?;
        }
        self.finished = finished;
        Ok(())
    }

    fn submit(&mut self, stream: usize, now_ns: u64) -> Result<(), String> {
        let (tally, sizes) = (&mut self.tallies[stream], self.streams[stream].sizes_bytes);
        let len_bytes = sizes[(tally.asked % sizes.len() as u64) as usize];
        tally.asked += 1;
        let read = Read { stream, since_ns: now_ns, len_bytes };
        let tag = self.free.pop().unwrap_or(self.reads.len() as u32);
        match self.reads.get_mut(tag as usize) {
            Some(place) => *place = read,
            None => self.reads.push(read),
        }
        let len_bytes = u64::from(len_bytes);
        let offset_bytes = self.rng.u64(0..SPACE_BYTES / len_bytes) * len_bytes;
        let request = Request { tag, kind: Kind::Read, offset_bytes, len_bytes };
        self.drive.submit(now_ns, stream as u16, request).map_err(|error| error.to_string())
    }

    fn end(&mut self, tag: u32, at_ns: u64, now_ns: u64) -> Result<(), String> {
        let Read { stream, since_ns, len_bytes } = self.reads[tag as usize];
        self.free.push(tag);
        if at_ns >= self.from_ns {
            let tally = &mut self.tallies[stream];
            tally.reads += 1;
            tally.bytes += u64::from(len_bytes);
            tally.latency_ns += at_ns.saturating_sub(since_ns);
        }
        match self.streams[stream].demand {
            Demand::Depth(_) => self.submit(stream, now_ns),
            Demand::PerSecond(_) => Ok(()),
        }
    }

    fn seen(&self) -> Vec<Seen> {
        let seconds = (self.until_ns - self.from_ns) as f64 / 1e9;
        let one = |tally: &Tally| Seen {
            iops: tally.reads as f64 / seconds,
            bytes_s: tally.bytes as f64 / seconds,
            mean_us: tally.latency_ns as f64 / 1e3 / tally.reads as f64,
        };
        self.tallies.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(demand: Demand) -> Stream {
        Stream { class: QueuePriority::High, sizes_bytes: &[4096], demand }
    }

    fn p3700() -> Profile {
        Profile::by_name("p3700").unwrap()
    }

    #[test]
    fn a_stream_gets_what_it_asks_for_and_little_law_holds() {
        let rr = Arbitration::RoundRobin { burst: 1 };
        let streams = [stream(Demand::PerSecond(20_000.0)), stream(Demand::Depth(16))];
        let seen = play(&p3700(), rr, &streams, Nanos::from_millis(100), 1).unwrap();
        assert!((seen[0].iops - 20_000.0).abs() < 100.0, "{seen:?}");
        assert!((seen[1].iops * seen[1].mean_us / 1e6 - 16.0).abs() < 0.2, "{seen:?}");
        assert!((seen[1].bytes_s - seen[1].iops * 4096.0).abs() < 1.0);
    }

    #[test]
    fn one_seed_one_result() {
        let rr = Arbitration::RoundRobin { burst: 1 };
        let run =
            |seed| play(&p3700(), rr, &[stream(Demand::Depth(8))], Nanos::from_millis(20), seed).unwrap()[0].mean_us;
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}
