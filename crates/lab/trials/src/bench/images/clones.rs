//! A thousand clones of one template.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use api::{DiskSpec, NewSnapshots, Rest};
use pieces::{MapId, Maps, PieceFile, Pool, PoolId};

use super::strides::Strider;
use super::thin::PIECE_BYTES;
use crate::bench::files::MEMORY_FILES;
use crate::bench::server::Server;
use crate::bench::sides::ScratchDrive;
use crate::bench::{Figure, Goal, Options};

/// A daemon has up to 1,024 disks.
const CLONES: u32 = 1_000;
/// Of the template, each of which it has.
const TEMPLATE_PIECES: u32 = 10 << 10;
const SECONDS_GOAL: f64 = 1.0;
const METADATA_GOAL_KIB: f64 = 64.0;

/// The maps alone, and whole disks over the API.
pub fn of_one_template(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let (mut maps, mut disks): ([Vec<f64>; 2], [Vec<f64>; 2]) = Default::default();
    for _ in 0..options.rounds {
        let drive = ScratchDrive::file(Path::new(MEMORY_FILES), "clones")?;
        let (seconds, kibibytes) = maps_alone(&drive.directory().join("maps"))?;
        maps.iter_mut().zip([seconds, kibibytes]).for_each(|(all, value)| all.push(value));
        let (seconds, kibibytes) = whole_disks(drive.directory())?;
        disks.iter_mut().zip([seconds, kibibytes]).for_each(|(all, value)| all.push(value));
    }
    notes.push(format!(
        "clones: the template has all {} GiB of its pieces; maps, layout and drive are files on tmpfs; over the API \
         a clone is served, with a socket of its own, before the next one is asked for",
        TEMPLATE_PIECES >> 10
    ));
    let [map_seconds, map_kib] = maps;
    let [disk_seconds, disk_kib] = disks;
    let (in_time, small) = (Some(Goal::AtMost(SECONDS_GOAL)), Some(Goal::AtMost(METADATA_GOAL_KIB)));
    let name = |what: &str| format!("{CLONES} clones of one template, {what}");
    Ok(vec![
        Figure::of(name("their maps alone, each durable"), map_seconds, "s", in_time)?,
        Figure::of(name("their maps alone: file, each"), map_kib, "KiB", small)?,
        Figure::of(name("disks over the API"), disk_seconds, "s", in_time)?,
        Figure::of(name("disks over the API: maps and layout, each"), disk_kib, "KiB", small)?,
    ])
}

/// Seconds, and KiB of the file for each.
fn maps_alone(path: &Path) -> Result<(f64, f64)> {
    let storage = File::options().read(true).write(true).create_new(true).open(path)?;
    let mut file = PieceFile::create(storage, PoolId(1))?;
    let mut pool = Pool::new(std::iter::once(0..2 * TEMPLATE_PIECES).collect(), Maps::new(), &BTreeMap::new())?;
    (0..2 * TEMPLATE_PIECES).for_each(|number| pool.is_zero(number));
    let template = MapId::FIRST;
    pool.add(template, TEMPLATE_PIECES);
    for index in 0..TEMPLATE_PIECES {
        pool.write(template, index)?;
    }
    file.commit(pool.take_batch())?;
    let before = std::fs::metadata(path)?.len();
    let begun = Instant::now();
    for clone in 1..=CLONES {
        pool.share(template, MapId(template.0 + clone))?;
        file.commit(pool.take_batch())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, kib_each(std::fs::metadata(path)?.len() - before)))
}

/// Seconds, and KiB of the daemon's files for each.
fn whole_disks(directory: &Path) -> Result<(f64, f64)> {
    let image = directory.join("new.img");
    let device = format!(
        "backend = \"file\"\npath = {image:?}\nsize = \"128GiB\"\ncreate = true\npool = \"100GiB\"\n\
         pool_overcommit = 20000"
    );
    let template = format!("[[tenant]]\nname = \"template\"\nsize = \"{TEMPLATE_PIECES}MiB\"\nthin = true\n");
    let server = Server::start_on(&device, "passthrough", &template)?;
    Strider::attach(&server.socket("template"), 32)?.write_each(0..TEMPLATE_PIECES.into(), PIECE_BYTES)?;
    let daemon = Rest::new(server.socket("api.sock"));
    daemon.snapshot(&NewSnapshots { snapshots: vec!["template@v1".to_owned()] })?;
    let before = bytes_beside(directory, &image)?;
    let begun = Instant::now();
    for clone in 0..CLONES {
        let name = format!("clone{clone}");
        let spec = DiskSpec { name, clone_of: Some("template@v1".to_owned()), ..DiskSpec::default() };
        let disk = daemon.create(&spec).with_context(|| server.log())?;
        ensure!(disk.state == api::DiskState::Served, "the clone is not served: {disk:?}");
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, kib_each(bytes_beside(directory, &image)? - before)))
}

/// Bytes of the files beside the drive's.
fn bytes_beside(directory: &Path, image: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path() != image {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

fn kib_each(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / f64::from(CLONES)
}
