//! An NVMe initiator.
