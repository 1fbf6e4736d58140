//! Disks that are deleted or erased, and what is done with what they leave.
//!
//! A deletion is durable before anything happens. Then the tenant leaves; once nothing of it is in flight any more, the
//! [`Wiper`] overwrites its ranges, one after the other, and each is free when that is durable. What a file never held
//! is not written: a thread that may wait for the file system looks where data is. The wiper is there only while there
//! is something to do. Whatever was begun and not ended goes on at the next start.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use api::{Disk, DiskError, Erasure, EventKind, Operation, OperationState, Reason};
use backend_cipher::Access;
use client_socket::Level;
use config::{Tenant, WipeBy};
use confine::ThreadKind;
use io_model::TenantId;
use io_model::units::Size;
use keys::{HostKeys, StoredKey};
use layout::{Placement, WipeMethod, Wiping};
use policy::Terms;
use state::errors::{being_deleted, broken, not_encrypted};
use state::{At, Command as StateCommand};

use crate::disk_keys::DiskKeys;
use crate::error_texts::disk_error;
use crate::namespaces::Then;
use crate::served_drive::ServedDrive;
use crate::wipe_state::{Begun, State, done_bytes};
use runtime::command::{Handed, Reply};
use runtime::front_end::{Reached, Wipe, Wiper};
use runtime::happening::{Happening, WipeError, WipeStep};
use runtime::poller_thread::Message;
use runtime::pollers::PollerId;
use runtime::threads;

impl ServedDrive {
    /// Deletes a disk, or the data of a disk that is not served. The deletion is durable at once, whatever happens
    /// then. Once the tenant has left, its data is overwritten, and its space is free after that. Namespaces of a
    /// tenant are detached from it.
    ///
    /// # Errors
    /// It can't be made durable; nothing has changed.
    pub(crate) fn delete(&mut self, name: &str, wipe: Option<WipeMethod>) -> Result<(), DiskError> {
        self.stop_reencryption_first(name)?;
        let placement = self.state.placement(name).cloned();
        let key = placement.as_ref().and_then(|it| it.key.as_ref());
        let (is_noise, has_host_key) = (wipe.is_none() && key.is_some(), key.is_some_and(StoredKey::is_of_host));
        self.apply(StateCommand::Delete { name: name.to_owned(), wipe }).map_err(disk_error)?;
        placement.iter().for_each(|placement| self.remove_journal(placement));
        self.held.remove(name);
        let what = if is_noise { "its key is gone, and its data is noise" } else { "its data is being wiped" };
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: deleted; {what}"));
        self.told_locked.remove(name);
        self.events.tell(EventKind::Deleted, Some(name), has_host_key.then(|| "its key is erased".to_owned()));
        Ok(())
    }

    /// Whether a disk was deleted, and a thread still has to let go of it.
    pub(crate) fn is_being_deleted(&self, id: TenantId) -> bool {
        self.state.jobs().is_held(id)
    }

    /// Has the next range overwritten, if there is one and the wiper has nothing to do.
    pub(crate) fn wipe_next(&mut self) {
        if !matches!(self.wiper.state, State::Away) {
            return;
        }
        let Some(range) = self.state.next_wipe().cloned() else { return };
        if let Err(error) = self.start_wiper(range) {
            let line = format!("deleted disks can't be wiped, and stay reserved until the next start: {error:#}");
            (self.around.sink)(Level::Warn.of_drive(&self.config().device.name), &line);
        }
    }

    fn start_wiper(&mut self, range: Wiping) -> Result<()> {
        let tenant = Tenant::background("wiper");
        let parts = self.pollers.open_for(self.state.config(), &self.policy, &tenant)?;
        let poller = parts.first().map(|part| part.poller).context("no poller takes it on")?;
        let id = self.new_id();
        let teller = self.teller.clone();
        let front_end = Wiper::new(id, Box::new(move |step| teller.tell(Happening::Wiped(step))))?.into();
        // The wiper writes raw zeros, to ranges of no disk.
        self.pollers.keys().set(id, 0, Access::Plain);
        let probe = self.pollers.add(poller, id, front_end, Terms::best_effort(1));
        self.wiper.probes = Some([probe].into_iter().collect());
        self.wipe(poller, id, range);
        Ok(())
    }

