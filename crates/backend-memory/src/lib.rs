//! Back ends without a drive: null, memory and the drive model in real time.

#![forbid(unsafe_code)]
