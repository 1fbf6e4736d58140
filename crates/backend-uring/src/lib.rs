//! Files and block devices through io_uring.
