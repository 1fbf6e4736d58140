//! The recipes for containers, followed word by word on a Debian with systemd that has the package.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guest::inside::Inside;
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;
use crate::guest::recipe::{self, Block};
use crate::guest::system;
use crate::guest::system_image::System;

const NAME: &str = "recipe-containers";
const VERSION: &str = "0.1.0-1";
/// The pages that the test here executes.
pub const PAGES: [&str; 2] = ["podman", "systemd-nspawn"];
/// A block of a page, emulated.
const LIMIT: Duration = Duration::from_secs(240);

/// Both pages, up to the block that takes everything away again; a reboot, after which all must be as before; and then
/// those blocks, which must leave nothing.
pub fn containers(lab: &mut Lab) -> Result<()> {
    let Some(packages) = system::packages(lab, NAME, &[VERSION])? else { return Ok(()) };
    let mut guest = system::boot(Inside::new("containers"), lab, System::Containers, &packages)?;
    let done = prepare(&mut guest).and_then(|()| follow_all(&mut guest));
    done.with_context(|| guest.journal())
}

fn prepare(guest: &mut Guest) -> Result<()> {
    // The guests have no module for the overlay file system.
    let storage = "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
                   graphroot = \"/var/lib/containers/storage\"\n";
    guest.write_file("/etc/containers/storage.conf", storage)?;
    guest.install_version(VERSION).map(drop)
}

fn follow_all(guest: &mut Guest) -> Result<()> {
    let mut ends = Vec::new();
    for page in PAGES {
        let mut blocks = recipe::read(page)?;
        ends.push((page, blocks.split_off(blocks.len() - 1)));
        follow(guest, page, &blocks)?;
    }
    reboot(guest).context("the reboot")?;
    ends.iter().try_for_each(|(page, end)| follow(guest, page, end))?;
    guest.run("test -z \"$(evenkeel disk list --names)\" && ! ls /dev/ublkb*").context("disks are left")?;
    guest.run("! grep evenkeel /etc/fstab && test -z \"$(podman ps -aq)$(podman images -q)\"")?;
    guest.run("! systemctl is-active web && ! systemctl is-active systemd-nspawn@box").map(drop)
}

fn follow(guest: &mut Guest, page: &str, blocks: &[Block]) -> Result<()> {
    let start = Instant::now();
    for block in blocks {
        execute(guest, block).with_context(|| format!("the recipe {page}"))?;
    }
    println!("recipe {page}: {} blocks in {:.0} s", blocks.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn execute(guest: &mut Guest, block: &Block) -> Result<()> {
    match block {
        Block::Host(text) => {
            guest.write_file("/run/block", text)?;
            guest.run_within("cd /root && HOME=/root sh -eux /run/block", LIMIT)?;
        }
        Block::File { name, text } => {
            guest.run(&format!("mkdir -p $(dirname {name})"))?;
            guest.write_file(name, text)?;
        }
        Block::Guest(text) => bail!("this is for a guest, and here is none:\n{text}"),
    }
    Ok(())
}

/// Services end before their mounts, and those before the daemon; they come back in the opposite order.
fn reboot(guest: &mut Guest) -> Result<()> {
    guest.reboot_in_order()?;
    guest.wait_for("both services", "systemctl is-active web && systemctl is-active systemd-nspawn@box")?;
    let ended = "journalctl -q -r -b -1 -u evenkeeld -o cat | sed '/SIGTERM/q' >/run/ended; \
                 grep -q SIGTERM /run/ended && ! grep 'is in use' /run/ended";
    guest.run(ended).context("the daemon's end before the boot")?;
    guest.run("findmnt -n -o SOURCE /srv/files /srv/pages; rm /srv/files/count /srv/pages/count")?;
    guest.wait_for("new numbers", "test -e /srv/files/count && test -e /srv/pages/count")
}
