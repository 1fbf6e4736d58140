//! The eventfds behind a controller's interrupts.

use std::os::fd::OwnedFd;

use eventfd::EventFd;
use nvme_controller::Interrupts;

use super::{INTX, MSIX};

/// The eventfds that a client gave for a device's interrupts.
#[derive(Debug, Default)]
pub struct EventFds {
    intx: Option<EventFd>,
    msix: Vec<Option<EventFd>>,
    /// The client kept one from being signalled: none is any more.
    pub(super) held_up: bool,
}

impl EventFds {
    pub(super) fn has_msix(&self) -> bool {
        self.msix.iter().any(Option::is_some)
    }

    pub(super) fn set(&mut self, index: u32, vector: u32, fd: Option<OwnedFd>) {
        let fd = fd.map(EventFd::new);
        match index {
            INTX => self.intx = fd,
            MSIX => {
                let at = vector as usize;
                if at >= self.msix.len() {
                    self.msix.resize_with(at + 1, || None);
                }
                self.msix[at] = fd;
            }
            _ => {}
        }
    }
}

impl Interrupts for EventFds {
    fn raise(&mut self, vector: u16) {
        let msix = self.msix.get(usize::from(vector)).and_then(Option::as_ref);
        if let Some(fd) = msix.or(self.intx.as_ref()).filter(|_| !self.held_up) {
            self.held_up = !fd.raise();
        }
    }

    fn has_pin(&self) -> bool {
        self.intx.is_some()
    }
}
