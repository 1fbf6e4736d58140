//! A load generator: fio-style jobs over a real NVMe client.

#![forbid(unsafe_code)]
