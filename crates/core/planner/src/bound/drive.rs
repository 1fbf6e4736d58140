//! The longest time with the drive, given all that may be in it.

use io_model::Op;
use policy::{COST_UNIT, Class, Cost, PolicyConfig};
use ssd_model::{Placement, Profile, Writes};

use super::turns::{costs, fair_window};
use crate::figures::transfer_ns;
use crate::{Load, Tenant};

const BLOCK_BYTES: u64 = 4096;

/// One command in this many may find more ahead of it at its unit.
const ONE_IN: f64 = 1e9;

/// All that may be with the drive at a time.
pub(super) struct Crowd {
    /// In reference commands; `None`: only the tenants' own depths limit it.
    cost_in_flight: Option<f64>,
    cost: Cost,
    /// By tenant: commands; `None`: any number.
    depths: Vec<Option<f64>>,
}

impl Crowd {
    pub(super) fn new(policy: &PolicyConfig, tenants: &[Tenant]) -> Self {
        let depth = |tenant: &Tenant| match tenant.load {
            Load::Closed { depth } => Some(f64::from(depth)),
            Load::Open { .. } => None,
        };
        let mut depths: Vec<Option<f64>> = tenants.iter().map(depth).collect();
        let mut cost = Cost::default();
        let dearest = |cost: &Cost| tenants.iter().map(|tenant| costs(cost, tenant).0).fold(0.0, f64::max);
        let cost_in_flight = match policy {
            PolicyConfig::Wrr(config) | PolicyConfig::Drr(config) => {
                Some(f64::from(config.max_in_flight) + dearest(&cost))
            }
            PolicyConfig::Fair(config) => {
                cost = config.cost;
                // With fewer than two closed loads a tenant may be alone for an epoch, and then has no window.
                let contended = depths.iter().flatten().count() >= 2;
                contended.then(|| fair_window(config) + dearest(&cost))
            }
            PolicyConfig::Lpns(config) => {
                cost = config.cost;
                let guaranteed = |tenant: &Tenant| matches!(tenant.class, Class::Guaranteed { .. });
                // The asking tenant is guaranteed and has a closed load, so the throttle is always in force.
                let ceiling = super::lpns_ceiling(config, tenants);
                let best_effort = tenants.iter().filter(|tenant| !guaranteed(tenant));
                let mut all = Some(0.0);
                if best_effort.count() > 0 {
                    all = Some(ceiling + dearest(&cost));
                }
                for (tenant, depth) in tenants.iter().zip(&mut depths) {
                    if guaranteed(tenant) {
                        let (most, _) = costs(&cost, tenant);
                        let limit = super::lpns_limit(config, tenants) + most;
                        let own = depth.map_or(limit, |depth| (depth * most).min(limit));
                        all = all.map(|all| all + own);
                    }
                }
                all
            }
            _ => None,
        };
        Self { cost_in_flight, cost, depths }
    }

