//! The guest tests. Each asks the lab for the guests it needs; none relies on what another left on
//! the drives.

mod assigned;
mod commands;
mod crash;
mod data;
mod drives;
mod ext4;
mod hotplug;
mod hybrid;
mod namespaces;
mod nvme_commands;
mod nvme_drive;
mod online;
mod package;
mod pair;
mod priorities;
mod programs;
mod rebind;
mod recipes;
mod recipes_containers;
mod sanitize;
mod ublk;
mod virtio;
mod virtio_data;

use anyhow::Result;

use super::kill;
use super::lab::Lab;

/// A test.
pub struct Test {
    /// Its name in reports and filters.
    pub name: &'static str,
    /// Fails where what it tests does.
    pub run: fn(&mut Lab) -> Result<()>,
    /// It takes minutes, so that it is run by its name or with all others only.
    pub is_long: bool,
}

const fn test(name: &'static str, run: fn(&mut Lab) -> Result<()>) -> Test {
    Test { name, run, is_long: false }
}

const fn long(name: &'static str, run: fn(&mut Lab) -> Result<()>) -> Test {
    Test { name, run, is_long: true }
}

/// All tests, in the order that they run in; guests stay up from one to the next.
pub const ALL: &[Test] = &[
    test("two-guests-four-queues", pair::four_queues),
    test("two-guests-keep-apart", pair::keep_apart),
    test("fio-verify-libaio", data::verify_libaio),
    test("fio-verify-io-uring", data::verify_io_uring),
    test("fio-trim", data::trim),
    test("nvme-identify", commands::identify),
    test("nvme-logs-and-features", commands::logs_and_features),
    test("nvme-arbitration", commands::arbitration),
    test("nvme-data-commands", commands::data_commands),
    test("nvme-bad-commands", commands::bad_commands),
    test("nvme-format", commands::format),
    test("nvme-reset-under-load", rebind::reset_under_load),
    test("driver-rebind-under-load", rebind::rebind_under_load),
    test("guest-killed-mid-write", crash::killed_mid_write),
    test("daemon-stopped-mid-write", crash::daemon_stopped_mid_write),
    test("ext4-survives-restarts", ext4::survives_restarts),
    test("nvme-namespaces-come-grow-and-go", namespaces::come_grow_and_go),
    test("nvme-drive-without-the-kernel", nvme_drive::served_without_the_kernel),
    test("nvme-drive-of-two-namespaces", nvme_drive::second_namespace),
    test("nvme-drive-behind-two-controllers", nvme_drive::two_controllers),
    test("nvme-commands-past-the-block-layer", nvme_commands::past_the_block_layer),
    test("nvme-commands-that-fail", nvme_commands::what_goes_wrong),
    test("nvme-drive-calibrated", nvme_drive::calibrated),
    test("nvme-drive-unplugged-and-plugged-again", hotplug::unplugged_and_plugged_again),
    test("nvme-drive-late-and-wrong", hotplug::late_and_wrong),
    test("nvme-drive-erases-itself", sanitize::erases_itself),
    test("drives-are-claimed-and-given-back", drives::claimed_and_given_back),
    test("a-drive-is-assigned-and-returned", assigned::assigned_and_returned),
    test("a-drive-that-others-have-is-not-assigned", assigned::what_others_have),
    test("drives-have-virtual-functions", drives::virtual_functions),
    test("programs-run-inside-a-guest", programs::run_inside),
    test("ublk-block-devices", ublk::block_devices),
    test("ublk-without-the-driver", ublk::no_driver),
    test("vm-container-and-process", hybrid::three_at_once),
    test("virtio-queues-and-features", virtio::queues_and_features),
    test("virtio-read-only", virtio::read_only),
    test("virtio-fio-verify", virtio_data::verify),
    test("virtio-trim-and-zeroes", virtio_data::trim_and_zeroes),
    test("virtio-write-cache", virtio_data::write_cache),
    test("virtio-ext4-survives-reboot", virtio_data::ext4_survives_reboot),
    test("virtio-rebind-under-load", virtio::rebind_under_load),
    test("virtio-beside-nvme", virtio_data::beside_nvme),
    test("virtio-priorities-by-ionice", priorities::by_ionice),
    test("disks-come-and-go", online::come_and_go),
    test("virtio-daemon-killed", kill::few_kills),
    test("nvme-daemon-killed", kill::few_kills_beside_a_keeper),
    test("daemon-killed-while-guests-boot", kill::few_kills_while_guests_boot),
    test("recipe-qemu", recipes::qemu),
    test("recipe-libvirt", recipes::libvirt),
    test("daemon-killed-while-guests-reset", kill::few_kills_while_guests_reset),
    test("package-installed-upgraded-and-purged", package::installed_upgraded_and_purged),
    long("recipe-containers", recipes_containers::containers),
];
