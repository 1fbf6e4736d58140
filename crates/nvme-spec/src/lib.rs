//! Wire layouts of NVMe 2.0.

#![forbid(unsafe_code)]
