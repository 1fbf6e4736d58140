//! A drive that the kernel does not have: its own queues are the daemon's.

use anyhow::{Context, Result, ensure};

use crate::guest::inside::{Inside, PROGRAM_LIMIT, VFIO_MODULES};
use crate::guest::lab::Lab;
use crate::guest::qemu::Guest;

const ADDRESS: &str = "0000:00:04.0";
const DRIVE_MIB: u64 = 128;

/// Tenants of both protocols are served on a drive's own queues, over a kill, and the kernel finds what they wrote.
pub fn served_without_the_kernel(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("nvme-drive").iommu().modules(&VFIO_MODULES).nvme("ek0", 4, DRIVE_MIB);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    serve(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

/// The second namespace of a drive, of 4 KiB blocks, is served; the first keeps its data.
pub fn second_namespace(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("namespaces").iommu().modules(&VFIO_MODULES).image("first", 64).image("second", DRIVE_MIB);
    let guest = guest.qemu(&[
        "-device",
        "nvme,id=two,serial=two,addr=0x4",
        "-device",
        "nvme-ns,drive=first,bus=two,nsid=1",
        "-device",
        "nvme-ns,drive=second,bus=two,nsid=2,logical_block_size=4096,physical_block_size=4096",
    ]);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    serve_second(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn serve_second(guest: &mut Guest) -> Result<()> {
    let [first, _] = kernels_disks(guest)?;
    guest.run(&format!(
        "dd if=/dev/urandom of=/run/first bs=1M count=64 && dd if=/run/first of={first} bs=1M oflag=direct"
    ))?;
    guest.evenkeel(&format!("drive claim {ADDRESS}"))?;
    let configuration = |nsid: u32| {
        format!(
            "[device]\nbackend = \"nvme\"\naddress = \"{ADDRESS}\"\nnsid = {nsid}\n[policy]\nname = \"lpns\"\n\
             [[tenant]]\nname = \"db\"\nsize = \"32MiB\"\nlba_size = 4096\n\
             [[tenant]]\nname = \"vm\"\nsize = \"32MiB\"\nlba_size = 4096\nfrontend = \"vhost-user-blk\"\n"
        )
    };
    guest.write_file("/run/third.toml", &configuration(3))?;
    let told = guest.attempt_evenkeel("check /run/third.toml")?;
    ensure!(told.code != 0 && told.text.contains("it has no namespace of that number"), "{told:?}");
    guest.serve(&configuration(2))?;
    for name in ["db", "vm"] {
        guest.verify_tenant(name)?;
    }
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0, "{ended:?}");
    guest.evenkeel(&format!("drive release {ADDRESS}"))?;
    let [first, second] = kernels_disks(guest)?;
    guest.run(&format!("cmp /run/first {first} && ! cmp -s -n 33554432 {second} /dev/zero"))?;
    Ok(())
}

/// Namespaces 1 and 2. The kernel looks at several at a time, and numbers its disks as it finds them.
fn kernels_disks(guest: &mut Guest) -> Result<[String; 2]> {
    guest.wait_for("the kernel's disks", "test -b /dev/nvme0n1 && test -b /dev/nvme0n2")?;
    let mut disk_of = |nsid: u32| -> Result<String> {
        let found = guest.run(&format!("grep -lx {nsid} /sys/block/nvme0n*/nsid"))?;
        let name = found.trim().split('/').nth(3).with_context(|| format!("namespace {nsid}: {found}"))?;
        Ok(format!("/dev/{name}"))
    };
    Ok([disk_of(1)?, disk_of(2)?])
}

/// A namespace behind a second controller is not a second drive, neither in a file nor while the daemon runs.
pub fn two_controllers(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("twins").iommu().modules(&VFIO_MODULES).image("shared", DRIVE_MIB);
    let guest = guest.qemu(&[
        "-device",
        "nvme-subsys,id=both",
        "-device",
        "nvme,id=one,serial=twin,subsys=both,addr=0x4",
        "-device",
        "nvme,id=other,serial=twin,subsys=both,addr=0x6",
        "-device",
        "nvme-ns,drive=shared,bus=one,nsid=1,shared=on",
    ]);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    refuse_twin(&mut guest).with_context(|| format!("{}\n{}", guest.daemon_log(), guest.logs()))
}

fn refuse_twin(guest: &mut Guest) -> Result<()> {
    const TWIN: &str = "0000:00:06.0";
    let drive =
        |name: &str, at: &str| format!("[[drive]]\nname = \"{name}\"\nbackend = \"nvme\"\naddress = \"{at}\"\n");
    let rest = "[[tenant]]\nname = \"db\"\nsize = \"32MiB\"\ndrive = \"one\"\n";
    for address in [ADDRESS, TWIN] {
        guest.evenkeel(&format!("drive claim {address}"))?;
    }
    guest.write_file("/run/both.toml", &(drive("one", ADDRESS) + &drive("twin", TWIN) + rest))?;
    let is_told = format!("({TWIN}) is drive \"one\" ({ADDRESS}) already: both are nvme-twin-1");
    for command in ["check", "serve"] {
        let told = guest.attempt_evenkeel(&format!("{command} /run/both.toml"))?;
        ensure!(told.code == 2 && told.text.contains(&is_told), "{command}: {told:?}");
    }
    guest.serve(&(drive("one", ADDRESS) + rest))?;
    let add = format!("drive add twin --backend nvme --address {TWIN} --socket /run/ek/api.sock");
    let told = guest.attempt_evenkeel(&add)?;
    ensure!(told.code == 2 && told.text.contains(&is_told), "{told:?}");
    guest.run("! test -e /run/state/layout-of-twin.toml && ! grep -q twin /run/state/drives.toml")?;
    guest.verify_tenant("db")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0, "{ended:?}");
    Ok(())
}

/// A drive that was taken from the kernel is measured, where it may be overwritten alone; its profile is one.
pub fn calibrated(lab: &mut Lab) -> Result<()> {
    let guest = Inside::new("nvme-calibrate").iommu().modules(&VFIO_MODULES).nvme("ek0", 4, DRIVE_MIB);
    let Some(mut guest) = guest.boot(lab)? else { return Ok(()) };
    calibrate(&mut guest).with_context(|| guest.logs())
}

fn calibrate(guest: &mut Guest) -> Result<()> {
    const RANGE: &str = "--overwrite 64MiB:32MiB --yes";
    let configuration = |rest: &str| {
        format!(
            "[device]\nbackend = \"nvme\"\naddress = \"{ADDRESS}\"\n{rest}[policy]\nname = \"lpns\"\n[[tenant]]\n\
             name = \"db\"\nsize = \"32MiB\"\nclass = \"guaranteed\"\nlatency_target = \"900ms\"\n"
        )
    };
    guest.write_file("/run/drive.toml", &configuration(""))?;
    let command = format!("calibrate /run/drive.toml --quick {RANGE} --output /run/mine.toml");
    let told = guest.attempt_evenkeel(&command)?;
    ensure!(told.code == 2 && told.text.contains(&format!("evenkeel drive claim {ADDRESS}")), "{told:?}");
    guest.evenkeel(&format!("drive claim {ADDRESS}"))?;

    // After an interruption it goes on. Other users of the drive get an error meanwhile.
    guest.start_job("first", &format!("exec evenkeel {command}"), PROGRAM_LIMIT)?;
    guest.wait_for("the first stage", "grep -q small_spacing /run/mine.toml.state")?;
    let other = format!("calibrate --path {ADDRESS} --output /run/other.toml");
    let told = guest.attempt_evenkeel(&other)?;
    ensure!(told.code == 2 && told.text.contains("is in use") && told.text.contains("drive list"), "{told:?}");
    guest.run("kill -INT $(pidof evenkeel)")?;
    let ended = guest.finish_job("first", PROGRAM_LIMIT)?;
    ensure!(ended.code == 1 && ended.text.contains("run the same command to continue"), "{ended:?}");
    let told = guest.evenkeel(&format!("{command} 2>&1"))?;
    ensure!(told.contains("serial number ek0, namespace 1") && told.contains("Goes on with"), "{told}");
    ensure!(!told.contains("Warning: drive"), "{told}");

    guest.write_file("/run/profiled.toml", &configuration("profile = \"/run/mine.toml\"\n"))?;
    let told = guest.attempt_evenkeel("check /run/profiled.toml 2>&1")?;
    ensure!(told.code == 2 && told.text.contains("holds data at byte"), "what was overwritten is data: {}", told.text);
    let told = guest.evenkeel("check /run/profiled.toml --discard-content device 2>&1")?;
    ensure!(told.contains("mine"), "{told}");
    bind(guest, "nvme")?;
    guest.wait_for("the kernel's disk", "test -b /dev/nvme0n1")?;
    // Around the range, and in it.
    for (skip_mib, is_zero) in [(63, true), (64, false), (95, false), (96, true)] {
        let not = if is_zero { "" } else { "! " };
        guest.run(&format!(
            "dd if=/dev/nvme0n1 bs=1M skip={skip_mib} count=1 iflag=direct of=/run/read && \
             {not}cmp -s -n 1048576 /run/read /dev/zero"
        ))?;
    }
    Ok(())
}

/// Has another driver take the function.
fn bind(guest: &mut Guest, driver: &str) -> Result<()> {
    let sys = format!("/sys/bus/pci/devices/{ADDRESS}");
    guest.run(&format!(
        "echo {driver} >{sys}/driver_override && echo {ADDRESS} >{sys}/driver/unbind && \
         echo {ADDRESS} >/sys/bus/pci/drivers_probe && test $(basename $(readlink {sys}/driver)) = {driver}"
    ))?;
    Ok(())
}

fn serve(guest: &mut Guest) -> Result<()> {
    let configuration = |address: &str| {
        let tenant = |name: &str, class: &str, offset_mib: u32, rest: &str| {
            format!(
                "[[tenant]]\nname = \"{name}\"\nsize = \"32MiB\"\noffset = \"{offset_mib}MiB\"\nclass = \"{class}\"\n\
                 {rest}"
            )
        };
        format!(
            "[device]\nbackend = \"nvme\"\naddress = \"{address}\"\n[policy]\nname = \"lpns\"\n{}{}{}",
            tenant("db", "guaranteed", 0, "latency_target = \"100ms\"\n"),
            tenant("batch", "best-effort", 32, ""),
            tenant("vm", "best-effort", 64, "frontend = \"vhost-user-blk\"\n"),
        )
    };
    guest.write_file("/run/wrong.toml", &configuration("0000:00:05.0"))?;
    let told = guest.attempt_evenkeel("check /run/wrong.toml")?;
    ensure!(told.code != 0 && told.text.contains("there is no PCI device 0000:00:05.0"), "{told:?}");
    bind(guest, "vfio-pci")?;
    guest.serve(&configuration(ADDRESS))?;
    for name in ["db", "batch", "vm"] {
        guest.verify_tenant(name)?;
    }
    guest.write_file(
        "/run/again.toml",
        &format!("runtime_dir = \"/run/other\"\nstate_dir = \"/run/state\"\n{}", configuration(ADDRESS)),
    )?;
    let told = guest.evenkeel("check /run/again.toml 2>&1")?;
    ensure!(told.contains(&format!("{ADDRESS} is in use by another process")) && told.contains("batch"), "{told}");
    // Pieces of other sizes, and larger than one command.
    let told = guest.evenkeel("load /run/ek/batch --rw write --bs 1m --iodepth 4 --size 16m --verify --json")?;
    ensure!(told.contains("\"bad_blocks\":0"), "{told}");

    guest.end_daemon("KILL")?;
    guest.serve_again()?;
    let told = guest.evenkeel("load /run/ek/batch --rw read --bs 64k --iodepth 4 --size 16m --json")?;
    ensure!(told.contains("\"total_ios\":256"), "{told}");
    guest.verify_tenant("db")?;
    let ended = guest.end_daemon("TERM")?;
    ensure!(ended.code == 0 && !ended.text.contains("panicked"), "{ended:?}");

    bind(guest, "nvme")?;
    guest.wait_for("the kernel's disk", "test -b /dev/nvme0n1")?;
    // It looks where layouts are by default.
    guest.run("mkdir -p /var/lib && ln -s /run/state /var/lib/evenkeel")?;
    let told = guest.attempt_evenkeel(&format!("drive assign {ADDRESS}"))?;
    ensure!(told.code == 2 && told.text.contains("has the daemon's disks"), "{told:?}");
    // What was written by 1 MiB is no zeros at the tenant's place, and the rest of the drive is.
    guest.run(
        "dd if=/dev/nvme0n1 bs=1M skip=32 count=16 iflag=direct of=/run/written && ! cmp -s -n 16777216 \
         /run/written /dev/zero",
    )?;
    guest.run(
        "dd if=/dev/nvme0n1 bs=1M skip=96 count=32 iflag=direct of=/run/rest && cmp -n 33554432 /run/rest /dev/zero",
    )?;
    Ok(())
}
