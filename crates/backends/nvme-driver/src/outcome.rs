//! How a command ended, in everybody's words.

use io_model::{DeviceError, Outcome};
use nvme_spec::Status;

/// Status code type of media and data integrity errors.
const MEDIA: u8 = 2;

/// The outcome of a completion.
pub fn outcome(status: Status) -> Outcome {
    if status.is_success() {
        return Ok(());
    }
    let bare = Status::new(status.sct(), status.sc());
    Err(match bare {
        Status::LBA_OUT_OF_RANGE => DeviceError::OutOfRange,
        Status::CAPACITY_EXCEEDED => DeviceError::NoSpace,
        Status::DATA_TRANSFER_ERROR => DeviceError::Memory,
        Status::INVALID_OPCODE | Status::INVALID_FIELD | Status::NAMESPACE_WRITE_PROTECTED => DeviceError::Unsupported,
        _ if bare.sct() == MEDIA => DeviceError::Medium,
        // An internal error that a retry does not mend counts as one of the medium: the common outcomes have no closer
        // one.
        Status::INTERNAL_ERROR if status.0 & Status::SUCCESS.dnr().0 != 0 => DeviceError::Medium,
        _ => DeviceError::Gone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_status_has_its_outcome() {
        for (status, expected) in [
            (Status::SUCCESS, Ok(())),
            (Status::new(2, 0x81), Err(DeviceError::Medium)),
            (Status::new(2, 0x80).dnr(), Err(DeviceError::Medium)),
            (Status::LBA_OUT_OF_RANGE.dnr(), Err(DeviceError::OutOfRange)),
            (Status::INVALID_OPCODE.dnr(), Err(DeviceError::Unsupported)),
            (Status::INTERNAL_ERROR, Err(DeviceError::Gone)),
            (Status::INTERNAL_ERROR.dnr(), Err(DeviceError::Medium)),
            (Status::ABORTED_SQ_DELETION, Err(DeviceError::Gone)),
            (Status::NAMESPACE_NOT_READY, Err(DeviceError::Gone)),
        ] {
            assert_eq!(outcome(status), expected, "{status:?}");
        }
    }
}
