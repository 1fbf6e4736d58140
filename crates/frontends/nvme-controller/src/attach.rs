//! Namespaces that come, grow and go while the guest runs. It is told by Asynchronous Event Notices (NVMe Base 2.0,
//! 5.2.1) and by the Changed Namespace List (5.16.1.5).

use nvme_spec::Status;
use nvme_spec::feature::async_event;
use nvme_spec::log::AsyncEvent;

use crate::config::{ConfigError, check_nsid};
use crate::msix::Interrupts;
use crate::namespace::Namespace;
use crate::{Controller, NamespaceConfig};

/// Why a namespace was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// Nothing is attached there.
    #[error("there is no namespace {0}")]
    Absent(u32),
    /// Something is attached there.
    #[error("there is a namespace {0} already")]
    Present(u32),
    /// What was attached there is still with the drive.
    #[error("namespace {0} was detached, and has commands in flight")]
    Leaving(u32),
    /// It has more already.
    #[error("namespace {nsid} has {has_bytes} bytes: it can become longer, but not as short as {asked_bytes}")]
    Shrinks {
        /// Which.
        nsid: u32,
        /// Its length.
        has_bytes: u64,
        /// The length that was asked for.
        asked_bytes: u64,
    },
    /// It would not be one that a controller can have.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A namespace that was detached and has device commands that have not come back.
#[derive(Debug)]
pub(crate) struct Leaving {
    nsid: u32,
    /// How many. `None`: some of those that a reset left behind, which nobody counts by namespace.
    in_flight: Option<u32>,
}

impl<I: Interrupts> Controller<I> {
    /// Adds a namespace, and tells the guest. What is there must be the tenant's own already: the next command may go
    /// to it.
    ///
    /// # Errors
    /// The identifier is none or not free, or the configuration is one that [`ControllerConfig::check`] refuses.
    ///
    /// [`ControllerConfig::check`]: crate::ControllerConfig::check
    pub fn attach(&mut self, nsid: u32, config: NamespaceConfig) -> Result<(), NamespaceError> {
        check_nsid(nsid)?;
        config.check()?;
        if self.namespaces.get(nsid).is_some() {
            return Err(NamespaceError::Present(nsid));
        }
        if !self.is_detached(nsid) {
            return Err(NamespaceError::Leaving(nsid));
        }
        self.namespaces.insert(nsid, Namespace::new(self.config.tenant, nsid, config, self.formats));
        self.namespace_changed(nsid);
        Ok(())
    }

    /// Makes a namespace longer, and tells the guest. What is new must read as zeros, and be there already: the next
    /// command may go to it. Nothing happens if it is as long already.
    ///
    /// # Errors
    /// There is no such namespace, it is longer, or `size_bytes` is not whole blocks of every size that it offers.
    pub fn grow(&mut self, nsid: u32, size_bytes: u64) -> Result<(), NamespaceError> {
        let namespace = self.namespaces.get_mut(nsid).ok_or(NamespaceError::Absent(nsid))?;
        let has_bytes = namespace.config().size_bytes;
        if size_bytes < has_bytes {
            return Err(NamespaceError::Shrinks { nsid, has_bytes, asked_bytes: size_bytes });
        }
        let grown = NamespaceConfig { size_bytes, ..namespace.config().clone() };
        grown.check()?;
        namespace.set_config(grown);
        if size_bytes > has_bytes {
            self.namespace_changed(nsid);
        }
        Ok(())
    }

    /// Another controller has a namespace too from now on, or no more. A Format that goes on goes on.
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn set_elsewhere(&mut self, nsid: u32, elsewhere: bool) -> Result<(), NamespaceError> {
        let namespace = self.namespaces.get_mut(nsid).ok_or(NamespaceError::Absent(nsid))?;
        let config = NamespaceConfig { elsewhere, ..namespace.config().clone() };
        namespace.set_config(config);
        Ok(())
    }

    /// Takes a namespace away, and tells the guest. Nothing is accepted for it any more; what the drive has of it ends,
    /// ranges to discard that it has not got are given up, and so is a Format. Its place may be used for something else
    /// once it [is detached](Self::is_detached).
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn detach(&mut self, nsid: u32) -> Result<(), NamespaceError> {
        let namespace = self.namespaces.get(nsid).ok_or(NamespaceError::Absent(nsid))?;
        let erases = u32::from(namespace.format.as_ref().is_some_and(|format| format.is_in_flight()));
        let io: u32 = self.queues.sqs().map(|sq| sq.in_flight_of(nsid)).sum();
        let counted = self.in_flight == 0 || !self.is_resetting();
        self.leaving.push(Leaving { nsid, in_flight: counted.then_some(io + erases) });
        self.end_format(nsid, Status::INVALID_NAMESPACE);
        self.namespaces.remove(nsid);
        self.give_up_ranges(nsid);
        self.forget_detached();
        self.namespace_changed(nsid);
        Ok(())
    }

    /// Whether nothing is attached there, and nothing in flight belongs to what was.
    pub fn is_detached(&self, nsid: u32) -> bool {
        self.namespaces.get(nsid).is_none() && self.leaving.iter().all(|leaving| leaving.nsid != nsid)
    }

    /// A command ended of a namespace that may be going.
    #[cold]
    pub(crate) fn ended_of_leaving(&mut self, nsid: u32) {
        let its = self.leaving.iter_mut().find(|leaving| leaving.nsid == nsid);
        if let Some(in_flight) = its.and_then(|leaving| leaving.in_flight.as_mut()) {
            *in_flight = in_flight.saturating_sub(1);
        }
        self.forget_detached();
    }

    fn forget_detached(&mut self) {
        self.leaving.retain(|leaving| leaving.in_flight != Some(0));
    }

    /// A reset forgets whose the commands in flight are.
    pub(crate) fn lose_count(&mut self) {
        self.leaving.iter_mut().for_each(|leaving| leaving.in_flight = None);
    }

    /// Ranges that were not handed out never will be.
    fn give_up_ranges(&mut self, nsid: u32) {
        let streams = self.queues.sqs_mut().filter_map(|sq| {
            let slot = sq.stream.as_ref()?.slot().into();
            let its = sq.slot(slot)?.nsid == nsid;
            Some((sq.at.qid, slot, sq.stream.take_if(|_| its)?.left()))
        });
        for (qid, slot, left) in streams.collect::<Vec<_>>() {
            (0..left).for_each(|_| self.end_part(qid, slot, Status::INVALID_NAMESPACE));
        }
    }

    /// The guest is to look at a namespace anew.
    pub(crate) fn namespace_changed(&mut self, nsid: u32) {
        self.events.change(nsid);
        if self.features.async_events & async_event::NAMESPACE_ATTRIBUTE != 0 {
            self.note_event(AsyncEvent::NAMESPACE_CHANGED);
        }
    }
}
