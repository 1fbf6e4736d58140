//! `evenkeel disk list`: the disks, as a table or as names.

use anyhow::Result;
use api::{Attachment, Disk, DiskSnapshot, Drive, Items, Rest, labels_in_words};
use io_model::units::Size;

use super::Daemon;
use crate::output::print;
use crate::table;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only disks with an attached client
    #[arg(long)]
    attached: bool,

    /// Only disks with an attached client that would lose them in a restart of the daemon
    #[arg(long)]
    lost_on_restart: bool,

    /// Only disks of this front end, or namespaces
    #[arg(long, value_parser = ["vfio-user", "vhost-user-blk", "ublk", "namespace"])]
    frontend: Option<String>,

    /// Print only names, one per line, for scripts
    #[arg(long, conflicts_with = "json")]
    names: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs `evenkeel disk list`.
///
/// # Errors
/// There is no daemon, or it refused.
pub fn run(args: &Args) -> Result<()> {
    let daemon = Rest::new(&args.daemon.socket);
    let mut all = daemon.disks()?;
    all.retain(|disk| disk.attached || !args.attached);
    all.retain(|disk| disk.attached && !disk.survives_restart || !args.lost_on_restart);
    all.retain(|disk| args.frontend.as_ref().is_none_or(|frontend| disk.frontend == *frontend));
    print(args.daemon.json, &Items { items: &all }, || {
        if args.names {
            return all.iter().map(|disk| format!("{}\n", disk.name)).collect();
        }
        let is_part = args.attached || args.lost_on_restart || args.frontend.is_some();
        let lost = |disk: &Disk| disk.lost_on_restart.as_ref().map(|why| format!("{}: {why}\n", disk.name));
        let why: String = all.iter().filter(|_| args.lost_on_restart).filter_map(lost).collect();
        format!("{}{why}{}", disks(&all), if is_part { String::new() } else { not_served(&daemon) })
    })
}

pub(super) fn disks(disks: &[Disk]) -> String {
    let row = |disk: &Disk| {
        let promise = match (disk.latency_target_us, disk.weight) {
            (Some(target), _) => format!("p{} ≤ {}", disk.latency_percentile.unwrap_or(99.0), table::span(target)),
            (None, Some(weight)) => format!("weight {weight}"),
            (None, None) => disk.class.clone().unwrap_or_else(|| "its tenants'".to_owned()),
        };
        let promise = disk.floor.iter().fold(promise, |promise, floor| format!("{promise}, ≥ {floor}"));
        let promise = if disk.overcommit { format!("{promise}, overcommit") } else { promise };
        let promise = disk.limits.iter().fold(promise, |promise, limits| format!("{promise}, ≤ {limits}"));
        let state = if disk.attached { "attached" } else { disk.state.name() };
        let state = if disk.encryption.is_some() { format!("{state}, encrypted") } else { state.to_owned() };
        let made_by = if disk.declared { "file" } else { "api" };
        let grows_to = disk.grows_to_bytes.map(|bytes| format!(", soon {}", Size(bytes))).unwrap_or_default();
        let size = format!("{}{grows_to}", Size(disk.size_bytes));
        let nsid = disk.nsid.map(|nsid| format!(" {nsid}")).unwrap_or_default();
        let frontend = format!("{}{nsid}", disk.frontend);
        let socket = disk.socket.clone().unwrap_or_else(|| tenants(&disk.attachments));
        let words: [&str; 8] = [&disk.name, &disk.drive, &size, &promise, &state, made_by, &frontend, &socket];
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let heading = ["disk", "drive", "size", "promise", "state", "made by", "front end", "socket, device, or tenants"];
    table::layout_with_words(&heading, &disks.iter().map(row).collect::<Vec<_>>(), &[0, 1, 3, 4, 5, 6, 7])
}

/// One disk, the threads that serve it, and its serial number.
pub(super) fn one(disk: &Disk) -> String {
    let queues = disk.queues.map(|queues| format!("{queues} queue{}", if queues == 1 { "" } else { "s" }));
    let threads = disk.threads.as_ref().map(|threads| format!("threads {threads}"));
    let mode = disk.mode.as_ref().map(|mode| format!("mode {mode}"));
    let list = disk.cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let cpus = (!list.is_empty()).then(|| format!("cpus {list}"));
    let words: Vec<String> = [queues, threads, mode, cpus].into_iter().flatten().collect();
    let served = if words.is_empty() { String::new() } else { format!("served: {}\n", words.join(", ")) };
    let serial = disk.serial.as_ref().map(|serial| format!("serial number: {serial}\n")).unwrap_or_default();
    let labels = labels_in_words(&disk.labels);
    let labels = if labels.is_empty() { labels } else { format!("labels: {labels}\n") };
    let group = disk.group.as_ref().map(|group| format!("group: {group}\n")).unwrap_or_default();
    let encrypted = disk.encryption.as_ref().map(|owner| format!("encrypted: with a key of the {owner}\n"));
    let locked = disk.locked_why.as_ref().map(|why| format!("locked: {}\n", table::shown(why)));
    let lost = disk.lost_on_restart.as_ref().map(|why| format!("lost on a restart of the daemon: {why}\n"));
    let key: String = encrypted.into_iter().chain(locked).collect();
    let thin = disk.pool_bytes.map(|bytes| format!("thin: {} of the pool\n", Size(bytes))).unwrap_or_default();
    let image = disk.image.as_ref().map(|image| format!("image: {}\n", table::shown(image))).unwrap_or_default();
    let snapshot =
        |it: &DiskSnapshot| format!("snapshot: {}@{}, {} of the pool\n", disk.name, it.name, Size(it.pool_bytes));
    let thin = disk.snapshots.iter().map(snapshot).fold(thin, |all, line| all + &line);
    disks(std::slice::from_ref(disk))
        + &image
        + &thin
        + &served
        + &serial
        + &key
        + &lost.unwrap_or_default()
        + &group
        + &labels
}

/// Disks of missing drives, one line per drive. Empty for users that may not see drives.
fn not_served(daemon: &Rest) -> String {
    let drives = daemon.drives().unwrap_or_default();
    let missing = drives.iter().filter(|drive| !drive.disks_not_served.is_empty());
    let line = |drive: &Drive| {
        let (disks, why) = (drive.disks_not_served.join(", "), drive.failed.as_deref().unwrap_or("it failed"));
        format!("not served: {disks}, since drive {} is missing: {why}\n", drive.name)
    };
    missing.map(line).collect()
}

/// The tenants of a namespace.
fn tenants(attachments: &[Attachment]) -> String {
    let word = |it: &Attachment| if it.read_only { format!("{} (read-only)", it.tenant) } else { it.tenant.clone() };
    match attachments {
        [] => "nobody's".to_owned(),
        attachments => attachments.iter().map(word).collect::<Vec<_>>().join(", "),
    }
}
