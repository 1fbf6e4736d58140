//! Namespaces that change while the guest runs. It is told by Asynchronous Event Notices (NVMe Base 2.0, 5.2.1)
//! and by the Changed Namespace List (5.16.1.5).

use nvme_spec::feature::async_event;
use nvme_spec::log::AsyncEvent;

use crate::config::ConfigError;
use crate::msix::Interrupts;
use crate::namespace::NSID;
use crate::{Controller, NamespaceConfig};

/// Why a namespace was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// Nothing is attached there.
    #[error("there is no namespace {0}")]
    Absent(u32),
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

impl<I: Interrupts> Controller<I> {
    /// Makes a namespace longer, and tells the guest. What is new must read as zeros, and be there already: the next
    /// command may go to it. Nothing happens if it is as long already.
    ///
    /// # Errors
    /// There is no such namespace, it is longer, or `size_bytes` is not whole blocks of every size that it offers.
    pub fn grow(&mut self, nsid: u32, size_bytes: u64) -> Result<(), NamespaceError> {
        if nsid != NSID {
            return Err(NamespaceError::Absent(nsid));
        }
        let config = &mut self.namespace.config;
        let has_bytes = config.size_bytes;
        if size_bytes < has_bytes {
            return Err(NamespaceError::Shrinks { nsid, has_bytes, asked_bytes: size_bytes });
        }
        let grown = NamespaceConfig { size_bytes, ..config.clone() };
        grown.check()?;
        *config = grown;
        if size_bytes > has_bytes {
            self.namespace_changed();
        }
        Ok(())
    }

    /// The guest is to look at a namespace anew.
    pub(crate) fn namespace_changed(&mut self) {
        self.events.namespace_changed = 1;
        if self.features.async_events & async_event::NAMESPACE_ATTRIBUTE != 0 {
            self.note_event(AsyncEvent::NAMESPACE_CHANGED);
        }
    }
}
