//! A vfio-user server.

#![forbid(unsafe_code)]
