//! Encrypted disks that are erased: the new key is durable, then no thread has the former one, then comes the answer.

use api::{Disk, DiskError, Erasure, EventKind, Reason};
use client_socket::Level;
use io_model::TenantId;
use runtime::command::{Handed, Reply};
use runtime::front_end::Reached;
use runtime::happening::Happening;
use state::Command as StateCommand;
use state::errors::{being_deleted, broken, not_encrypted};

use crate::disk_keys::DiskKeys;
use crate::error_texts::disk_error;
use crate::served_drive::ServedDrive;

impl ServedDrive {
    /// Erases a disk as the API asks for it. `reply` comes once no poller has the former key.
    pub(crate) fn erase_disk(&mut self, name: &str, erasure: Erasure, reply: Reply<Result<Disk, DiskError>>) {
        let id = match self.may_erase(name, erasure).and_then(|id| self.replace_key(name).map(|()| id)) {
            Ok(id) => id,
            Err(error) => return reply(Err(error)),
        };
        (self.around.sink)(Level::Info.of_tenant(name), &format!("{name}: erased: its former key is gone"));
        self.events.tell(EventKind::Erased, Some(name), None);
        self.forget_former_key(id, Box::new(move |drive| reply(drive.describe_disk(id).ok_or_else(broken))));
    }

    fn may_erase(&self, name: &str, Erasure { force }: Erasure) -> Result<TenantId, DiskError> {
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

    /// A tenant hands over its own key; a first one, or one that erases the disk, is durable before anything is written.
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
            self.may_erase(name, Erasure::default())?;
        }
        let placement = self.state.placement(name).ok_or_else(broken)?.clone();
        let (secret, record) = DiskKeys::read_handed(&placement, handed)?;
        if let Some(key) = record {
            self.apply(StateCommand::Erase { name: name.to_owned(), key }).map_err(disk_error)?;
        }
        self.disk_keys.remember(name, secret);
        self.tell_key(id, 0, name);
        if let Some(ready) = self.locked.remove(&id) {
            self.put_on_socket(id, ready).map_err(disk_error)?;
        }
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
        let key = self.disk_keys.replacing(placement)?;
        self.apply(StateCommand::Erase { name: name.to_owned(), key }).map_err(disk_error)
    }

    /// Has all pollers take a disk's present key. `then` comes once none of them has the former one.
    pub(crate) fn forget_former_key(&mut self, id: TenantId, then: crate::namespaces::Then) {
        let Some(name) = self.state.disks().get(id).map(|disk| disk.name.clone()) else { return then(self) };
        let controllers: Vec<_> = self.state.attachments().of(id).collect();
        for (controller, nsid) in controllers {
            self.tell_key(controller, (nsid - 1) as u16, &name);
        }
        if self.tenants.contains_key(&id) {
            self.tell_key(id, 0, &name);
        }
        self.erasing.entry(id).or_default().push(then);
        let teller = self.teller.clone();
        self.pollers.take_keys(move || teller.tell(Happening::Erased(id)));
    }

    /// No poller has a former key of this disk any more.
    pub(crate) fn erased(&mut self, id: TenantId) {
        let next = self.erasing.get_mut(&id).filter(|all| !all.is_empty()).map(|all| all.remove(0));
        if let Some(then) = next {
            then(self);
        }
        self.erasing.retain(|_, all| !all.is_empty());
    }
}