    fn wipe(&mut self, poller: PollerId, id: TenantId, range: Wiping) {
        let begun = Begun { at: Instant::now(), done_bytes: done_bytes(&range), write_bytes: None };
        self.wiper.state = State::Busy(poller, id, range.offset_bytes, begun);
        if range.method != WipeMethod::Zeros || self.wipe_by() != WipeBy::Overwrite || !self.look_for_data(&range) {
            let whole = range.extent();
            let pieces = std::iter::once(whole.offset_bytes..whole.offset_bytes + whole.size_bytes);
            self.overwrite(range, pieces.collect());
        }
    }

    /// Has a thread look for what of a range is to be written, and tell the owner. `false`: all of it.
    fn look_for_data(&self, range: &Wiping) -> bool {
        let Some(drive) = self.pollers.zeroer() else { return false };
        let (range, teller) = (range.clone(), self.teller.clone());
        let look = move || {
            let Wiping { offset_bytes, size_bytes, wiped_bytes, .. } = range;
            let pieces = drive.data(offset_bytes + wiped_bytes, size_bytes - wiped_bytes);
            teller.tell(Happening::Looked(range, pieces));
        };
        threads::spawn("data", ThreadKind::Zeroing, look).is_ok()
    }

    /// Has the wiper overwrite these pieces of a range, which are all that may hold data.
    pub(crate) fn overwrite(&mut self, range: Wiping, pieces: Vec<Range<u64>>) {
        let by = self.wipe_by();
        let State::Busy(poller, id, offset_bytes, begun) = &mut self.wiper.state else { return };
        if *offset_bytes == range.offset_bytes && begun.write_bytes.is_none() {
            let further_passes = u64::from(range.method.passes().saturating_sub(range.passes + 1));
            let from = range.offset_bytes + range.wiped_bytes;
            let present_pass = pieces.iter().map(|piece| piece.end - piece.start.max(from).min(piece.end));
            let pass = pieces.iter().map(|piece| piece.end - piece.start);
            begun.write_bytes = Some(present_pass.sum::<u64>() + further_passes * pass.sum::<u64>());
            self.pollers.send(*poller, Message::Order(*id, Wipe(range, by, pieces).into()));
        }
    }

    fn wipe_by(&self) -> WipeBy {
        if self.wiper.drive_makes_no_zeros { WipeBy::Overwrite } else { self.config().device.wipe }
    }

    /// What the drive did not zero when told to is overwritten, as everything is from then on. `true`: it is.
    fn overwrites_instead(&mut self, range: &Wiping, why: &str) -> bool {
        let State::Busy(poller, id, offset_bytes, _) = self.wiper.state else { return false };
        let was_told_to = range.method == WipeMethod::Zeros && self.wipe_by() == WipeBy::WriteZeroes;
        if !was_told_to || offset_bytes != range.offset_bytes {
            return false;
        }
        self.wiper.drive_makes_no_zeros = true;
        let line = format!(
            "drive {}: it fails wipe = \"write-zeroes\": {why}; it overwrites until the next start",
            self.config().device.name
        );
        (self.around.sink)(Level::Warn.of_drive(&self.config().device.name), &line);
        self.wipe(poller, id, range.clone());
        true
    }