    /// The most of something, over all that may be in flight; `of` tells how much a command has of it.
    fn most(&self, tenants: &[Tenant], of: impl Fn(&Tenant, Op, u64) -> f64) -> Option<f64> {
        let by_depth = tenants.iter().zip(&self.depths).map(|(tenant, depth)| {
            let each = commands(tenant).map(|(op, len)| of(tenant, op, len)).fold(0.0, f64::max);
            if each == 0.0 { Some(0.0) } else { depth.map(|depth| depth * each) }
        });
        let by_depth: Option<f64> = by_depth.sum();
        // Those that have most of it for what they cost.
        let by_cost = self.cost_in_flight.map(|cost| {
            let worth = |tenant: &Tenant, op, len| of(tenant, op, len) / self.cost_of(op, len);
            let all = tenants.iter().flat_map(|tenant| commands(tenant).map(move |(op, len)| (tenant, op, len)));
            cost * all.map(|(tenant, op, len)| worth(tenant, op, len)).fold(0.0, f64::max)
        });
        match (by_depth, by_cost) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn cost_of(&self, op: Op, len_bytes: u64) -> f64 {
        f64::from(self.cost.of(op, len_bytes)) / f64::from(COST_UNIT)
    }

    /// Commands in flight at a tenant's poller.
    pub(super) fn at_poller(&self, policy: &PolicyConfig, tenants: &[Tenant], at: usize) -> Option<f64> {
        if super::own_poller(policy, &tenants[at]) {
            return self.depths[at];
        }
        self.most(tenants, |_, _, _| 1.0)
    }
}

/// The dearest of each kind, over all tenants.
pub(super) struct Kinds {
    /// A piece's time at a unit: its first 4 KiB, every further 4 KiB, and all of it.
    first_ns: f64,
    further_ns: f64,
    piece_ns: f64,
    page_ns: f64,
    channel_ns: f64,
    pages: f64,
    reads: bool,
    writes: bool,
}

fn reads(tenant: &Tenant) -> bool {
    tenant.read_share > 0.0
}

fn writes(tenant: &Tenant) -> bool {
    tenant.read_share < 1.0
}

/// The commands that a tenant may send.
fn commands(tenant: &Tenant) -> impl Iterator<Item = (Op, u64)> {
    let ops = [(Op::Read, reads(tenant)), (Op::Write, writes(tenant))].into_iter().filter(|op| op.1);
    ops.flat_map(|(op, _)| tenant.sizes.iter().map(move |size| (op, size.len_bytes)))
}

fn pieces(profile: &Profile, tenant: &Tenant, len_bytes: u64) -> f64 {
    let stripe = profile.stripe_bytes.max(BLOCK_BYTES);
    let least = tenant.sizes.iter().map(|size| size.len_bytes).min().unwrap_or(512).max(512);
    // Lengths that divide a stripe, at multiples of themselves, never straddle one; whole stripes neither.
    if least == len_bytes && (stripe.is_multiple_of(len_bytes) || len_bytes.is_multiple_of(stripe)) {
        len_bytes.div_ceil(stripe) as f64
    } else {
        ((len_bytes + stripe - 512) / stripe + 1) as f64
    }
}

impl Kinds {
    pub(super) fn of(profile: &Profile, tenants: &[Tenant]) -> Self {
        let stripe = profile.stripe_bytes.max(BLOCK_BYTES);
        let longest = tenants.iter().flat_map(|tenant| &tenant.sizes).map(|size| size.len_bytes).max().unwrap_or(0);
        let bytes = longest.min(stripe);
        let further = (bytes.div_ceil(BLOCK_BYTES).max(1) - 1) as f64 * profile.further_ns as f64;
        let mut kinds = Self {
            first_ns: 0.0,
            further_ns: profile.further_ns as f64,
            piece_ns: 0.0,
            page_ns: 0.0,
            channel_ns: 0.0,
            pages: 0.0,
            reads: tenants.iter().any(reads),
            writes: tenants.iter().any(writes),
        };
        let first = match profile.writes {
            Writes::InPlace { write_ns, .. } if kinds.writes => write_ns.max(profile.read_ns),
            _ => profile.read_ns,
        };
        kinds.first_ns = first as f64;
        kinds.piece_ns = first as f64 + further;
        if let Writes::Programmed { nand, buffer_bytes, .. } = profile.writes {
            let page_transfer = transfer_ns(nand.channel_mb_s, nand.page_bytes);
            let transfer = transfer_ns(nand.channel_mb_s, bytes);
            let longest = if kinds.writes { transfer.max(page_transfer) } else { transfer };
            let others = f64::from(profile.units).max(1.0) / f64::from(nand.channels.max(1));
            kinds.channel_ns = (others - 1.0).max(0.0) * longest;
            kinds.first_ns += kinds.channel_ns + transfer_ns(nand.channel_mb_s, BLOCK_BYTES);
            kinds.further_ns += transfer_ns(nand.channel_mb_s, BLOCK_BYTES);
            kinds.piece_ns += transfer + kinds.channel_ns;
            kinds.page_ns = nand.program_ns as f64 + page_transfer + kinds.channel_ns;
            kinds.pages = if kinds.writes { (buffer_bytes / nand.page_bytes.max(1)).max(1) as f64 } else { 0.0 };
        }
        kinds
    }
}

/// Times with the drive.
#[derive(Clone, Copy)]
pub(super) struct Inside {
    /// No command takes longer.
    pub(super) longest_ns: f64,
    /// A lone command's time, of the slowest kind.
    pub(super) lone_ns: f64,
    /// What its busiest part has to do for all that may be in flight.
    pub(super) busiest_ns: f64,
}

/// The longest time of a tenant's command with the drive.
pub(super) fn inside(
    profile: &Profile,
    kinds: &Kinds,
    crowd: &Crowd,
    tenants: &[Tenant],
    tenant: &Tenant,
    hwqs: f64,
) -> Option<Inside> {
    if profile.gc.is_some_and(|gc| gc.enabled) {
        return None;
    }
    let count = crowd.most(tenants, |_, _, _| 1.0)?;
    let window = f64::from(profile.window.max(1));
    let units = f64::from(profile.units.max(1));
    let in_place = matches!(profile.writes, Writes::InPlace { .. });
    let uses_units = |op: Op| op == Op::Read || in_place;
    let all_pieces =
        crowd.most(tenants, |one, op, len| if uses_units(op) { pieces(profile, one, len) } else { 0.0 })?;
    let at_unit = at_one_unit(profile.placement, all_pieces, units);
    let most_pieces = commands(tenant).map(|(_, len)| pieces(profile, tenant, len)).fold(1.0, f64::max);
    let wraps = (most_pieces / units).ceil();
    let die_ns = (at_unit + wraps) * kinds.piece_ns + kinds.pages * kinds.page_ns;
    let unit_work = crowd
        .most(tenants, |one, op, len| if uses_units(op) { unit_work_ns(profile, kinds, one, len) } else { 0.0 })?;
    let on_link =
        |kind: Op, mb_s| crowd.most(tenants, move |_, op, len| if op == kind { transfer_ns(mb_s, len) } else { 0.0 });
    let read_link = on_link(Op::Read, profile.link_read_mb_s)?;
    let write_link = on_link(Op::Write, profile.link_write_mb_s)?;
    let own = |kind: Op, mb_s| {
        commands(tenant).filter(|one| one.0 == kind).map(|one| transfer_ns(mb_s, one.1)).fold(0.0, f64::max)
    };
    let mut longest = 0.0_f64;
    let mut lone = profile.controller_ns as f64 + wraps * kinds.piece_ns + profile.pipeline_ns as f64;
    let mut busiest = read_link.max(write_link).max(unit_work / units);
    if reads(tenant) {
        let after = read_link + own(Op::Read, profile.link_read_mb_s) + profile.pipeline_ns as f64;
        longest = longest.max(die_ns + after);
    }
    if kinds.writes {
        let written = written_ns(profile, kinds, crowd, tenants, die_ns)?;
        busiest = busiest.max(written.work_ns);
        lone += written.ack_ns;
        if writes(tenant) {
            longest = longest.max(write_link + own(Op::Write, profile.link_write_mb_s) + written.longest_ns);
        }
    }
    lone += own(Op::Read, profile.link_read_mb_s).max(own(Op::Write, profile.link_write_mb_s));
    let controller_ns = profile.controller_ns as f64;
    let fetches = count * hwqs.min(count);
    busiest = busiest.max(count * controller_ns);
    // Each window's worth of commands is through when its busiest part is, and the last of them.
    let windows = if count > window { (fetches / window).ceil() } else { 0.0 };
    Some(Inside {
        longest_ns: longest + windows * (lone + busiest) + fetches * controller_ns,
        lone_ns: lone,
        busiest_ns: busiest,
    })
}

/// All of a command's time at units.
fn unit_work_ns(profile: &Profile, kinds: &Kinds, tenant: &Tenant, len_bytes: u64) -> f64 {
    let pieces = pieces(profile, tenant, len_bytes);
    let blocks = len_bytes.div_ceil(BLOCK_BYTES) as f64 + pieces;
    pieces * kinds.first_ns + (blocks - pieces).max(0.0) * kinds.further_ns
}

/// How long writes take behind the link.
struct Written {
    longest_ns: f64,
    /// What everything in flight takes of the buffer or the dies.
    work_ns: f64,
    ack_ns: f64,
}

/// From the link to a write's acknowledgement.
fn written_ns(profile: &Profile, kinds: &Kinds, crowd: &Crowd, tenants: &[Tenant], die_ns: f64) -> Option<Written> {
    let blocks = |len: u64| len.div_ceil(BLOCK_BYTES).max(1) as f64;
    let all = |of: &dyn Fn(u64) -> f64| crowd.most(tenants, |_, op, len| if op == Op::Write { of(len) } else { 0.0 });
    let dearest = |of: &dyn Fn(u64) -> f64| {
        tenants.iter().flat_map(commands).filter(|one| one.0 == Op::Write).map(|one| of(one.1)).fold(0.0, f64::max)
    };
    Some(match profile.writes {
        Writes::InPlace { ack_ns, .. } => {
            let ack_ns = (profile.pipeline_ns + ack_ns) as f64;
            Written { longest_ns: die_ns + ack_ns, work_ns: 0.0, ack_ns }
        }
        Writes::Buffered { ack_ns, drain_ns, .. } => {
            let further_ns = transfer_ns(profile.link_write_mb_s, BLOCK_BYTES);
            let drain = |len: u64| drain_ns as f64 + (blocks(len) - 1.0) * further_ns;
            let work_ns = all(&drain)?;
            Written { longest_ns: work_ns + 2.0 * dearest(&drain) + ack_ns as f64, work_ns, ack_ns: ack_ns as f64 }
        }
        Writes::Programmed { ack_ns, ack_further_ns, nand, .. } => {
            let pages = (all(&|len| blocks(len) * BLOCK_BYTES as f64)? / nand.page_bytes as f64).ceil() + 1.0;
            let page_ns = if kinds.reads {
                die_ns
            } else {
                // Pages alone go round the dies in turn.
                ((kinds.pages / f64::from(profile.units)).ceil() + 1.0) * kinds.page_ns
            };
            let spans = (pages / kinds.pages).ceil() + 1.0;
            let ack_ns = ack_ns as f64 + dearest(&|len| (blocks(len) - 1.0) * ack_further_ns as f64);
            // Dies do pages and reads.
            let reads =
                crowd.most(
                    tenants,
                    |one, op, len| if op == Op::Read { unit_work_ns(profile, kinds, one, len) } else { 0.0 },
                )?;
            let work_ns = (pages * kinds.page_ns + reads) / f64::from(profile.units) + kinds.page_ns;
            Written { longest_ns: spans * page_ns + ack_ns, work_ns, ack_ns }
        }
    })
}

/// The most pieces, of all in flight, that one unit has but for one command in [`ONE_IN`].
fn at_one_unit(placement: Placement, pieces: f64, units: f64) -> f64 {
    if placement == Placement::Pooled {
        return (pieces / units).ceil();
    }
    if units <= 1.0 || pieces <= 1.0 {
        return pieces;
    }
    // How busy the units are with this many pieces at random units (Baskett and Smith, for equal service times).
    let both = pieces + units - 0.5;
    let busy = ((both - (both * both - 2.0 * pieces * units).max(0.0).sqrt()) / units).clamp(0.01, 0.999_9);
    // The tail of the wait for a server with equal times of service falls by e^-decay for each of them.
    let (mut low, mut high) = (1e-6, 50.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if busy * f64::exp_m1(middle) < middle { low = middle } else { high = middle }
    }
    ((ONE_IN.ln() / low).ceil() + 1.0).min(pieces)
}
