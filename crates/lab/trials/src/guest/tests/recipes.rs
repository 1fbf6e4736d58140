//! The pages of docs/recipes for hypervisors, typed block by block: on a host that has what their readers have, and in
//! the VM that they start there.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::guest::agent::Agent;
use crate::guest::host::{CHANNEL, CONSOLE, Host, VM};
use crate::guest::inside::write_command;
use crate::guest::lab::{Lab, complaints};
use crate::guest::prepare::Qemu;
use crate::guest::qemu::{Accel, BOOT_LIMIT, COMMAND_LIMIT, KERNEL_ARGUMENTS};
use crate::guest::recipe::{self, Block};
use crate::guest::required;

/// The pages that the tests here execute.
pub const PAGES: [&str; 2] = ["qemu", "libvirt"];

/// Where a guest has what is typed in it.
const TYPED: &str = "/run/typed";

pub fn qemu(lab: &mut Lab) -> Result<()> {
    let accel = lab.accel();
    follow(lab, PAGES[0], |host| {
        host.write("/usr/local/bin/qemu-system-x86_64", &qemu_script(accel))?;
        host.run("chmod +x /usr/local/bin/qemu-system-x86_64").map(drop)
    })
}

pub fn libvirt(lab: &mut Lab) -> Result<()> {
    let accel = lab.accel();
    follow(lab, PAGES[1], |host| {
        host.write("/srv/vm/vm.xml", &domain(accel))?;
        host.run("virtlogd --daemon\nlibvirtd --daemon\nvirsh define /srv/vm/vm.xml").map(drop)
    })
}

/// QEMU with what the reader's VM has anyway: something to boot, and a way to type in it.
fn qemu_script(accel: Accel) -> String {
    format!(
        "#!/bin/sh\n\
         exec /usr/bin/qemu-system-x86_64 -nodefaults -no-user-config -display none {accel} \
         -kernel {VM}/vmlinuz -initrd {VM}/initrd -append '{KERNEL_ARGUMENTS}' -serial file:{CONSOLE} \
         -chardev socket,id=agent,path={CHANNEL},server=on,wait=off -device virtio-serial-pci \
         -device virtserialport,chardev=agent,name=evenkeel.agent \"$@\"\n",
        accel = accel.arguments(Qemu::Newest).join(" ")
    )
}

/// The VM as a libvirt domain, with free ports, as installers make it.
fn domain(accel: Accel) -> String {
    let (kind, cpu) = match accel {
        Accel::Kvm => ("kvm", "<cpu mode='host-passthrough'/>"),
        // As the other guests have it.
        Accel::Tcg | Accel::Counted => {
            ("qemu", "<cpu match='exact'><model>qemu64</model><feature policy='disable' name='cx16'/></cpu>")
        }
    };
    let ports = (1..=6).map(|index| format!("<controller type='pci' index='{index}' model='pcie-root-port'/>"));
    format!(
        "<domain type='{kind}'>
  <name>vm</name>
  <memory unit='MiB'>512</memory>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{VM}/vmlinuz</kernel>
    <initrd>{VM}/initrd</initrd>
    <cmdline>{KERNEL_ARGUMENTS}</cmdline>
  </os>
  <features><acpi/></features>
  {cpu}
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    {ports}
    <serial type='file'><source path='{CONSOLE}'/></serial>
    <channel type='unix'>
      <source mode='bind' path='{CHANNEL}'/>
      <target type='virtio' name='evenkeel.agent'/>
    </channel>
  </devices>
</domain>
",
        ports = ports.collect::<String>()
    )
}

/// Types a page on a host that `prepare` has made its readers'.
fn follow(lab: &Lab, page: &str, prepare: impl FnOnce(&Host) -> Result<()>) -> Result<()> {
    let Some(binary) = lab.binary() else { return Ok(()) };
    if !rustix::process::geteuid().is_root() {
        ensure!(!required(), "hosts for recipes are root's to make");
        println!("guest test recipe-{page}: skipped, it takes root");
        return Ok(());
    }
    let blocks = recipe::read(page)?;
    let programs = binary.parent().context("the programs' folder")?;
    let host = Host::start(lab, programs, &format!("recipe-{page}"))?;
    let followed = prepare(&host).and_then(|()| type_blocks(&host, &blocks));
    followed.with_context(|| format!("docs/recipes/{page}.md\n{}", host.logs()))
}

fn type_blocks(host: &Host, blocks: &[Block]) -> Result<()> {
    let mut guest = None;
    for (number, block) in blocks.iter().enumerate() {
        let typed = match block {
            Block::Host(commands) => host.run(commands).map(drop),
            Block::File { name, text } => host.write(name, text),
            Block::Guest(commands) => in_guest(host, &mut guest, commands),
        };
        typed.with_context(|| format!("block {}", number + 1))?;
    }
    ensure!(guest.is_some(), "the page types nothing in its guest");
    host.run("! grep panicked /var/log/evenkeeld.log && evenkeel disk list").map(drop)
}

/// Types in the VM, which has booted by the first time that something is.
fn in_guest<'a>(host: &'a Host, guest: &mut Option<PageGuest<'a>>, commands: &str) -> Result<()> {
    let guest = match guest {
        Some(guest) => guest,
        None => guest.insert(PageGuest::boot(host)?),
    };
    guest.run(&write_command(TYPED, commands))?;
    guest.run(&format!("sh -e {TYPED}"))?;
    let log = guest.run("dmesg -r -c")?;
    let complaints = complaints(&log, true);
    ensure!(complaints.is_empty(), "the guest's kernel complains:\n{}", complaints.join("\n"));
    Ok(())
}

/// The VM of a page.
struct PageGuest<'a> {
    agent: Agent,
    host: &'a Host,
}

impl<'a> PageGuest<'a> {
    fn boot(host: &'a Host) -> Result<Self> {
        let mut alive = || check_console(&host.in_run(CONSOLE));
        let mut agent = Agent::connect(&host.in_run(CHANNEL), &mut alive)?;
        agent.wait_boot(BOOT_LIMIT, &mut alive)?;
        let mut guest = Self { agent, host };
        // Programs go by their names, and busybox's shell prefers its own mke2fs.
        guest.run("ln -s mke2fs /usr/sbin/mkfs.ext4")?;
        Ok(guest)
    }

    fn run(&mut self, command: &str) -> Result<String> {
        let console = self.host.in_run(CONSOLE);
        let output = self.agent.run(command, COMMAND_LIMIT, &mut || check_console(&console))?;
        ensure!(output.code == 0, "`{command}` exited {}:\n{}", output.code, output.text);
        Ok(output.text)
    }
}

fn check_console(console: &Path) -> Result<()> {
    let text = std::fs::read(console).unwrap_or_default();
    ensure!(!String::from_utf8_lossy(&text).contains("Kernel panic"), "the guest's kernel panicked");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::recipes_containers;

    #[test]
    fn a_test_executes_each_page() {
        let mut found = recipe::pages().unwrap();
        let mut executed = [PAGES, recipes_containers::PAGES].concat();
        found.sort_unstable();
        executed.sort_unstable();
        assert_eq!(found, executed);
        executed.iter().for_each(|page| assert!(recipe::read(page).is_ok(), "{page}"));
    }
}
