//! The versions of the state that a daemon leaves of its clients, for the next daemon.
//!
//! A daemon leaves its own version. It goes on from that and from the version before, so clients survive an upgrade.

use client_socket::keeping::wire;
use nvme_controller::{PREVIOUS_STATE_VERSION, STATE_VERSION};

use crate::front_end::VIRTIO_STATE_VERSION;

/// See [`Live::handover`](api::Live::handover).
pub fn left() -> String {
    with(STATE_VERSION)
}

/// The versions, with this version of controllers' states.
fn with(state_version: u8) -> String {
    format!("{state_version}.{}.{VIRTIO_STATE_VERSION}", wire::VERSION)
}

/// Whether this program goes on where a daemon leaves these versions; says why, if it doesn't.
///
/// # Errors
/// Unknown versions.
pub fn goes_on_with(theirs: &str) -> Result<(), String> {
    let known = [PREVIOUS_STATE_VERSION, STATE_VERSION].map(with);
    if known.iter().any(|known| known == theirs) {
        return Ok(());
    }
    let known = known.join(" and ");
    Err(format!("its clients' state is of version {theirs:?}, and this program only knows {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_gone_on_with() {
        for known in [left(), with(PREVIOUS_STATE_VERSION)] {
            assert_eq!(goes_on_with(&known), Ok(()));
        }
        let (newer, older) = (with(STATE_VERSION + 1), with(PREVIOUS_STATE_VERSION - 1));
        for others in [newer, older, String::new(), "4".into(), format!("{}.1", left()), format!(" {}", left())] {
            assert!(goes_on_with(&others).is_err(), "{others:?}");
        }
    }
}
