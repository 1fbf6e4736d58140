//! What a tenant can try.

mod descriptors;
mod memory;
mod work;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

pub use work::make_room_for_files;

use crate::host::{APART, BAD, EVIL, LONE};
use test_clients::socket::{is_closed, is_late};

/// Where an attack takes place.
pub struct Field {
    /// Where the daemon's sockets are.
    pub runtime_dir: PathBuf,
    /// A directory for mounts.
    pub scratch: PathBuf,
    /// Set from outside: the attack ends.
    pub stop: Arc<AtomicBool>,
    /// Connections of the attacker's that the daemon closed.
    pub closed: Arc<AtomicU32>,
}

impl Field {
    fn bad(&self) -> PathBuf {
        self.runtime_dir.join(BAD)
    }

    fn evil(&self) -> PathBuf {
        self.runtime_dir.join(EVIL)
    }

    fn apart(&self) -> PathBuf {
        self.runtime_dir.join(APART)
    }

    fn lone(&self) -> PathBuf {
        self.runtime_dir.join(LONE)
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn was_closed(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    /// Keeps what the attack holds until it is told to stop.
    fn hold(&self) {
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes what came of messages that the daemon may answer by closing the connection, or never. Whatever fails once
    /// the attack is to stop is excused.
    fn endured(&self, result: io::Result<()>) -> io::Result<()> {
        match result {
            _ if !self.goes_on() => Ok(()),
            Err(error) if is_closed(&error) => {
                self.was_closed();
                Ok(())
            }
            Err(error) if is_late(&error) => Ok(()),
            result => result,
        }
    }
}

/// How an attack went, as the attacker saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// What it found that must not be.
    Done(Vec<String>),
    /// It can't be tried here.
    Skipped(String),
}

/// One thing to try.
#[derive(Clone, Copy)]
pub struct Attack {
    /// In reports and as a test's name.
    pub name: &'static str,
    run: fn(&Field) -> io::Result<Outcome>,
}

impl Attack {
    /// Attacks until told to stop, holding what it attacks with.
    ///
    /// # Errors
    /// The attack could not be made.
    pub fn run(&self, field: &Field) -> io::Result<Outcome> {
        let result = (self.run)(field);
        match result {
            Err(_) if !field.goes_on() => Ok(Outcome::Done(Vec::new())),
            Err(error) if is_closed(&error) || is_late(&error) => {
                field.endured(Err(error))?;
                field.hold();
                Ok(Outcome::Done(Vec::new()))
            }
            result => {
                field.hold();
                result
            }
        }
    }
}

/// The attack with this name.
pub fn named(name: &str) -> Option<&'static Attack> {
    ATTACKS.iter().find(|attack| attack.name == name)
}

/// All of them.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "fuse_file_as_memory", run: descriptors::fuse_file_as_memory },
    Attack { name: "fuse_file_as_interrupt", run: descriptors::fuse_file_as_interrupt },
    Attack { name: "fuse_file_with_a_message_that_takes_none", run: descriptors::fuse_file_unasked },
    Attack { name: "fuse_file_as_memory_table", run: descriptors::fuse_file_as_memory_table },
    Attack { name: "fuse_file_as_call", run: descriptors::fuse_file_as_call },
    Attack { name: "a_device_as_memory", run: descriptors::device_as_memory },
    Attack { name: "an_interrupt_that_blocks", run: descriptors::interrupt_that_blocks },
    Attack { name: "a_call_that_blocks", run: descriptors::call_that_blocks },
    Attack { name: "lingering_sockets_for_who_refuses", run: descriptors::lingering_sockets },
    Attack { name: "lingering_sockets_in_sockets_of_messages", run: descriptors::lingering_in_messages },
    Attack { name: "all_of_the_address_space", run: memory::address_space },
    Attack { name: "sparse_memory_filled_by_reads", run: memory::sparse_memory_filled },
    Attack { name: "memory_punched_under_doorbells", run: memory::punched_under_doorbells },
    Attack { name: "memory_punched_under_shadow_doorbells", run: memory::punched_under_shadow_doorbells },
    Attack { name: "memory_truncated_under_writes", run: memory::truncated_under_writes },
    Attack { name: "memory_on_a_full_tmpfs", run: memory::full_tmpfs },
    Attack { name: "memory_tables_replaced_under_reads", run: memory::tables_replaced },
    Attack { name: "large_log_pages", run: work::log_pages },
    Attack { name: "empty_scatter_lists", run: work::empty_scatter_lists },
    Attack { name: "long_indirect_chains", run: work::indirect_chains },
    Attack { name: "register_reads_without_reading", run: work::unread_replies },
    Attack { name: "maps_and_unmaps", run: work::maps_and_unmaps },
    Attack { name: "clients_that_come_and_go", run: work::come_and_go },
];
