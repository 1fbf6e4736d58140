//! Disks that get another key while guests use them.
//!
//! The record of such a disk has both keys, and a journal beside the layout says how far it is. Pollers know the disk's
//! [`KeyChange`] before its first command; then the [`Reencrypter`] goes through the disk. One disk of a drive is
//! re-encrypted at a time. Whatever was begun and not ended goes on at the next start.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, Result};
use api::{Disk, DiskError, EventKind, Operation, OperationState, Reason};
use backend_cipher::{Access, KeyChange};
use client_socket::Level;
use config::Tenant;
use io_model::TenantId;
use keys::{ChangeJournal, Position, StoredKey};
use layout::Placement;
use policy::Terms;
use state::Command as StateCommand;
use state::errors::{being_deleted, broken};

use crate::disk_keys::DiskKeys;
use crate::error_texts::disk_error;
use crate::reencryption_state::{Busy, Reencryptions, State};
use crate::served_drive::ServedDrive;
use runtime::front_end::{BY_FORMER, BY_NEXT, RAW, Reencrypt, Reencrypter, ReencrypterWish, ReencryptionJob};
use runtime::happening::Happening;
use runtime::key_journal;
use runtime::poller_thread::Message;

impl ServedDrive {
    /// Has a disk re-encrypted by another key, as the API asks for it.
    ///
    /// # Errors
    /// The disk has no key of the host's that is here, or its new key can't be made durable: nothing has changed.
    pub(crate) fn reencrypt_disk(&mut self, name: &str) -> Result<Disk, DiskError> {
        let placement = self.state.placement(name).ok_or_else(|| DiskError::no_such_disk(name))?.clone();
        let id = self.find_disk(name).ok_or_else(|| DiskError::no_such_disk(name))?;
        if self.is_being_deleted(id) {
            return Err(being_deleted(name));
        }
        if placement.thin.is_some() {
            let title = format!("disk {name:?} is thin, and can't be re-encrypted");
            return Err(DiskError::new(
                Reason::Invalid,
                title,
                "create another disk, copy the data, and delete this one",
            ));
        }
        if placement.formatting_to_lba_bytes.is_some() {
            let title = format!("disk {name:?} is being formatted by its guest");
            return Err(DiskError::new(Reason::Formatting, title, "ask again once that is over"));
        }
        let record = self.disk_keys.changing(&placement)?;
        let change = self.disk_keys.open_change(&placement, &record).map_err(|_| broken())?;
        let path = self.journal_path(&placement).ok_or_else(broken)?;
        let created = ChangeJournal::create(&path, change.id).map_err(|error| {
            let title = format!("can't write the journal {}: {error}", path.display());
            DiskError::new(Reason::NotDurable, title, "check the directory's owner, mode and free space")
        });
        let recorded = created
            .and_then(|_| self.apply(StateCommand::ReplaceKeys(vec![(name.to_owned(), record)])).map_err(disk_error));
        if let Err(error) = recorded {
            self.remove_journal(&placement);
            return Err(error);
        }
        let held = Arc::clone(self.held.entry(name.to_owned()).or_default());
        held.begin(0..0);
        self.disk_keys.set_change(name, Ok(KeyChange::new(change.former, change.next, held)));
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: it is re-encrypted from now on"));
        self.reencryptions.untold.insert(name.to_owned());
        let disk = name.to_owned();
        self.forget_former_key(
            id,
            Box::new(move |drive| {
                drive.reencryptions.untold.remove(&disk);
                drive.reencrypt_next();
            }),
        );
        self.describe_disk(id).ok_or_else(broken)
    }

    /// Looks how far the disks are that a former daemon began to re-encrypt. Comes before pollers hear of the disks.
    pub(crate) fn read_changes(&mut self) {
        let is_unread = |it: &&Placement| it.is_reencrypted() && self.disk_keys.change_of(&it.name).is_none();
        for placement in self.placements().iter().filter(is_unread).cloned().collect::<Vec<_>>() {
            let Some(record) = &placement.key else { continue };
            // Without its host key the disk is locked, and says so.
            let Ok(change) = self.disk_keys.open_change(&placement, record) else { continue };
            let read = self.renew_journal(&placement).map(|Position { start_bytes, former }| {
                let held = Arc::clone(self.held.entry(placement.name.clone()).or_default());
                held.begin(start_bytes..start_bytes + former.len() as u64);
                KeyChange::new(change.former, change.next, held)
            });
            self.disk_keys.set_change(&placement.name, read);
        }
    }

    /// The position in a disk's journal, which has another mark from now on: older copies of it are refused.
    fn renew_journal(&mut self, placement: &Placement) -> Result<Position, String> {
        let (mut journal, position) = self.open_journal(placement)?;
        let record = DiskKeys::with_another_mark(placement).map_err(|error| error.to_string())?;
        let id = self.disk_keys.open_change(placement, &record)?.id;
        journal.renew(id, &position).map_err(|error| format!("the journal of its re-encryption fails: {error}"))?;
        let recorded = self.apply(StateCommand::ReplaceKeys(vec![(placement.name.clone(), record)]));
        recorded.map_err(|error| disk_error(error).to_string())?;
        Ok(position)
    }