    /// What is to be done until everything is free, oldest first.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation> {
        let zeroing = self.state.layout().map(|layout| layout.placements()).unwrap_or_default().iter();
        let zeroing = zeroing.filter_map(|placement| {
            // First: to look for each disk by its name would take a second among ten thousand.
            let done_bytes = placement.zeroed_bytes?;
            let is_in_work = self.find_disk(&placement.name).is_some_and(|id| self.state.jobs().is_zeroed(id));
            Some(Operation {
                kind: "zero".to_owned(),
                disk: placement.name.clone(),
                state: if is_in_work { OperationState::Running } else { OperationState::Failed },
                done_bytes,
                total_bytes: placement.size_bytes(),
                write_bytes: None,
                bytes_per_second: None,
                seconds_left: None,
                why: None,
            })
        });
        let wiping = self.state.layout().map(|layout| layout.wiping()).unwrap_or_default();
        let wiping = wiping.iter().map(|range| {
            let failure = self.state.jobs().failure(range.offset_bytes);
            let state = match self.wiper.state {
                State::Busy(.., offset_bytes, _) if offset_bytes == range.offset_bytes => OperationState::Running,
                _ if failure.is_some() => OperationState::Failed,
                _ => OperationState::Waiting,
            };
            let total_bytes = range.size_bytes * u64::from(range.method.passes());
            let done_bytes = done_bytes(range);
            let (bytes_per_second, write_bytes) = (self.wiper.rate(range), self.wiper.write_bytes(range));
            let left = |rate: u64| (total_bytes - done_bytes).div_ceil(rate.max(1));
            let link_bytes_per_s = u64::from(self.profile.link_write_mb_s) * 1_000_000;
            let least_seconds = write_bytes.map(|bytes| bytes.div_ceil(link_bytes_per_s.max(1)));
            Operation {
                kind: "wipe".to_owned(),
                disk: range.former.clone(),
                state,
                done_bytes,
                total_bytes,
                write_bytes,
                bytes_per_second,
                seconds_left: bytes_per_second.map(left).or(least_seconds),
                why: failure.map(str::to_owned),
            }
        });
        zeroing.chain(wiping).chain(self.reencryption_operations())
    }

    /// The wiper has come further, or not.
    pub(crate) fn wiped(&mut self, step: WipeStep) {
        let WipeStep { offset_bytes, result } = step;
        // A range that was told to stop no longer counts: the drive may have been erased since.
        if !matches!(self.wiper.state, State::Busy(.., at, _) if at == offset_bytes) {
            return;
        }
        let wiping = self.state.layout().map(|layout| layout.wiping()).unwrap_or_default();
        let Some(range) = wiping.iter().find(|it| it.offset_bytes == offset_bytes).cloned() else { return };
        let why = match result {
            Ok((passes, wiped_bytes)) => {
                let recorded = self.apply(StateCommand::Wiped { offset_bytes, result: Ok((passes, wiped_bytes)) });
                if passes < range.method.passes() {
                    // What could not be recorded is done again after a kill, no more.
                    return;
                }
                recorded.err().map(|error| error.to_string())
            }
            Err(error) => {
                let why = match error {
                    WipeError::Drive(error) => format!("the drive failed a command ({error:?})"),
                    WipeError::Differs => "the data read back is not the data written".to_owned(),
                };
                if self.overwrites_instead(&range, &why) {
                    return;
                }
                Some(why)
            }
        };
        self.tell_wiped(&range, why);
        self.end_range();
    }

    /// A range is wiped, or why not.
    fn tell_wiped(&mut self, range: &Wiping, why: Option<String>) {
        let (former, size) = (&range.former, Size(range.size_bytes));
        let Some(why) = why else {
            self.events.tell(EventKind::Wiped, Some(former), Some(size.to_string()));
            let line = format!("{former}: its {size} are wiped and free");
            return (self.around.sink)(Level::Info.of_tenant(former), &line);
        };
        self.events.tell(EventKind::WipeFailed, Some(former), Some(format!("{size}: {why}")));
        let line = format!("{former}: its {size} can't be wiped, and stay reserved until the next start: {why}");
        (self.around.sink)(Level::Warn.of_tenant(former), &line);
        self.apply_or_warn(StateCommand::Wiped { offset_bytes: range.offset_bytes, result: Err(why) });
    }

    /// The next range, or the wiper goes.
    fn end_range(&mut self) {
        let State::Busy(poller, id, ..) = self.wiper.state else { return };
        if let Some(range) = self.state.next_wipe().cloned() {
            return self.wipe(poller, id, range);
        }
        self.wiper.state = State::Leaving(id);
        let teller = self.teller.clone();
        self.pollers.send(poller, Message::Remove(id, Box::new(move || teller.tell(Happening::WiperLeft(id)))));
    }

    /// The poller let go of the wiper. Something more may have been deleted meanwhile.
    pub(crate) fn wiper_left(&mut self, id: TenantId) {
        if !matches!(self.wiper.state, State::Leaving(leaving) if leaving == id) {
            return;
        }
        (self.wiper.state, self.wiper.probes) = (State::Away, None);
        self.pollers.forget(id);
        let _ = self.pollers.keys().forget(id);
        self.pollers.close_unused(self.state.config());
        self.wipe_next();
    }
}

