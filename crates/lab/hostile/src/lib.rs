//! Attacks a real `evenkeeld` over real sockets, while victims verify their data and are measured.
//!
//! | module | what |
//! | --- | --- |
//! | [`host`] | [`Host`](host::Host), [`Daemon`](host::Daemon): a directory, a configuration with victims and attackers, the process |
//! | [`victim`] | [`Victim`](victim::Victim): verified reads and writes of one tenant, over restarts of the daemon if need be |
//! | `vm` | a victim whose virtqueue outlives the daemon |
//! | [`watch`] | asks the API and attaches new clients all the time |
//! | [`attacks`] | [`ATTACKS`](attacks::ATTACKS): all attacks, each a function of a [`Field`](attacks::Field) |
//! | [`siege`] | one attack beside the victims, and the [`Report`](siege::Report) on it |
//! | [`soak`] | attacks, kills and victims together for a long time |
//! | [`changes`] | adds, changes and removes disks, namespaces, drives and policies at random, and kills the daemon, while victims verify |
//! | [`fuse`] | a file whose file system never answers |
//!
//! Attackers are clients of [`test_clients`], which send anything.
//!
//! An attacker holds its means (descriptors, mounts, connections) until it is told to stop. So all that the daemon does
//! meanwhile, ending included, it does under attack.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures real processes, and waits for them")]

pub mod attacks;
pub mod changes;
pub mod fuse;
pub mod host;
pub mod siege;
pub mod soak;
pub mod victim;
mod vm;
pub mod watch;
