//! The configuration file: what an operator wrote, checked.

#![forbid(unsafe_code)]