/// Encrypted disks are erased by another key: it is durable, then no thread has the former one, then comes the answer.
impl ServedDrive {
    /// Erases a disk as the API asks for it. `reply` comes once no poller has the former key.
    pub(crate) fn erase_disk(&mut self, name: &str, erasure: Erasure, reply: Reply<Result<Disk, DiskError>>) {
        let id = match self.may_erase(name, erasure.force).and_then(|id| self.replace_key(name).map(|()| id)) {
            Ok(id) => id,
            Err(error) => return reply(Err(error)),
        };
        let connected = self.connect_unlocked(id);
        self.forget_former_key(
            id,
            Box::new(move |drive| reply(connected.and_then(|()| drive.describe_disk(id).ok_or_else(broken)))),
        );
    }

    /// A disk that waited for its key is served, now that the key is here.
    fn connect_unlocked(&mut self, id: TenantId) -> Result<(), DiskError> {
        let Some(ready) = self.locked.remove(&id) else { return Ok(()) };
        self.tell_present_key(id);
        self.connect(id, ready).map_err(disk_error)
    }

    fn may_erase(&self, name: &str, force: bool) -> Result<TenantId, DiskError> {
        let id = self.find_disk(name).ok_or_else(|| DiskError::no_such_disk(name))?;
        if self.is_being_deleted(id) {
            return Err(being_deleted(name));
        }
        let tenants = self.state.attachments().of(id).map(|(controller, _)| controller);
        let has_client =
            |id| self.tenants.get(&id).and_then(|live| live.server.as_ref()).is_some_and(Reached::has_client);
        if !force && tenants.chain([id]).any(has_client) {
            let title = format!("{name:?} is attached to a client");
            let remedy = "detach it there (unmount a block device), or use force: its users find noise, and may crash";
            return Err(DiskError::new(Reason::Attached, title, remedy));
        }
        Ok(id)
    }

    pub(crate) fn is_encrypted(&self, name: &str) -> bool {
        self.state.placement(name).is_some_and(|it| it.key.is_some())
    }

    /// A tenant hands over its own key. A first one, or one that erases the disk, is durable before the disk is served.
    pub(crate) fn unlock_disk(&mut self, name: &str, handed: Handed, reply: Reply<Result<Disk, DiskError>>) {
        match self.take_handed_key(name, &handed) {
            Ok(id) => {
                self.forget_former_key(id, Box::new(move |drive| reply(drive.describe_disk(id).ok_or_else(broken))));
            }
            Err(error) => reply(Err(error)),
        }
    }

    fn take_handed_key(&mut self, name: &str, handed: &Handed) -> Result<TenantId, DiskError> {
        let id = self.find_disk(name).ok_or_else(|| DiskError::no_such_disk(name))?;
        if handed.erase {
            self.may_erase(name, handed.force)?;
        }
        let placement = self.state.placement(name).ok_or_else(broken)?.clone();
        let (secret, record) = DiskKeys::read_handed(&placement, handed)?;
        if let Some(key) = record {
            self.apply(StateCommand::ReplaceKeys(vec![(name.to_owned(), key)])).map_err(disk_error)?;
        }
        self.disk_keys.remember(name, secret);
        if handed.erase {
            self.tell_erased(name);
        }
        self.connect_unlocked(id)?;
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: its tenant handed over its key"));
        Ok(id)
    }

