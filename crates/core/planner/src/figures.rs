//! A drive's arithmetic: what its parts take for a command, and what policies must know of it.

use io_model::Nanos;
use policy::{COST_UNIT, Cost, Curve, DriveFigures, FairConfig, LpnsConfig};
use ssd_model::{Profile, Writes};

use crate::Tenant;

/// What R and L_h are of.
const PAGE_BYTES: u64 = 4_096;

/// The host's part of a lone command's latency: 37.5 % of 11.9 µs (LPNS Table 1). A drive model is without it.
const HOST_NS: u64 = 4_460;

/// The host's part of a batch of a pool's maps: 16 µs were measured, and 20 with data of 64 KiB (decision 0038).
const MAP_HOST_NS: u64 = 20_000;

/// Ω for a drive that nobody chose one for: the PM1735's, the flash drive of LPNS §5.5.
const OMEGA: f64 = 100.0;

/// Below this, a drive that is faster than its profile would idle between two commands.
const IN_FLIGHT_MIN: f64 = 8.0;

/// FairNVMe's upper threshold on the P3520 (3500 µs) over that drive's lone read (100 µs).
const SATURATION_FACTOR: u64 = 35;

/// What policies must know about a drive.
pub fn drive_figures(profile: &Profile) -> DriveFigures {
    DriveFigures {
        lpns: lpns(profile),
        fair: fair(profile),
        max_in_flight: saturating_in_flight(profile),
        is_assumed: false,
    }
}

/// The drive's figures for `lpns`: as printed where the paper chose them, else what follows from the profile. R is the
/// rate of 4 KiB random writes that can go on for ever, L_h a lone read or write, whichever is slower, with the
/// host's part.
fn lpns(profile: &Profile) -> LpnsConfig {
    match &*profile.name {
        "p5800x" => return LpnsConfig::p5800x(),
        "pm1735" => return LpnsConfig::pm1735(),
        _ => {}
    }
    let (writes, reads) = (write_iops(profile), read_iops(profile));
    // As many commands as keep every unit busy several times over, in the range of the two drives above.
    let saturation_factor = (256 / profile.units.max(1)).clamp(8, 32);
    LpnsConfig {
        omega: OMEGA,
        r_iops: writes,
        l_h: Nanos(lone_read_ns(profile).max(lone_write_ns(profile))),
        parallelism: profile.units.clamp(1, 65_536),
        saturation_factor,
        floor_in_flight: (profile.units / 32).max(1),
        cost: cost(writes, reads),
        ..LpnsConfig::p5800x()
    }
}

/// The drive's figures for `fair`: printed or chosen by its authors' rule where there are any, else by the same rule.
fn fair(profile: &Profile) -> FairConfig {
    match &*profile.name {
        "p5800x" => FairConfig::p5800x(),
        "pm1735" => FairConfig::pm1735(),
        "p3520" => FairConfig::p3520(),
        _ => {
            let alone_ns = lone_read_ns(profile);
            let cost = cost(write_iops(profile), read_iops(profile));
            let saturated = Nanos(alone_ns.saturating_mul(SATURATION_FACTOR));
            FairConfig::for_drive(Nanos(alone_ns), saturated, profile.units.clamp(1, 65_536), cost)
        }
    }
}

/// The number of 4 KiB commands that keep the drive 9/10 busy. Commands that wait elsewhere then lose nothing, and
/// there are few enough in the drive that their order matters.
///
/// A drive of n units to which W reads at random addresses go serves W / (W + n - 1) of what the units can (a closed
/// network of like stations); W follows, with those reads that are in the drive's other stages meanwhile.
fn saturating_in_flight(profile: &Profile) -> u32 {
    const BUSY: f64 = 0.9;
    let units = f64::from(profile.units.max(1));
    let reads = read_iops(profile);
    let part = BUSY * reads * profile.read_ns.max(1) as f64 / 1e9 / units;
    let elsewhere = reads * (profile.controller_ns + profile.pipeline_ns) as f64 / 1e9;
    let in_flight = (units - 1.0) * part / (1.0 - part) + elsewhere;
    in_flight.round().clamp(IN_FLIGHT_MIN, 65_536.0) as u32
}

/// A read in writes of 4 KiB.
fn cost(write_iops: f64, read_iops: f64) -> Cost {
    let read = (f64::from(COST_UNIT) * write_iops / read_iops).round().clamp(1.0, f64::from(COST_UNIT) * 16.0);
    Cost { read: Curve::linear(read as u32), ..Cost::default() }
}

