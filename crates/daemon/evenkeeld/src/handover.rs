//! What one daemon leaves of its clients and another one goes on with: the versions of it.
//!
//! A daemon leaves what the version before its own has, and goes on with that and its own: so clients go on over an
//! upgrade, and over a downgrade by one version. One that is killed leaves its own.

use client_socket::keeping::wire;
use nvme_controller::{PREVIOUS_STATE_VERSION, STATE_VERSION};

use crate::front_end::VIRTIO_STATE_VERSION;

/// See [`Live::handover`](api::Live::handover).
pub fn left() -> String {
    with(PREVIOUS_STATE_VERSION)
}

/// That, with such a version of controllers' states.
fn with(state_version: u8) -> String {
    format!("{state_version}.{}.{VIRTIO_STATE_VERSION}", wire::VERSION)
}

/// Whether this program goes on where a daemon leaves that; says why, if it doesn't.
///
/// # Errors
/// Another version's.
pub fn goes_on_with(theirs: &str) -> Result<(), String> {
    let known = [PREVIOUS_STATE_VERSION, STATE_VERSION].map(with);
    if known.iter().any(|known| known == theirs) {
        return Ok(());
    }
    let known = known.join(" and ");
    Err(format!("what is known of its clients is of version {theirs:?}, and this program knows {known} alone"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_gone_on_with() {
        assert_eq!(goes_on_with(&left()), Ok(()));
        let newer = with(STATE_VERSION + 1);
        for others in [newer, String::new(), "4".into(), format!("{}.1", left()), format!(" {}", left())] {
            assert!(goes_on_with(&others).is_err(), "{others:?}");
        }
    }
}
