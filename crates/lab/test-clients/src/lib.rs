//! Clients of both protocols for tests. They send anything, right or wrong, and share no code with the servers.
//!
//! | module | what |
//! | --- | --- |
//! | [`socket`] | bytes with file descriptors; memory in a file |
//! | [`vfio`], [`vhost`] | the messages of vfio-user and vhost-user, and a connection for each |
//! | [`rings`] | NVMe queues and virtqueues in shared memory, the driver's side |
//! | [`nvme`], [`virtio`] | drivers on a connection, whose memory is a file |

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "clients wait for their server, with a limit")]

pub mod nvme;
pub mod rings;
pub mod socket;
pub mod vfio;
pub mod vhost;
pub mod virtio;

/// The seeds of a random test: that of `EVENKEEL_SEED`, or 1 to `count`. Each is printed when its turn comes.
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let seeds = match std::env::var("EVENKEEL_SEED") {
        Ok(seed) => vec![seed.parse().expect("EVENKEEL_SEED is a decimal number")],
        Err(_) => (1..=count).collect(),
    };
    seeds.into_iter().inspect(|seed| println!("EVENKEEL_SEED={seed}"))
}

/// Numbers as they stand in messages.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// As [`words`], of 64 bits.
pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}