    fn journal_path(&self, placement: &Placement) -> Option<PathBuf> {
        self.layout_file.key_journal(&placement.serial)
    }

    fn open_journal(&self, placement: &Placement) -> Result<(ChangeJournal, Position), String> {
        let record = placement.key.as_ref().ok_or_else(|| "it has no key".to_owned())?;
        let id = self.disk_keys.open_change(placement, record)?.id;
        let path = self.journal_path(placement).ok_or_else(|| "its layout is not kept".to_owned())?;
        let opened = ChangeJournal::open(&path, id).map_err(|error| error.to_string());
        let fits = |(_, Position { start_bytes, former }): &(ChangeJournal, Position)| {
            start_bytes.checked_add(former.len() as u64).is_some_and(|end| end <= placement.size_bytes())
        };
        let fitting = opened.and_then(|opened| Some(opened).filter(fits).ok_or_else(|| "it is damaged".to_owned()));
        fitting.map_err(|why| {
            let (path, name) = (path.display(), &placement.name);
            format!(
                "the journal of its re-encryption, {path}, can't be used: {why}; stop the daemon and put the journal \
                 back, or give up the disk's data by `evenkeel disk erase {name}`"
            )
        })
    }

    /// Of a disk that is not re-encrypted any more.
    pub(crate) fn remove_journal(&mut self, placement: &Placement) {
        self.disk_keys.forget_change(&placement.name);
        self.held.get(&placement.name).iter().for_each(|held| held.end());
        self.reencryptions.failed.remove(&placement.name);
        let Some(path) = self.journal_path(placement) else { return };
        if let Err(error) = ChangeJournal::remove(&path) {
            let line = format!("{}: {} stays, and is of no use: {error}", placement.name, path.display());
            (self.around.sink)(Level::Warn.of_tenant(&placement.name), &line);
        }
    }

    /// Has the next disk re-encrypted, if there is one and no other is. A disk of which a window is held comes first.
    pub(crate) fn reencrypt_next(&mut self) {
        if !matches!(self.reencryptions.state, State::Away) {
            return;
        }
        let Reencryptions { untold, failed, .. } = &self.reencryptions;
        let next = self.placements().iter().filter_map(|placement| {
            let name = &placement.name;
            let change = self.disk_keys.change_of(name).filter(|_| placement.is_reencrypted())?;
            let may_begin = !untold.contains(name) && !failed.contains_key(name);
            may_begin.then(|| (change.held().range().is_empty(), placement.clone()))
        });
        let Some((_, placement)) = next.min_by_key(|(is_free, _)| *is_free) else { return };
        if let Err(error) = self.start_reencrypter(&placement) {
            self.reencryption_fails(&placement.name, &format!("{error:#}"));
        }
    }

    fn start_reencrypter(&mut self, placement: &Placement) -> Result<()> {
        let name = &placement.name;
        let (journal, position) = self.open_journal(placement).map_err(anyhow::Error::msg)?;
        let change = self.disk_keys.change_of(name).cloned().context("its keys are not here")?;
        let parts = self.pollers.open_for(self.state.config(), &self.policy, &Tenant::background("reencrypter"))?;
        let poller = parts.first().map(|part| part.poller).context("no poller takes it on")?;
        let id = self.new_id();
        let to_poller = self.pollers.sender(poller).context("its poller has ended")?;
        let record = key_journal::start(journal, move |result| {
            to_poller.send(Message::Order(id, Reencrypt::Recorded(result).into()));
        })?;
        let teller = self.teller.clone();
        let on_wish = move |wish| match wish {
            ReencrypterWish::Record(position) => record(position),
            ReencrypterWish::Done => teller.tell(Happening::Reencrypted(id, Ok(()))),
            ReencrypterWish::Failed(why) => teller.tell(Happening::Reencrypted(id, Err(why))),
        };
        let begun_at_bytes = position.start_bytes;
        let keys = self.pollers.keys();
        keys.set(id, BY_FORMER, Access::Key(change.former().clone()));
        keys.set(id, BY_NEXT, Access::Key(change.next().clone()));
        keys.set(id, RAW, Access::Plain);
        let job = ReencryptionJob {
            id,
            extents: placement.to_look_up(),
            size_bytes: placement.size_bytes(),
            sector_bytes: placement.lba_bytes,
            held: Arc::clone(change.held()),
            position,
        };
        let front_end = Reencrypter::new(job, Box::new(on_wish))?.into();
        self.pollers.add(poller, id, front_end, Terms::best_effort(1));
        self.pollers.send(poller, Message::Order(id, Reencrypt::Begin.into()));
        let busy = Busy { poller, id, disk: name.clone(), begun: Instant::now(), begun_at_bytes };
        self.reencryptions.state = State::Busy(busy);
        Ok(())
    }

