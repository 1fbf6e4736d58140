//! Configuration files: what they mean, and what is wrong with them.

mod bad_configs;
mod examples;
mod layouts;
mod messages;
mod mutate;
mod mutations;
mod plans;
mod seeds;
mod summary;
