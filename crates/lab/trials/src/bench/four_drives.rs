//! 1,000 tenants on four drives: what they cost, and what changes take where each is written down durably.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::online::{ATTACHED, Host, TENANTS, change, tenants};
use super::server::{Server, evenkeel};
use super::{Figure, Options};

const DRIVES: usize = 4;

/// Drives of 16 GiB with the back end that `backend` gives, and `count` tenants on them in turn.
fn configuration(backend: impl Fn(usize) -> String, count: usize) -> String {
    let drive = |n: usize| format!("[[drive]]\nname = \"d{n}\"\nsize = \"16GiB\"\n{}\n", backend(n));
    let drives: String = (0..DRIVES).map(drive).collect();
    let policy = "[policy]\nname = \"lpns\"\n";
    format!("{drives}{policy}{}", tenants(count, |n| format!("drive = \"d{}\"\n", n % DRIVES)))
}

/// A daemon on new images in a directory, and after how many seconds it served all tenants.
fn start(images: &Path, count: usize) -> Result<(Server, f64)> {
    if images.exists() {
        std::fs::remove_dir_all(images)?;
    }
    std::fs::create_dir_all(images)?;
    let image = |n: usize| {
        let path = images.join(format!("d{n}.img"));
        format!("backend = \"file\"\npath = {path:?}\ncreate = true")
    };
    let begun = Instant::now();
    let server = Server::serve(&evenkeel(), &configuration(image, count))?;
    Ok((server, begun.elapsed().as_secs_f64()))
}

/// Starts, idles and changes on files on the disk of the temporary directory; and changes once more on drives in
/// memory, of which nothing is written down: the rest is the disk.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let dir = tempfile::tempdir()?;
    let images = dir.path().join("images");
    let (host, mut figures) = Host::measure(options.rounds, " on four drives", |count| start(&images, count))?;
    let mut changed = change(&host.server, "new")?;
    changed.attach_ms.extend(host.attach_ms);
    figures.extend(changed.figures(&format!("among {TENANTS} tenants on four drives"))?);
    drop((host.clients, host.server));

    let in_memory = configuration(|_| "backend = \"memory\"".to_owned(), TENANTS);
    let server = Server::serve(&evenkeel(), &in_memory)?;
    figures.extend(change(&server, "new")?.figures(&format!("among {TENANTS} tenants on four drives in memory"))?);
    notes.push(format!(
        "four drives are files of 16 GiB, made at the start, with {} tenants each, of which {} are attached; a change \
         is durable on the disk of the temporary directory when it is answered, where something else may be writing; \
         of drives in memory nothing is written down, and nobody is attached to them",
        TENANTS / DRIVES,
        ATTACHED / DRIVES,
    ));
    Ok(figures)
}
