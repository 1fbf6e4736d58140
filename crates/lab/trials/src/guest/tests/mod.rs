//! The guest tests. Each asks the lab for the guests it needs; none relies on what another left on
//! the drives.

mod assigned;
mod clones;
mod commands;
mod crash;
mod data;
mod drives;
mod encrypted;
mod ext4;
mod firmware;
mod foreign;
mod foreign_vms;
mod hotplug;
mod hybrid;
mod image_disks;
mod images;
mod kubernetes;
mod namespaces;
mod nvme_commands;
mod nvme_drive;
mod online;
mod package;
mod pair;
mod priorities;
mod rebind;
mod recipes;
mod recipes_containers;
mod thin;
mod ublk;
mod virtio;
mod virtio_data;
mod volumes;

use anyhow::Result;

use super::kill;
use super::lab::Lab;

/// A test.
pub struct Test {
    /// Its name in reports and filters.
    pub name: &'static str,
    /// Fails where what it tests does.
    pub run: fn(&mut Lab) -> Result<()>,
    /// Part of `make test`. The others run with `--all`, by name, or where the changed paths name them.
    pub is_daily: bool,
}

const fn daily(name: &'static str, run: fn(&mut Lab) -> Result<()>) -> Test {
    Test { name, run, is_daily: true }
}

const fn full(name: &'static str, run: fn(&mut Lab) -> Result<()>) -> Test {
    Test { name, run, is_daily: false }
}

/// Tests beyond the daily ones that a change calls for: paths from the repository's root, and parts of tests' names.
pub const BY_PATH: [(&[&str], &[&str]); 13] = [
    (&["packaging/", "crates/evenkeel/Cargo.toml", "crates/lab/trials/src/package.rs"], &["package-", "recipe-"]),
    (&["docs/recipes/"], &["recipe-"]),
    (&["packaging/evenkeel-storage-provider", "crates/evenkeel/src/storage_provider/"], &["volumes-"]),
    (
        &["crates/backends/nvme", "crates/daemon/host-drives/", "crates/daemon/config/src/host/"],
        &["nvme-drive-", "nvme-commands-", "drive-", "drives-"],
    ),
    (&["crates/daemon/keeper/"], &["-killed"]),
    (&["crates/frontends/ublk/"], &["ublk-"]),
    (&["crates/daemon/csi/"], &["kubernetes-"]),
    (&["crates/backends/cipher/", "crates/daemon/keys/"], &["encrypted-"]),
    (&["crates/daemon/pieces/", "crates/daemon/runtime/src/pieces.rs"], &["thin-"]),
    (
        &["crates/frontends/", "crates/core/guest-memory/", "crates/daemon/runtime/src/front_end/"],
        &["foreign-pin-", "foreign-memory-", "foreign-translated-", "foreign-uefi-512"],
    ),
    (&["crates/daemon/layout/src/placement.rs"], &["foreign-long-names"]),
    (&["crates/daemon/evenkeeld/src/serve.rs"], &["foreign-qemu-"]),
    (
        &["crates/lab/trials/src/guest/boot_image.rs", "crates/lab/trials/src/guest/firmware.rs"],
        &["foreign-uefi-", "foreign-bios-"],
    ),
];

