//! A profile as a back end in virtual time: what it predicts for an experiment is that experiment done on it.

use std::sync::atomic::AtomicBool;

use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op};
use ssd_model::{Drive, Kind, Profile, Request};

use crate::clock::VirtualClock;
use crate::rig::{DEPTH, Facts, HWQS, NoMemory, Rig};
use crate::seen::Seen;
use crate::session::{Effort, Session};

/// The drive model, without content.
pub(crate) struct Modelled {
    drive: Drive,
    size_bytes: u64,
    in_flight: Vec<Option<Io>>,
    refused: Vec<(HwqId, Done)>,
}

impl Modelled {
    fn new(profile: Profile, size_bytes: u64) -> Self {
        Self { drive: Drive::new(profile, HWQS), size_bytes, in_flight: Vec::new(), refused: Vec::new() }
    }
}

impl Backend for Modelled {
    fn hwqs(&self) -> u16 {
        HWQS
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        if let Err(error) = io.check(self.size_bytes) {
            return self.refused.push((hwq, io.done(Err(error))));
        }
        let kind = match io.command.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush | Op::WriteZeroes | Op::Discard => Kind::Control,
        };
        let tag = io.tag;
        let request = Request { tag, kind, offset_bytes: io.command.offset_bytes, len_bytes: io.command.len_bytes };
        if self.drive.submit(now.0, hwq.0, request).is_err() {
            return self.refused.push((hwq, io.done(Err(DeviceError::Gone))));
        }
        let at = tag as usize;
        if at >= self.in_flight.len() {
            self.in_flight.resize_with(at + 1, || None);
        }
        self.in_flight[at] = Some(io);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.refused.drain(..).for_each(|(hwq, refused)| done(hwq, refused));
        let in_flight = &mut self.in_flight;
        self.drive.poll(now.0, &mut |hwq, tag, _| {
            if let Some(io) = in_flight.get_mut(tag as usize).and_then(Option::take) {
                done(HwqId(hwq), io.done(Ok(())));
            }
        });
    }

    fn next_event(&self) -> Option<Nanos> {
        if self.refused.is_empty() { self.drive.next_event().map(Nanos) } else { Some(Nanos(0)) }
    }
}

/// Nobody interrupts virtual time.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Takes these measurements on the drive that `profile` describes, with what is known about the real one's units.
pub(crate) fn session(
    profile: &Profile,
    facts: Facts,
    effort: Effort,
    seen: &Seen,
) -> Result<Session<'static, Modelled, VirtualClock>, NoMemory> {
    let facts = Facts { own_ns: (0.0, 0.0), ..facts };
    let rig = Rig::new(Modelled::new(profile.clone(), facts.size_bytes), VirtualClock::default(), facts, &NEVER)?;
    Ok(Session::new(rig, effort, seen.clone()))
}
