//! Harnesses for everything that a guest, its VMM, a drive or an image's maker can write, each with an oracle.
//!
//! | module | what is fuzzed | what must hold |
//! | --- | --- | --- |
//! | [`messages`] | vfio-user messages and file descriptors, in pieces, to a device that answers wrongly at times | requests are in bounds, every message is answered once and in order, output is bounded, no descriptor leaks |
//! | [`front_end`] | vhost-user messages and file descriptors, in pieces | the device is told only what is sound and in order, what ought to be answered is |
//! | [`registers`] | BARs, configuration space, resets, DMA maps over garbage rings | the registers keep their invariants, and a reset always leads back to a working controller |
//! | [`commands`] | programs of admin and I/O commands over a small guest memory | a reference model of the tenant's disk, its memory and its completions |
//! | [`tenants`] | several controllers behind one poller and policy | every command comes back to the queue that it came from, nobody starves |
//! | [`daemon`] | two tenants of the whole daemon, over both protocols, on real sockets | whatever the one does, the other one's data are right, and the one is served again |
//! | [`block_device`] | descriptors of a block device's requests, and tags that the kernel hands over at any time | a model of the tags, each descriptor's exact command or error, one answer for each |
//! | [`drive`] | registers, completions and memory of an NVMe controller that lies to our initiator | nothing panics or hangs, each command ends once, none that is not in flight |
//! | [`images`] | an image file of any bytes, and a sound qcow2 image with some bytes changed | nothing panics; what is read is what a second reader of the specification finds |
//! | [`keeper`] | a client's bytes and a daemon's packets, between which a device is kept, saved and gone on with | a model of the protocol: each message whole, told once or again, kept ones in order, no descriptor held without reason |
//! | [`pieces`] | the file of thin disks' maps: any bytes, and a sound file with some bytes changed | nothing panics; an accepted file is accepted again, also after a batch |
//! | [`virtqueues`] | virtio-blk requests, good and bad, kills and recoveries, over a small guest memory | a model of the rings, of guest memory, of the drive and of what is in flight |
//!
//! A harness takes bytes and panics when something does not hold. The fuzzer feeds it what it finds; the
//! tests feed it numbered random inputs, so that a seed can be replayed, and the inputs in `corpus/`, on any toolchain.
//!
//! Sockets are in [`daemon`] alone; both servers are tested with hostile clients of their own.

#![forbid(unsafe_code)]

pub mod block_device;
pub mod commands;
pub mod daemon;
mod descriptors;
pub mod drive;
pub mod front_end;
pub mod images;
pub mod keeper;
pub mod messages;
pub mod pieces;
pub mod registers;
#[cfg(test)]
mod seeds;
pub mod tenants;
pub mod virtqueues;

/// Runs one input; panics when something does not hold.
pub type Harness = fn(&[u8]);

/// Each fuzz target's name and harness.
pub const TARGETS: [(&str, Harness); 12] = [
    ("commands", commands::run),
    ("daemon", daemon::run),
    ("drive", drive::run),
    ("images", images::run),
    ("keeper", keeper::run),
    ("pieces", pieces::run),
    ("registers", registers::run),
    ("tenants", tenants::run),
    ("ublk", block_device::run),
    ("vfio_user_messages", messages::run),
    ("vhost_user_messages", front_end::run),
    ("virtqueues", virtqueues::run),
];