/// All tests, in the order that they run in; guests stay up from one to the next.
///
/// Daily are the tests that meet each front end, each back end and each way of dying once, with verified data.
pub const ALL: &[Test] = &[
    daily("images-compared-by-qemu", images::compared_by_qemu),
    daily("image-disks-checked-by-qemu", image_disks::checked_by_qemu),
    daily("two-guests-keep-apart", pair::keep_apart),
    daily("fio-verify-io-uring", data::verify_io_uring),
    daily("fio-trim", data::trim),
    full("nvme-identify-and-commands", commands::identify_and_commands),
    daily("nvme-bad-commands", commands::bad_commands),
    daily("nvme-format", commands::format),
    daily("nvme-reset-under-load", rebind::reset_under_load),
    full("driver-rebind-under-load", rebind::rebind_under_load),
    full("guest-killed-mid-write", crash::killed_mid_write),
    full("ext4-survives-restarts", ext4::survives_restarts),
    daily("nvme-namespaces-come-grow-and-go", namespaces::come_grow_and_go),
    daily("nvme-drive-without-the-kernel", nvme_drive::served_without_the_kernel),
    full("nvme-drive-of-two-namespaces", nvme_drive::second_namespace),
    full("nvme-drive-behind-two-controllers", nvme_drive::two_controllers),
    full("nvme-commands-past-the-block-layer", nvme_commands::past_the_block_layer),
    full("nvme-commands-that-fail", nvme_commands::what_goes_wrong),
    full("nvme-drive-calibrated", nvme_drive::calibrated),
    full("nvme-drive-unplugged-and-plugged-again", hotplug::unplugged_and_plugged_again),
    full("nvme-drive-late-and-wrong", hotplug::late_and_wrong),
    full("drives-are-claimed-and-given-back", drives::claimed_and_given_back),
    full("a-drive-is-assigned-and-returned", assigned::assigned_and_returned),
    full("a-drive-that-others-have-is-not-assigned", assigned::what_others_have),
    full("drives-have-virtual-functions", drives::virtual_functions),
    daily("ublk-block-devices", ublk::block_devices),
    full("ublk-without-the-driver", ublk::no_driver),
    full("kubernetes-csi-sanity", kubernetes::sanity),
    full("encrypted-block-devices", encrypted::block_devices),
    daily("thin-block-devices", thin::block_devices),
    full("clones-boot-debian", clones::boot_debian),
    full("vm-container-and-process", hybrid::three_at_once),
    full("foreign-pin-interrupts", foreign::pin_interrupts),
    full("foreign-drives-without-identity", foreign::drives_without_identity),
    full("foreign-memory-in-a-file", foreign::memory_in_a_file),
    full("foreign-private-memory", foreign::private_memory),
    full("foreign-translated-memory", foreign::translated),
    full("foreign-long-names", foreign_vms::long_names),
    full("foreign-sleep", foreign_vms::sleep),
    full("foreign-large-vm", foreign_vms::large),
    full("foreign-qemu-old-and-new", foreign_vms::printed_arguments),
    full("foreign-ordinary-user", foreign_vms::ordinary_user),
    full("foreign-uefi-512", firmware::uefi_512),
    full("foreign-uefi-4096", firmware::uefi_4096),
    full("foreign-bios-512", firmware::bios_512),
    full("virtio-queues-and-features", virtio::queues_and_features),
    full("virtio-read-only", virtio::read_only),
    daily("virtio-fio-verify", virtio_data::verify),
    daily("virtio-trim-and-zeroes", virtio_data::trim_and_zeroes),
    full("virtio-write-cache", virtio_data::write_cache),
    full("virtio-ext4-survives-reboot", virtio_data::ext4_survives_reboot),
    full("virtio-rebind-under-load", virtio::rebind_under_load),
    full("virtio-priorities-by-ionice", priorities::by_ionice),
    daily("disks-come-and-go", online::come_and_go),
    daily("virtio-daemon-killed", kill::few_kills),
    daily("nvme-daemon-killed", kill::few_kills_beside_a_keeper),
    full("nvme-sanitize-killed", kill::while_a_guest_sanitizes),
    full("daemon-killed-while-guests-boot", kill::few_kills_while_guests_boot),
    full("recipe-qemu", recipes::qemu),
    full("recipe-libvirt", recipes::libvirt),
    full("daemon-killed-while-guests-reset", kill::few_kills_while_guests_reset),
    full("package-installed-upgraded-and-purged", package::installed_upgraded_and_purged),
    full("recipe-containers", recipes_containers::containers),
    full("volumes-of-systemd", volumes::acquired_and_mounted),
];
