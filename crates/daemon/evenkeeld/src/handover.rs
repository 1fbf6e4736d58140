//! What one daemon leaves of its clients and another one goes on with: the versions of it.

use client_socket::keeping::wire;
use nvme_controller::STATE_VERSION;

use crate::front_end::VIRTIO_STATE_VERSION;

/// See [`Live::handover`](api::Live::handover).
pub fn left() -> String {
    format!("{STATE_VERSION}.{}.{VIRTIO_STATE_VERSION}", wire::VERSION)
}

/// Whether this program goes on where a daemon leaves that; says why, if it doesn't.
///
/// # Errors
/// Another version's.
pub fn goes_on_with(theirs: &str) -> Result<(), String> {
    let known = left();
    if theirs == known {
        return Ok(());
    }
    Err(format!("what is known of its clients is of version {theirs:?}, and this program knows {known} alone"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_gone_on_with() {
        assert_eq!(goes_on_with(&left()), Ok(()));
        let newer = format!("{}.{}.{VIRTIO_STATE_VERSION}", STATE_VERSION + 1, wire::VERSION);
        for others in [newer, String::new(), "4".into(), format!("{}.1", left()), format!(" {}", left())] {
            assert!(goes_on_with(&others).is_err(), "{others:?}");
        }
    }
}