    /// The re-encrypter has ended, or can't go on.
    pub(crate) fn reencrypted(&mut self, id: TenantId, result: Result<(), String>) {
        let Some(disk) = self.reencryptions.busy().filter(|busy| busy.id == id).map(|busy| busy.disk.clone()) else {
            return;
        };
        let ended = result.and_then(|()| self.end_reencryption(&disk).map_err(|error| error.to_string()));
        if let Err(why) = ended {
            self.reencryption_fails(&disk, &why);
        }
        self.dismiss_reencrypter(Box::new(|| ()));
    }

    /// All of a disk has its next key.
    fn end_reencryption(&mut self, name: &str) -> Result<(), DiskError> {
        let placement = self.state.placement(name).ok_or_else(broken)?.clone();
        let Some(StoredKey::Changing { next, .. }) = &placement.key else { return Err(broken()) };
        let present = StoredKey::Host(next.clone());
        self.apply(StateCommand::ReplaceKeys(vec![(name.to_owned(), present)])).map_err(disk_error)?;
        self.remove_journal(&placement);
        let disk = name.to_owned();
        let told = move |drive: &mut Self| {
            (drive.around.sink)(Level::Info.of_tenant(&disk), &format!("{disk}: re-encrypted: its former key is gone"));
            drive.events.tell(EventKind::Reencrypted, Some(&disk), None);
        };
        match self.find_disk(name) {
            Some(id) => self.forget_former_key(id, Box::new(told)),
            None => told(self),
        }
        Ok(())
    }

    fn reencryption_fails(&mut self, name: &str, why: &str) {
        let line = format!("{name}: its re-encryption stops until the next start: {why}");
        (self.around.sink)(Level::Warn.of_tenant(name), &line);
        self.reencryptions.failed.insert(name.to_owned(), why.to_owned());
    }

    /// Has the poller let go of the re-encrypter, which ends its present window first.
    fn dismiss_reencrypter(&mut self, gone: Box<dyn FnOnce() + Send>) {
        let Some(&Busy { poller, id, .. }) = self.reencryptions.busy() else { return };
        self.reencryptions.state = State::Leaving(id);
        let teller = self.teller.clone();
        let left = move || {
            gone();
            teller.tell(Happening::ReencrypterLeft(id));
        };
        self.pollers.send(poller, Message::Remove(id, Box::new(left)));
    }

    /// The poller let go of the re-encrypter.
    pub(crate) fn reencrypter_left(&mut self, id: TenantId) {
        if !self.reencryptions.is_leaving(id) {
            return;
        }
        self.reencryptions.state = State::Away;
        self.pollers.forget(id);
        if self.pollers.keys().forget(id) {
            self.pollers.take_keys(|| ());
        }
        self.pollers.close_unused(self.state.config());
    }

    /// For a command after which nobody may re-encrypt a disk.
    ///
    /// # Errors
    /// Its present window has to end first: the command is carried out anew after that.
    pub(crate) fn stop_reencryption_first(&mut self, name: &str) -> Result<(), DiskError> {
        if self.reencryptions.busy().is_some_and(|busy| busy.disk == name) {
            self.dismiss_reencrypter(Box::new(|| ()));
        }
        // Which disk it leaves does not matter: that takes milliseconds.
        let State::Leaving(id) = self.reencryptions.state else { return Ok(()) };
        self.awaited.push(id);
        Err(DiskError::new(Reason::StillLeaving, "its re-encryption has not stopped yet", "ask again in a moment"))
    }

    /// The daemon ends: the present window has to, since commands wait for it. Something comes once it has.
    pub(crate) fn stop_reencryption(&mut self) -> Option<Receiver<()>> {
        self.reencryptions.busy()?;
        let (sender, ended) = channel();
        self.dismiss_reencrypter(Box::new(move || drop(sender)));
        Some(ended)
    }

    /// Re-encryptions that have not ended, for the list of operations.
    pub(crate) fn reencryption_operations(&self) -> impl Iterator<Item = Operation> {
        let changing = self.placements().iter().filter(|it| it.is_reencrypted());
        changing.map(|placement| {
            let (name, total_bytes) = (&placement.name, placement.size_bytes());
            let done_bytes = self.disk_keys.change_of(name).map_or(0, |change| change.held().range().start);
            let busy = self.reencryptions.busy().filter(|busy| busy.disk == *name);
            let (_, locked) = self.disk_keys.access(placement);
            let why = self.reencryptions.failed.get(name).cloned().or(locked);
            let rate = busy.map(|busy| {
                let done = done_bytes.saturating_sub(busy.begun_at_bytes) as f64;
                (done / busy.begun.elapsed().as_secs_f64()) as u64
            });
            let bytes_per_second = rate.filter(|rate| *rate > 0);
            Operation {
                kind: "reencrypt".to_owned(),
                disk: name.clone(),
                state: match (busy, &why) {
                    (_, Some(_)) => OperationState::Failed,
                    (Some(_), None) => OperationState::Running,
                    (None, None) => OperationState::Waiting,
                },
                done_bytes,
                total_bytes,
                write_bytes: None,
                bytes_per_second,
                seconds_left: bytes_per_second.map(|rate| (total_bytes - done_bytes).div_ceil(rate)),
                why,
            }
        })
    }
}