    /// Makes another key of a disk durable.
    ///
    /// # Errors
    /// The disk has no key of the host's, or the layout can't be written: the former key stays.
    pub(crate) fn replace_key(&mut self, name: &str) -> Result<(), DiskError> {
        let placement = self.state.placement(name).filter(|it| it.key.is_some());
        let placement = placement.ok_or_else(|| not_encrypted(name))?;
        let (placement, key) = (placement.clone(), self.disk_keys.replacing(placement)?);
        self.apply(StateCommand::ReplaceKeys(vec![(name.to_owned(), key)])).map_err(disk_error)?;
        self.remove_journal(&placement);
        self.tell_erased(name);
        Ok(())
    }

    fn tell_erased(&self, name: &str) {
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: erased: its former key is gone"));
        self.events.tell(EventKind::Erased, Some(name), None);
    }

    /// Has all pollers take a disk's present key. `then` comes once none of them has the former one.
    pub(crate) fn forget_former_key(&mut self, id: TenantId, then: Then) {
        self.tell_present_key(id);
        self.erasing.entry(id).or_default().push(then);
        let teller = self.teller.clone();
        self.pollers.take_keys(move || teller.tell(Happening::Erased(id)));
    }

    /// Tells pollers of a disk's present key, wherever the disk is attached.
    fn tell_present_key(&mut self, id: TenantId) {
        let Some(name) = self.state.disks().get(id).map(|disk| disk.name.clone()) else { return };
        let attached: Vec<At> = self.state.attachments().of(id).collect();
        for (controller, nsid) in attached {
            self.tell_key(controller, (nsid - 1) as u16, &name);
        }
        if self.tenants.contains_key(&id) {
            self.tell_key(id, 0, &name);
        }
    }

    /// No poller has a former key of this disk any more.
    pub(crate) fn erased(&mut self, id: TenantId) {
        let next = self.erasing.get_mut(&id).filter(|all| !all.is_empty()).map(|all| all.remove(0));
        if let Some(then) = next {
            then(self);
        }
        self.erasing.retain(|_, all| !all.is_empty());
    }

    /// Refuses host keys that leave out one which wrapped a disk's key.
    pub(crate) fn refuse_host_keys(&self, host: &HostKeys) -> Result<(), DiskError> {
        let missing = |it: &Placement| Some((it.name.clone(), it.key.as_ref()?.missing_host_key(host)?));
        let Some((name, id)) = self.placements().iter().find_map(missing) else { return Ok(()) };
        let title = format!("the key of disk {name:?} was wrapped by host key {id}, which is none of these");
        Err(DiskError::new(Reason::Invalid, title, "add that host key as a further line of the file"))
    }

    pub(crate) fn placements(&self) -> &[Placement] {
        self.state.layout().map(|layout| layout.placements()).unwrap_or_default()
    }

    /// Takes other host keys, which were not refused: what former ones have wrapped is wrapped anew, durably, and disks
    /// that waited for a key are served. Returns how many were wrapped.
    ///
    /// # Errors
    /// The layout can't be written: nothing has changed here.
    pub(crate) fn take_host_keys(&mut self, host: &Arc<HostKeys>) -> Result<usize, DiskError> {
        let was_locked = |name: &str| self.state.placement(name).is_some_and(|it| self.disk_keys.is_locked(it));
        let locked = self.state.disks().iter().filter(|(_, disk)| was_locked(&disk.name));
        let locked: Vec<TenantId> = locked.map(|(id, _)| id).collect();
        let keys = self.disk_keys.with_host_keys(Arc::clone(host));
        let anew = keys.wrapped_anew(self.placements().iter());
        let count = anew.len();
        if count > 0 {
            self.apply(StateCommand::ReplaceKeys(anew)).map_err(disk_error)?;
        }
        self.disk_keys = keys;
        self.read_changes();
        for id in locked {
            self.tell_present_key(id);
            self.connect_unlocked(id)?;
        }
        self.reencrypt_next();
        Ok(count)
    }
}
