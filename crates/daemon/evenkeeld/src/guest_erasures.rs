//! What guests erase, by Format and by Sanitize: the layout remembers each step, and then the guest's poller hears of
//! it.

use api::EventKind;
use client_socket::Level;
use io_model::TenantId;
use nvme_controller::{EraseRecord, FormatRecord, FormatStep, Sanitize, SanitizeRecord, SanitizeState};
use runtime::front_end::{self, NSID};
use runtime::poller_thread::Message;
use state::Command as StateCommand;

use crate::served_drive::ServedDrive;

impl ServedDrive {
    pub(crate) fn record_erasure(&mut self, id: TenantId, record: EraseRecord) {
        match record {
            EraseRecord::Format(format) => self.record_format(id, format),
            EraseRecord::Sanitize(sanitize) => self.record_sanitize(id, sanitize),
        }
    }

    fn record_format(&mut self, id: TenantId, record: FormatRecord) {
        let FormatRecord { nsid, step, lba_bytes, by_key, .. } = record;
        let tell = move |drive: &mut Self, is_durable| drive.tell_recorded(id, EraseRecord::Format(record), is_durable);
        let disk = if nsid == NSID { Some(id) } else { self.state.attachments().at(id, nsid) };
        let found = disk.and_then(|disk| Some((disk, self.state.disks().get(disk)?.name.clone())));
        // Its namespace was detached meanwhile.
        let Some((disk, name)) = found else { return tell(self, false) };
        let has_ended = step == FormatStep::Ends;
        let erased = if has_ended && by_key { self.replace_key(&name) } else { Ok(()) };
        let format = StateCommand::Format { id, nsid, lba_bytes, has_ended };
        let recorded = erased.map_err(anyhow::Error::from).and_then(|()| self.apply(format));
        if let Err(error) = &recorded {
            (self.around.sink)(Level::Warn.of_tenant(&name), &format!("{name}: it can't be erased: {error}"));
        } else if has_ended && !self.is_sanitized(id) {
            let line = format!("{name}: formatted with LBAs of {lba_bytes} bytes");
            (self.around.sink)(Level::Info.of_tenant(&name), &line);
        }
        let is_durable = recorded.is_ok();
        // The sector size is a part of the key.
        if has_ended && is_durable && self.is_encrypted(&name) {
            self.forget_former_key(disk, Box::new(move |drive| tell(drive, true)));
        } else {
            tell(self, is_durable);
        }
    }

    /// Whether a Sanitize erases what a tenant has.
    fn is_sanitized(&self, id: TenantId) -> bool {
        let own = self.state.disks().get(id).and_then(|disk| self.state.placement(&disk.name)?.sanitize);
        own.is_some_and(|it| it.state == layout::SanitizeState::Running)
    }

    fn record_sanitize(&mut self, id: TenantId, record: SanitizeRecord) {
        let SanitizeRecord { sanitize: Sanitize { cdw10, pattern, state }, nsids } = record;
        let sanitize = layout::Sanitize { state: in_layout(state), dword_10: cdw10, pattern };
        let recorded = self.apply(StateCommand::Sanitize { id, sanitize, nsids });
        let is_durable = recorded.is_ok();
        if let Some(name) = self.state.disks().get(id).map(|disk| disk.name.clone()) {
            let (level, what) = match (recorded, state) {
                (Err(error), _) => (Level::Warn, format!("its Sanitize fails: {error}")),
                (_, SanitizeState::Running) => (Level::Info, "its guest sanitizes all that it has".to_owned()),
                (_, SanitizeState::Completed) => (Level::Info, "sanitized".to_owned()),
                (_, SanitizeState::Failed) => {
                    (Level::Warn, "its Sanitize failed; its guest must sanitize it again".to_owned())
                }
                (_, SanitizeState::Exited) => {
                    (Level::Info, "its guest goes on after a Sanitize that failed".to_owned())
                }
            };
            (self.around.sink)(level.of_tenant(&name), &format!("{name}: {what}"));
            if is_durable && state == SanitizeState::Completed {
                self.events.tell(EventKind::Erased, Some(&name), Some("by its guest's Sanitize".to_owned()));
            }
        }
        self.tell_recorded(id, EraseRecord::Sanitize(record), is_durable);
    }

    fn tell_recorded(&mut self, id: TenantId, record: EraseRecord, is_durable: bool) {
        for poller in self.tenants.get(&id).iter().flat_map(|live| &live.pollers) {
            self.pollers.send(*poller, Message::Order(id, front_end::recorded(record, is_durable)));
        }
    }
}

fn in_layout(state: SanitizeState) -> layout::SanitizeState {
    match state {
        SanitizeState::Running => layout::SanitizeState::Running,
        SanitizeState::Completed => layout::SanitizeState::Completed,
        SanitizeState::Failed => layout::SanitizeState::Failed,
        SanitizeState::Exited => layout::SanitizeState::Exited,
    }
}
