//! `evenkeel why`: why a tenant was slow at some time in the last day.

mod text;
mod when;

use anyhow::Result;
use api::{Rest, WhyAsked};
use jiff::Timestamp;
use jiff::tz::TimeZone;

pub use self::when::BadTime;
use crate::disk::Daemon;
use crate::output::print;

/// Explain why a tenant was slow at some time in the last day.
///
/// Compares the tenant's latency and throughput with its usual ones, shows what its neighbours did differently, names
/// the cause and a remedy. Without --at and --last: the last ten minutes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the tenant.
    tenant: String,

    /// Start of the minute to explain: 03:12 (the most recent one), 03:12:30 or 2026-11-24T03:12, in the time zone of
    /// this host, or with another offset (2026-11-24T03:12Z)
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    at: Option<String>,

    /// Explain this long until now, such as 10m; at most 1h
    #[arg(long, value_name = "SPAN")]
    last: Option<String>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs `evenkeel why`.
///
/// # Errors
/// The time is invalid, there is no daemon, or it has no history of that time.
pub fn run(args: &Args) -> Result<()> {
    let (now, zone) = (Timestamp::now(), TimeZone::system());
    let (from, to) = match &args.at {
        Some(at) => when::minute(at, now, &zone)?,
        None => when::last(args.last.as_deref().unwrap_or("10m"), now)?,
    };
    let unix_ms = |time: Timestamp| u64::try_from(time.as_millisecond()).unwrap_or(0);
    let asked = WhyAsked { from_unix_ms: unix_ms(from), to_unix_ms: unix_ms(to) };
    let why = Rest::new(&args.daemon.socket).why(&args.tenant, asked)?;
    print(args.daemon.json, &why, || text::why(&why, &zone))
}
