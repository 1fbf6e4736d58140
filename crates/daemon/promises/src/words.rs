//! Demands and changes as an operator would say them.

use io_model::QueuePriority;
use io_model::units::{Rate, Size};
use planner::{Change, FloorForecast, Load, Setting, Tenant};

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
    format!("{sizes}{kind}, {load}")
}

/// Why a floor will be kept or not. No full stop.
pub fn floor(floor: &FloorForecast) -> String {
    let [asked, got] = [floor.asked_iops, floor.got_iops].map(|iops| Rate(iops.round() as u64));
    match floor.is_kept() {
        true => format!("{asked} commands a second fit beside all that others were promised"),
        false => format!("of {asked} commands a second it would get {got} beside what others were promised"),
    }
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
