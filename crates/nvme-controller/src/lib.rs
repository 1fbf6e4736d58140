//! A virtual NVMe controller that knows no socket.

#![forbid(unsafe_code)]
