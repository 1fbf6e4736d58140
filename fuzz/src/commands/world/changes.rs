//! Namespaces that come, grow, go and are formatted.

use io_model::{Command, Op};
use nvme_controller::{FormatRecord, FormatStep, NamespaceError};
use nvme_spec::{NSID_ALL, Sqe};

use super::World;
use crate::commands::meaning::Part;
use crate::commands::model::Verdict;
use crate::commands::namespaces::{self, Formatting, NSIDS, Namespace};

impl World {
    /// The first is seldom chosen: most commands go there.
    pub(super) fn change_namespace(&mut self, which: u8, choice: u8) {
        let nsid = NSIDS[usize::from(which % 8).div_ceil(4)];
        match self.namespaces.get(&nsid) {
            Some(namespace) if choice < 128 => {
                let size_bytes = (namespace.size_bytes + u64::from(choice % 4) * 4096).min(namespace.room_bytes);
                self.grow(nsid, size_bytes);
            }
            Some(_) => self.detach(nsid),
            None => self.attach(nsid, choice),
        }
    }

    fn grow(&mut self, nsid: u32, size_bytes: u64) {
        if let Some(namespace) = self.namespaces.get_mut(&nsid) {
            namespace.size_bytes = size_bytes;
        }
        assert_eq!(self.call(|controller| controller.grow(nsid, size_bytes)), Ok(()));
        let shrunk = self.call(|controller| controller.grow(nsid, size_bytes - 4096));
        assert!(matches!(shrunk, Err(NamespaceError::Shrinks { .. })), "{shrunk:?}");
    }

    fn attach(&mut self, nsid: u32, choice: u8) {
        let size_bytes = (u64::from(choice % 16) + 8) * 4096;
        let config = namespaces::config(nsid, size_bytes, choice & 16 != 0, choice >= 224);
        let is_detached = self.controller.is_detached(nsid);
        if is_detached {
            self.namespaces.insert(nsid, Namespace::new(nsid, &config));
        }
        let attached = self.call(|controller| controller.attach(nsid, config));
        let expected = if is_detached { Ok(()) } else { Err(NamespaceError::Leaving(nsid)) };
        assert_eq!(attached, expected);
    }

    /// What was handed out goes on; nothing else does.
    fn detach(&mut self, nsid: u32) {
        self.end_format(nsid, false);
        let Some(Namespace { base_bytes, room_bytes, .. }) = self.namespaces.remove(&nsid) else { return };
        let place = base_bytes..base_bytes + room_bytes;
        let its = |part: &Part| matches!(part, Part::Discard { offset, .. } if place.contains(offset));
        let streams = self.model.sqs.values_mut();
        let streams = streams.filter_map(|sq| sq.stream.take_if(|(_, parts)| parts.front().is_some_and(its)));
        for (serial, parts) in streams.collect::<Vec<_>>() {
            parts.iter().for_each(|_| self.model.part_done(serial, Verdict::Failure));
        }
        assert_eq!(self.call(|controller| controller.detach(nsid)), Ok(()));
        let again = self.call(|controller| controller.detach(nsid));
        assert_eq!(again, Err(NamespaceError::Absent(nsid)));
    }

    /// A namespace counts as detached only when nothing of it is in flight, and then at the latest when nothing is.
    pub(super) fn check_detached(&self) {
        for nsid in NSIDS {
            let its = |command: &Command| command.op != Op::Flush && u32::from(command.disk) + 1 == nsid;
            let in_use = self.flights.iter().any(|flight| its(&flight.command));
            let is_detached = self.controller.is_detached(nsid);
            assert!(!is_detached || !in_use, "namespace {nsid} counts as detached, and is in use");
            let lingers = !is_detached && !self.namespaces.contains_key(&nsid) && self.controller.is_idle();
            assert!(!lingers, "namespace {nsid} was detached, and nothing is in flight");
        }
    }

    /// A Format that was accepted.
    pub(super) fn begin_formats(&mut self, sqe: &Sqe, serial: u64) {
        let lba_shift = if sqe.cdw10 & 0xf == 0 { 9 } else { 12 };
        let mut any = false;
        for (_, namespace) in self.namespaces.iter_mut().filter(|(nsid, _)| [**nsid, NSID_ALL].contains(&sqe.nsid)) {
            assert!(!namespace.read_only && namespace.formatting.is_none(), "{sqe:?} was accepted");
            namespace.formatting = Some(Formatting { serial, lba_shift, done_bytes: 0, failed: false });
            any = true;
        }
        assert!(any || sqe.nsid == NSID_ALL, "{sqe:?} was accepted");
        if !any {
            self.model.due(serial, Verdict::Success);
        }
    }

    /// The wiring recorded how far a Format is.
    pub(super) fn recorded(&mut self, record: FormatRecord) {
        let Some(namespace) = self.namespaces.get_mut(&record.nsid) else {
            panic!("{record:?} is of a namespace that is not there");
        };
        namespace.cut_short = record.step == FormatStep::Begins;
        let ended = namespace.cut_short || record.lba_bytes.trailing_zeros() == namespace.lba_shift;
        assert!(ended, "formatted to other blocks than it says");
    }

    /// What a step of a Format is, and of which command.
    pub(super) fn next_erase(&mut self, command: &Command) -> Option<(Part, u64)> {
        let namespace = self.namespaces.get_mut(&(u32::from(command.disk) + 1))?;
        let formatting = namespace.formatting.as_mut()?;
        let offset = namespace.base_bytes + formatting.done_bytes;
        formatting.done_bytes += command.len_bytes;
        assert!(formatting.done_bytes <= namespace.size_bytes, "a Format goes on past the end");
        Some((Part::Erase { offset, len_bytes: command.len_bytes }, formatting.serial))
    }

    pub(super) fn format_step_done(&mut self, nsid: u32, serial: u64, verdict: Verdict) {
        let Some(namespace) = self.namespaces.get_mut(&nsid) else { return };
        let Some(formatting) = namespace.formatting.as_ref().filter(|formatting| formatting.serial == serial) else {
            return;
        };
        if verdict != Verdict::Success {
            self.end_format(nsid, false);
        } else if formatting.done_bytes == namespace.size_bytes {
            namespace.lba_shift = formatting.lba_shift;
            self.end_format(nsid, true);
        }
    }

    /// The command ends with the last namespace that it formats, and fails with any.
    fn end_format(&mut self, nsid: u32, succeeded: bool) {
        let formatting = self.namespaces.get_mut(&nsid).and_then(|namespace| namespace.formatting.take());
        let Some(Formatting { serial, failed, .. }) = formatting else { return };
        let failed = failed || !succeeded;
        let mut others = self.namespaces.values_mut().filter_map(|namespace| namespace.formatting.as_mut());
        match others.find(|other| other.serial == serial) {
            Some(other) => other.failed |= failed,
            None => self.model.due(serial, if failed { Verdict::Failure } else { Verdict::Success }),
        }
    }
}
