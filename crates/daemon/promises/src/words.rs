//! Demands and changes as an operator would say them.

use io_model::QueuePriority;
use io_model::units::{Bandwidth, Rate, Size};
use planner::{Change, FirstWrites, FloorForecast, FloorObstacle, Load, Setting, Tenant};

/// `4KiB reads, 1 at a time`.
pub fn demand(tenant: &Tenant) -> String {
    let lengths = || tenant.sizes.iter().map(|size| size.len_bytes);
    let [least, most] = [lengths().min(), lengths().max()].map(|bytes| Size(bytes.unwrap_or(0)));
    let sizes = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let kind = match tenant.read_share {
        share if share >= 1.0 => " reads".to_owned(),
        share if share <= 0.0 => " writes".to_owned(),
        share => format!(", {:.0} % reads", share * 100.0),
    };
    let load = match tenant.load {
        Load::Closed { depth } => format!("{depth} at a time"),
        Load::Open { rate_iops } => format!("{} a second", Rate(rate_iops.round() as u64)),
    };
    let first = tenant.first_writes.map(|first| {
        let writes = if (0.0..=0.0).contains(&tenant.read_share) { "" } else { ", writes" };
        format!("{writes}, of which first writes {}", first_writes(&first))
    });
    format!("{sizes}{kind}{}, {load}", first.unwrap_or_default())
}

/// Their part of the writes, and whether pieces are copied for them.
fn first_writes(first: &FirstWrites) -> String {
    let copied = if first.are_shared { ", copied" } else { "" };
    format!("{} %{copied}", (first.share * 10_000.0).round() / 100.0)
}

/// Why a floor will be kept or not. No full stop.
pub fn floor(floor: &FloorForecast, tenant: &Tenant) -> String {
    let (is_bytes, per_mib) = (tenant.floor.ios_per_sec == 0, tenant.mean_len_bytes() / f64::from(1 << 20));
    let rate = |iops: f64| match is_bytes {
        true => Bandwidth::from_mib((iops * per_mib).round() as u64).to_string(),
        false => Rate(in_digits(iops.round(), 3)).to_string(),
    };
    let commands = |depth: u32| match depth {
        1 => "one command at a time".to_owned(),
        depth => format!("{depth} commands at a time"),
    };
    let got = rate(floor.got_iops);
    let asked = rate(floor.asked_iops) + if is_bytes { "" } else { " commands a second" };
    match floor.obstacle {
        FloorObstacle::None => format!("{asked} fit beside all other promises"),
        FloorObstacle::Limits => format!("its own limits allow {got} of {asked}"),
        FloorObstacle::Depth { depth, alone_iops } => {
            let alone = rate(alone_iops);
            format!("it reaches {alone} of {asked} with {}, even alone on the drive", commands(depth))
        }
        FloorObstacle::DepthBeside { depth } => {
            format!("it reaches {got} of {asked} with {} beside the other promises", commands(depth))
        }
        FloorObstacle::DriveAlone { alone_iops } => {
            format!("the drive gives {} of {asked}, even to it alone", rate(alone_iops))
        }
        FloorObstacle::Others => {
            let percent = (floor.got_iops / floor.asked_iops * 100.0).floor();
            format!(
                "of {asked} it would get {got} beside what others were promised: of floors that don't fit together \
                 each tenant gets the same part, here {percent:.0} %"
            )
        }
    }
}

/// What to do about a floor that will not be kept.
pub fn floor_remedy(floor: &FloorForecast, tenant: &Tenant, assumed: bool) -> String {
    // Two digits, as a person would promise it; and no more than it gets.
    let got_iops = in_digits(floor.got_iops, 2);
    let got_mib = in_digits(floor.got_iops * tenant.mean_len_bytes() / f64::from(1 << 20), 2);
    let at_most = |key: &str, asks: u64, got: u64, as_written: String| match got {
        _ if asks <= got => None,
        // It is the others' floors that are too much.
        0 if floor.obstacle == FloorObstacle::Others => None,
        0 => Some(format!("remove {key}")),
        _ => Some(format!("write {key} = \"{as_written}\" or less")),
    };
    let keys = [
        at_most("min_iops", tenant.floor.ios_per_sec, got_iops, Rate(got_iops).to_string()),
        at_most("min_bandwidth", tenant.floor.mbytes_per_sec, got_mib, Bandwidth::from_mib(got_mib).to_string()),
    ];
    let lower = keys.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    let or = if lower.is_empty() { "" } else { ", or " };
    let otherwise = match floor.obstacle {
        FloorObstacle::Limits => "give it higher limits",
        FloorObstacle::Depth { .. } | FloorObstacle::DepthBeside { .. } => {
            "let it have more commands at a time (iodepth or numjobs in its [tenant.demand])"
        }
        FloorObstacle::Others => "promise others less, or put tenants on another drive",
        FloorObstacle::None | FloorObstacle::DriveAlone { .. } => "put it on a faster drive",
    };
    let declare = if assumed { "; or declare what it asks for, in [tenant.demand]" } else { "" };
    format!("{lower}{or}{otherwise}{declare}")
}

/// Rounded down.
fn in_digits(value: f64, digits: u32) -> u64 {
    let value = value.max(0.0) as u64;
    let unit = 10_u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(digits - 1));
    value / unit * unit
}

/// What to do, in a configuration's words.
pub fn change(change: &Change, tenants: &[Tenant]) -> String {
    let name = |index: usize| tenants.get(index).map_or("", |tenant| tenant.name.as_str());
    match *change {
        Change::Setting { setting: Setting::RateIops, from, to } => {
            let [from, to] = [from, to].map(|rate| Rate(rate.into()));
            format!("under [policy] write rate_iops = \"{to}\" (now {from})")
        }
        Change::Setting { setting, from, to } => format!("under [policy] write {} = {to} (now {from})", setting.key()),
        Change::Priority { tenant, from, to } => {
            let [from, to] = [from, to].map(QueuePriority::name);
            format!("give tenant {:?} priority = {to:?} (now {from})", name(tenant))
        }
        Change::Elsewhere { tenant } => format!("put tenant {:?} on another drive", name(tenant)),
        Change::Target { tenant, from, to } => {
            format!("promise tenant {:?} less: latency_target = \"{to}\" (now {from})", name(tenant))
        }
    }
}
