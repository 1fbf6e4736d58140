//! What one command asks of each part of the drive: moments over a tenant's sizes and alignments.

use ssd_model::{Profile, Writes};

use crate::figures::transfer_ns;
use crate::{Size, Tenant};

const BLOCK_BYTES: u64 = 4096;

/// Alignments looked at for each size, at most.
const MOST_PHASES: u64 = 64;

/// The first two moments of a time of service, ns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Service {
    pub(super) mean_ns: f64,
    pub(super) square: f64,
}

impl Service {
    pub(super) fn fixed(ns: f64) -> Self {
        Self { mean_ns: ns, square: ns * ns }
    }

    /// With so much more each time.
    pub(super) fn after(self, ns: f64) -> Self {
        Self { mean_ns: self.mean_ns + ns, square: self.square + ns * (2.0 * self.mean_ns + ns) }
    }

    pub(super) fn variance(&self) -> f64 {
        (self.square - self.mean_ns * self.mean_ns).max(0.0)
    }

    fn add(&mut self, ns: f64, part: f64) {
        self.mean_ns += ns * part;
        self.square += ns * ns * part;
    }

    fn scale(&mut self, factor: f64) {
        self.mean_ns *= factor;
        self.square *= factor;
    }
}

/// Commands of one kind, reads or writes, of one tenant.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    /// Of the tenant's commands.
    pub(super) part: f64,
    /// Pieces that visit a unit or die each; 0 for writes that a buffer takes.
    pub(super) pieces: f64,
    /// One piece's time there.
    pub(super) piece: Service,
    /// The link's time.
    pub(super) link: Service,
    /// How much of the link's time a unit's work hides.
    pub(super) lead_ns: f64,
    /// A piece's time on its channel (flash).
    pub(super) channel: Service,
    /// The drain's time (plain buffer).
    pub(super) drain: Service,
    /// Room in the buffer, bytes.
    pub(super) room_bytes: f64,
    /// Latency that occupies nothing.
    pub(super) delay_ns: f64,
}

/// Pieces of a command that starts `phase` bytes into a stripe: their lengths, and how many of each.
fn pieces(stripe_bytes: u64, phase: u64, len_bytes: u64) -> [(u64, u64); 3] {
    let first = len_bytes.min(stripe_bytes - phase);
    let rest = len_bytes - first;
    let last = rest % stripe_bytes;
    [(first, 1), (stripe_bytes, rest / stripe_bytes), (last, u64::from(last > 0))]
}

/// What a tenant's reads and writes ask for.
pub(super) fn works(profile: &Profile, tenant: &Tenant) -> [Work; 2] {
    let align = tenant.sizes.iter().map(|size| size.len_bytes).min().unwrap_or(512).max(512);
    let read = Work { part: tenant.read_share, ..work(profile, &tenant.sizes, align, true) };
    let write = Work { part: 1.0 - tenant.read_share, ..work(profile, &tenant.sizes, align, false) };
    [read, write]
}

fn work(profile: &Profile, sizes: &[Size], align: u64, is_read: bool) -> Work {
    let mut work = Work::default();
    for size in sizes {
        let len_bytes = size.len_bytes.max(1);
        let blocks = len_bytes.div_ceil(BLOCK_BYTES);
        let link_mb_s = if is_read { profile.link_read_mb_s } else { profile.link_write_mb_s };
        work.link.add(transfer_ns(link_mb_s, len_bytes), size.part);
        work.lead_ns += size.part * transfer_ns(link_mb_s, len_bytes.min(BLOCK_BYTES));
        work.room_bytes += size.part * (blocks * BLOCK_BYTES) as f64;
        work.delay_ns += size.part * delay_ns(profile, blocks, is_read);
        match profile.writes {
            Writes::Buffered { drain_ns, .. } if !is_read => {
                let further_ns = transfer_ns(profile.link_write_mb_s, BLOCK_BYTES);
                let drain_ns = drain_ns as f64 + (blocks - 1) as f64 * further_ns;
                work.drain.add(drain_ns * profile.write_amplification(), size.part);
            }
            Writes::Programmed { .. } if !is_read => {}
            _ => add_pieces(&mut work, profile, len_bytes, align, size.part, is_read),
        }
    }
    if work.pieces > 0.0 {
        // Sums over pieces become means over them.
        work.piece.scale(1.0 / work.pieces);
        work.channel.scale(1.0 / work.pieces);
    }
    work
}

fn add_pieces(work: &mut Work, profile: &Profile, len_bytes: u64, align: u64, part: f64, is_read: bool) {
    let stripe_bytes = profile.stripe_bytes.max(BLOCK_BYTES);
    let first_ns = match profile.writes {
        Writes::InPlace { write_ns, .. } if !is_read => write_ns,
        _ => profile.read_ns,
    };
    let channel_mb_s = match profile.writes {
        Writes::Programmed { nand, .. } => Some(nand.channel_mb_s),
        _ => None,
    };
    let step = gcd(align, stripe_bytes);
    let phases = (stripe_bytes / step).min(MOST_PHASES);
    let step = stripe_bytes / phases / step * step;
    for phase in 0..phases {
        for (piece_bytes, count) in pieces(stripe_bytes, phase * step, len_bytes) {
            if count == 0 {
                continue;
            }
            let part = part * count as f64 / phases as f64;
            let further = piece_bytes.div_ceil(BLOCK_BYTES) - 1;
            let array_ns = (first_ns + further * profile.further_ns) as f64;
            let channel_ns = channel_mb_s.map_or(0.0, |mb_s| transfer_ns(mb_s, piece_bytes));
            work.pieces += part;
            work.piece.add(array_ns + channel_ns, part);
            work.channel.add(channel_ns, part);
        }
    }
}

fn delay_ns(profile: &Profile, blocks: u64, is_read: bool) -> f64 {
    let ns = match profile.writes {
        _ if is_read => profile.pipeline_ns,
        Writes::InPlace { ack_ns, .. } => profile.pipeline_ns + ack_ns,
        Writes::Buffered { ack_ns, .. } => ack_ns,
        Writes::Programmed { ack_ns, ack_further_ns, .. } => ack_ns + (blocks - 1) * ack_further_ns,
    };
    ns as f64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
