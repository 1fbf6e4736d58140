//! Encrypted disks: what the cipher adds, beside a peer's LUKS, and what it takes to make and delete one.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::files::MEMORY_FILES;
use super::server::{DAEMON_CPU, Server, evenkeel, fill, load, load_blocks, new_directory};
use super::sides::{ScratchDrive, Side};
use super::storage_daemon::{HOW_TO_GET, version};
use super::{Figure, Goal, Options};
use crate::guest::daemon::host_key;

/// The commands that are measured beside the peer, with what our throughput is to be.
const SHAPES: [((&str, &str), &str); 4] = [
    (("randread", "4k"), "32"),
    (("randwrite", "4k"), "32"),
    (("randread", "128k"), "8"),
    (("randwrite", "128k"), "8"),
];

/// All figures.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut figures = beside_plain(options)?;
    match version() {
        Some(version) => {
            notes.push(format!("keys: the peer is {version} with LUKS (aes-256-xts), a file on tmpfs on both sides"));
            figures.extend(beside_luks(options)?);
        }
        None => notes.push(format!("qemu-storage-daemon was not measured: {HOW_TO_GET}")),
    }
    figures.extend(made_and_deleted(options)?);
    Ok(figures)
}

/// An encrypted disk and another one of the same daemon, by turns.
fn beside_plain(options: &Options) -> Result<Vec<Figure>> {
    let directory = new_directory()?;
    let mut sections = format!(
        "[keys]\nhost_key = {:?}\n[device]\nbackend = \"memory\"\nsize = \"8GiB\"\n[policy]\nname = \"passthrough\"\n\
         [pollers]\ncpus = [{DAEMON_CPU}]\n",
        host_key(&directory)?
    );
    for (name, encryption) in [("plain", "none"), ("secret", "host")] {
        write!(
            sections,
            "[[tenant]]\nname = \"{name}\"\nsize = \"1GiB\"\nlba_size = 4096\nencryption = \"{encryption}\"\n"
        )?;
    }
    let server = Server::serve(&evenkeel(), &sections)?;
    let (plain, secret) = (server.socket("plain"), server.socket("secret"));
    fill(&plain)?;
    fill(&secret)?;
    let mut added_us = Vec::new();
    for _ in 0..options.rounds {
        let without = load(&plain, 1, options.seconds)?;
        added_us.push(load(&secret, 1, options.seconds)?.mean_us - without.mean_us);
    }
    let name = "memory, 4 KiB randread, QD 1, latency that encryption adds";
    let mut figures = vec![Figure::of(name, added_us, "µs", Some(Goal::AtMost(1.5)))?];
    for rw in ["randread", "randwrite"] {
        let run = |socket: &Path| load_blocks(socket, (rw, "128k"), options.seconds, &["--iodepth", "8"]);
        let mut percent = Vec::new();
        for _ in 0..options.rounds {
            let without = run(&plain)?.iops;
            percent.push(100.0 * run(&secret)?.iops / without);
        }
        figures.push(Figure::of(format!("memory, 128 KiB {rw}, QD 8, encrypted / not"), percent, "%", None)?);
    }
    drop(server);
    std::fs::remove_dir_all(directory)?;
    Ok(figures)
}

fn beside_luks(options: &Options) -> Result<Vec<Figure>> {
    let drive = |name| ScratchDrive::file(Path::new(MEMORY_FILES), name);
    let ours = Side::ours_encrypted("encrypted", drive("keys")?)?;
    let theirs = Side::theirs_with_luks("LUKS of qemu-storage-daemon", drive("luks")?)?;
    let mut figures = Vec::new();
    for ((rw, bs), depth) in SHAPES {
        let mut rounds: [Vec<f64>; 3] = Default::default();
        for _ in 0..options.rounds {
            let run = |side: &Side| load_blocks(&side.socket(), (rw, bs), options.seconds, &["--iodepth", depth]);
            let (our_iops, their_iops) = (run(&ours)?.iops, run(&theirs)?.iops);
            let values = [our_iops / 1e3, their_iops / 1e3, our_iops / their_iops];
            rounds.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
        }
        let [our_iops, their_iops, ratios] = rounds;
        let name = |what: &str| format!("{bs} {rw}, QD {depth}, {what}");
        figures.push(Figure::of(name(&ours.title), our_iops, "K IOPS", None)?);
        figures.push(Figure::of(name(&theirs.title), their_iops, "K IOPS", None)?);
        figures.push(Figure::of(name("ours / theirs"), ratios, "×", Some(Goal::AtLeast(2.0)))?);
    }
    Ok(figures)
}

/// Encrypted disks on a sparse file, over the API's socket.
fn made_and_deleted(options: &Options) -> Result<Vec<Figure>> {
    let directory = new_directory()?;
    let sections = format!(
        "[keys]\nhost_key = {:?}\n[device]\nbackend = \"file\"\npath = {:?}\nsize = \"2TiB\"\ncreate = true\n\
         encryption = \"host\"\n[policy]\nname = \"passthrough\"\n[pollers]\ncpus = [{DAEMON_CPU}]\n",
        host_key(&directory)?,
        directory.join("drive.img")
    );
    let server = Server::serve(&evenkeel(), &sections)?;
    let rest = api::Rest::new(server.socket("api.sock"));
    let mut figures = Vec::new();
    for size in ["1GiB", "1TiB"] {
        let (mut created_ms, mut erased_ms, mut deleted_ms) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            let disk = api::DiskSpec { name: "secret".into(), size: size.into(), ..api::DiskSpec::default() };
            let start = Instant::now();
            let disk = rest.create(&disk)?;
            ensure!(disk.state == api::DiskState::Served, "the new disk is not served: {disk:?}");
            created_ms.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            rest.erase("secret", api::Erasure::default())?;
            erased_ms.push(start.elapsed().as_secs_f64() * 1e3);
            let start = Instant::now();
            let mut left = rest.delete("secret", api::Deletion::default())?;
            while !left.is_empty() {
                left = rest.operations().context("operations")?;
            }
            deleted_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        for (what, values) in [("create", created_ms), ("erase", erased_ms), ("delete", deleted_ms)] {
            figures.push(Figure::of(
                format!("{what} an encrypted disk, {size}"),
                values,
                "ms",
                Some(Goal::AtMost(50.0)),
            )?);
        }
    }
    drop(server);
    std::fs::remove_dir_all(directory)?;
    Ok(figures)
}
