//! Reads the controller state of version 4, which the previous version of the daemon leaves when a signal ends it.
//!
//! Version 4 had the heads of completion queues too, which only their doorbells tell.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::admin::ErrorLog;
use crate::queues::QIDS;
use crate::state::{self, ControllerState, STATE_VERSION, magic};

/// The older version of the state that this program reads.
pub const PREVIOUS_STATE_VERSION: u8 = STATE_VERSION - 1;

/// Both versions have the same layout up to here.
const SAME_BYTES: usize = offset_of!(ControllerState, cqs);
/// Length of a state in version 4.
pub(crate) const BYTES: usize = SAME_BYTES + size_of::<Rest>();

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct CqState {
    iova: u64,
    entries: u16,
    vector: u16,
    head: u16,
    tail: u16,
    interrupts: u8,
    phase: u8,
    reserved: [u8; 6],
}

/// What follows the part that both versions share.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Rest {
    cqs: [CqState; QIDS],
    errors: ErrorLog,
}

/// Converts a state of version 4 to this version.
pub(crate) fn read(bytes: &[u8; BYTES]) -> ControllerState {
    let (same, rest) = bytes.split_at(SAME_BYTES);
    let Rest { cqs, errors } = bytemuck::pod_read_unaligned(rest);
    let mut state = ControllerState { errors, ..ControllerState::zeroed() };
    bytemuck::bytes_of_mut(&mut state)[..SAME_BYTES].copy_from_slice(same);
    for (now, before) in state.cqs.iter_mut().zip(cqs) {
        let CqState { iova, entries, vector, head: _, tail, interrupts, phase, reserved: _ } = before;
        *now = state::CqState { iova, entries, vector, tail, interrupts, phase };
    }
    state.magic = magic(STATE_VERSION);
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_and_errors_are_found_behind_the_shared_part() {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(bytemuck::bytes_of(&magic(PREVIOUS_STATE_VERSION)));
        let mut rest = Rest::zeroed();
        rest.cqs[3] = CqState { iova: 0x7000, entries: 64, vector: 2, head: 9, tail: 11, phase: 1, ..rest.cqs[3] };
        bytes[SAME_BYTES..].copy_from_slice(bytemuck::bytes_of(&rest));
        let state = read(&bytes);
        let found = state.cqs[3];
        assert_eq!((found.iova, found.entries, found.vector, found.tail, found.phase), (0x7000, 64, 2, 11, 1));
        assert_eq!(state.magic, magic(STATE_VERSION));
        assert_eq!(bytemuck::bytes_of(&state.cqs[4]), bytemuck::bytes_of(&state::CqState::zeroed()));
    }
}
