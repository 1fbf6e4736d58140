//! One poll iteration, and the probe that measures it.

#![forbid(unsafe_code)]
