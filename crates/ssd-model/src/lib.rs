//! A drive's timing, pure: submit(now), poll(now), next_event().

#![forbid(unsafe_code)]