/// The time for these bytes over a link of `mb_s` MB/s (bytes per µs), as the drive model computes it.
pub(crate) fn transfer_ns(mb_s: u32, len_bytes: u64) -> f64 {
    (len_bytes * 1_000 / u64::from(mb_s.max(1))) as f64
}

fn lone_read_ns(profile: &Profile) -> u64 {
    let channel = match profile.writes {
        Writes::Programmed { nand, .. } => transfer_ns(nand.channel_mb_s, PAGE_BYTES),
        _ => 0.0,
    };
    let transfers = channel + transfer_ns(profile.link_read_mb_s, PAGE_BYTES);
    HOST_NS + profile.controller_ns + profile.pipeline_ns + profile.read_ns + transfers as u64
}

/// What a batch of a pool's maps takes until it is durable. It is two writes, since a page goes before its header, as
/// if to this drive.
pub fn map_write(profile: &Profile) -> Nanos {
    Nanos(MAP_HOST_NS + 2 * lone_write_ns(profile))
}

fn lone_write_ns(profile: &Profile) -> u64 {
    let medium = match profile.writes {
        Writes::InPlace { write_ns, ack_ns } => write_ns + ack_ns + profile.pipeline_ns,
        Writes::Buffered { ack_ns, .. } | Writes::Programmed { ack_ns, .. } => ack_ns,
    };
    HOST_NS + profile.controller_ns + medium + transfer_ns(profile.link_write_mb_s, PAGE_BYTES) as u64
}

/// 4 KiB reads per second, at most.
fn read_iops(profile: &Profile) -> f64 {
    1e9 / read_busy_ns(profile, PAGE_BYTES)
}

/// 4 KiB random writes per second that can go on for ever.
fn write_iops(profile: &Profile) -> f64 {
    1e9 / write_busy_ns(profile, PAGE_BYTES)
}

/// How long a read keeps the drive's slowest part for it busy, divided among parts that work side by side.
fn read_busy_ns(profile: &Profile, len_bytes: u64) -> f64 {
    let medium = medium_ns(profile, profile.read_ns, len_bytes);
    medium.max(transfer_ns(profile.link_read_mb_s, len_bytes)).max(profile.controller_ns as f64).max(1.0)
}

/// How long a write keeps the drive busy, once buffers are full.
fn write_busy_ns(profile: &Profile, len_bytes: u64) -> f64 {
    let medium = match profile.writes {
        Writes::InPlace { write_ns, .. } => medium_ns(profile, write_ns, len_bytes),
        Writes::Buffered { drain_ns, .. } => {
            drain_ns as f64 + transfer_ns(profile.link_write_mb_s, len_bytes.saturating_sub(PAGE_BYTES))
        }
        Writes::Programmed { nand, .. } => {
            let pages = len_bytes as f64 / nand.page_bytes.max(1) as f64;
            nand.program_ns as f64 * profile.write_amplification() * pages / f64::from(profile.units.max(1))
        }
    };
    medium.max(transfer_ns(profile.link_write_mb_s, len_bytes)).max(profile.controller_ns as f64).max(1.0)
}

/// A command's first and further pages in one of the units.
fn medium_ns(profile: &Profile, first_ns: u64, len_bytes: u64) -> f64 {
    let further = (len_bytes as f64 / PAGE_BYTES as f64 - 1.0).max(0.0) * profile.further_ns as f64;
    (first_ns as f64 + further) / f64::from(profile.units.max(1))
}

/// How long a mean command of a tenant keeps the drive's slowest part for it busy, divided among parts that work side
/// by side. For comparing tenants; what they get is the forecast's.
pub(crate) fn busy_ns(profile: &Profile, tenant: &Tenant) -> f64 {
    let reads = tenant.read_share.clamp(0.0, 1.0);
    let mean = |cost: fn(&Profile, u64) -> f64| -> f64 {
        tenant.sizes.iter().map(|size| size.part * cost(profile, size.len_bytes)).sum()
    };
    reads * mean(read_busy_ns) + (1.0 - reads) * mean(write_busy_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_wide_enough_and_no_wider() {
        let window = |drive: &str| saturating_in_flight(&Profile::by_name(drive).expect("built in"));
        assert_eq!((window("p5800x"), window("pm1735"), window("p3520")), (45, 100, 72));
    }
}
