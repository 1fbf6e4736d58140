//! The plugin for Kubernetes on block devices of the kernel's, with file systems and mounts as a node has them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guest::inside::{API_SOCKET, Inside, UBLK_MODULES};
use crate::guest::lab::Lab;
use crate::guest::load::ENDLESS;
use crate::guest::qemu::Guest;

const SOCKET: &str = "/run/csi.sock";
/// All of `csi-sanity`, emulated.
const LIMIT: Duration = Duration::from_secs(600);
/// Linux before 6.16 shows a new size only once the daemon starts again.
const SKIPPED: &str = "node-expand";

/// `csi-sanity` with raw volumes and mounted ones; nothing of them is left.
pub fn sanity(lab: &mut Lab) -> Result<()> {
    let Some(sanity) = sanity_program() else { return Ok(()) };
    let Some(plugin) = lab.binary().map(|binary| binary.with_file_name("evenkeel-csi")) else { return Ok(()) };
    ensure!(plugin.exists(), "{} is not built: `cargo build -p csi`", plugin.display());
    let guest = Inside::new("kubernetes").modules(&UBLK_MODULES).nvme("ek0", 4, 512);
    let guest = guest.program("usr/bin/evenkeel-csi", plugin).program("usr/bin/csi-sanity", sanity);
    // The guest has the libraries of these from other programs of their packages.
    let guest = ["blkid", "resize2fs"]
        .into_iter()
        .fold(guest, |guest, name| guest.program(&format!("usr/sbin/{name}"), PathBuf::from("/usr/sbin").join(name)));
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    let done = serve(&mut guest).and_then(|()| ["mount", "block"].iter().try_for_each(|kind| run(&mut guest, kind)));
    done.with_context(|| {
        let plugin = guest.run("cat /run/plugin.out").unwrap_or_default();
        format!("{}\n--- plugin ---\n{plugin}\n{}", guest.daemon_log(), guest.logs())
    })
}

/// As the plugin's own test builds it. `None`, in words: it was not built.
fn sanity_program() -> Option<PathBuf> {
    let named = std::env::var_os("CSI_SANITY").map(PathBuf::from);
    let cache = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/evenkeel"));
    let built = || cache()?.read_dir().ok()?.filter_map(|it| Some(it.ok()?.path())).find(|path| is_sanity(path));
    let found = named.or_else(built);
    if found.is_none() {
        println!("skipped: no csi-sanity is built; `cargo test -p csi` does, where there is Go");
    }
    found
}

fn is_sanity(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("csi-sanity-"))
}

fn serve(guest: &mut Guest) -> Result<()> {
    guest.wait_for("the drive", "test -b /dev/nvme0n1")?;
    guest.serve("[device]\nbackend = \"block\"\npath = \"/dev/nvme0n1\"\npool = \"256MiB\"\n")?;
    guest.run("ln -s mke2fs /usr/sbin/mkfs.ext4 && printf 'thin: \"true\"\\nweight: \"2\"\\n' >/run/class")?;
    let plugin = format!("evenkeel-csi --endpoint unix://{SOCKET} --node-id n1 --api {API_SOCKET}");
    guest.start_job("plugin", &format!("PATH=/usr/sbin:$PATH {plugin}"), ENDLESS)?;
    guest.wait_for("the plugin", &format!("test -S {SOCKET}"))
}

fn run(guest: &mut Guest, kind: &str) -> Result<()> {
    let told = guest.attempt(
        &format!(
            "csi-sanity --csi.endpoint={SOCKET} --csi.testvolumeaccesstype={kind} \
             --csi.testvolumeparameters=/run/class \
             --csi.mountdir=/run/target --csi.stagingdir=/run/staging --csi.testvolumesize=16777216 \
             --csi.testvolumeexpandsize=33554432 --ginkgo.skip={SKIPPED} --ginkgo.no-color 2>&1 | tail -n 60"
        ),
        LIMIT,
    )?;
    let counts = told.text.lines().rfind(|line| line.contains("Passed")).unwrap_or("no counts");
    println!("csi-sanity, {kind}: {}", counts.trim());
    ensure!(counts.contains("| 0 Failed"), "{kind}: {}", told.text);
    guest.run("! grep ublkb /proc/mounts && ! ls /dev/evenkeel/*").map(drop)
}
