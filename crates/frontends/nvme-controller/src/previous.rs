//! A state as the version before this one has it: so a daemon goes on where an older one ended, and an older one, by
//! one version, where this one does.
//!
//! Version 4 had completion queues' heads, which only their doorbells tell.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::admin::ErrorLog;
use crate::queues::QIDS;
use crate::state::{self, ControllerState, STATE_VERSION, magic};

/// Which it is.
pub const PREVIOUS_STATE_VERSION: u8 = STATE_VERSION - 1;

/// Up to here it is the same.
const SAME_BYTES: usize = offset_of!(ControllerState, cqs);
/// Its length.
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

/// What then follows.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Rest {
    cqs: [CqState; QIDS],
    errors: ErrorLog,
}

/// What is written there, in this version.
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

/// A state, in that version.
pub(crate) fn write(state: &ControllerState) -> [u8; BYTES] {
    let mut rest = Rest { errors: state.errors, ..Rest::zeroed() };
    for (before, now) in rest.cqs.iter_mut().zip(&state.cqs) {
        let state::CqState { iova, entries, vector, tail, interrupts, phase } = *now;
        *before = CqState { iova, entries, vector, head: tail, tail, interrupts, phase, reserved: [0; 6] };
    }
    let same = ControllerState { magic: magic(PREVIOUS_STATE_VERSION), ..*state };
    let mut bytes = [0; BYTES];
    bytes[..SAME_BYTES].copy_from_slice(&bytemuck::bytes_of(&same)[..SAME_BYTES]);
    bytes[SAME_BYTES..].copy_from_slice(bytemuck::bytes_of(&rest));
    bytes
}
