//! A poller over queues, policies and drives in virtual time.

mod churn;
mod iteration;
mod rest;
