//! Policies over queues of a model, in virtual time.

mod calls;
mod every_policy;
mod fairnvme;
mod full_queues;
mod lpns;
mod random_calls;
mod support;
