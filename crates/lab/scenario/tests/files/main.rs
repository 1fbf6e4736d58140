//! Scenario files: what they mean, and what is wrong with them.

mod bad_scenarios;
mod examples;
#[path = "../../../../daemon/config/tests/files/messages.rs"]
mod messages;
#[path = "../../../../daemon/config/tests/files/mutate.rs"]
mod mutate;
mod mutations;
#[path = "../../../../daemon/config/tests/files/seeds.rs"]
mod seeds;
