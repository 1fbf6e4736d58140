//! The process's user, groups and capabilities.

use std::io;

use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// The user and groups that the process takes.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// Real, effective and saved user.
    pub uid: u32,
    /// Real, effective and saved group.
    pub gid: u32,
    /// All supplementary groups.
    pub groups: &'a [u32],
}

/// Changes the user, if told to, and drops every capability for good. Neither this thread, nor threads that it starts,
/// nor programs that they execute can get any back. Root that stays root keeps its capabilities.
///
/// # Errors
/// There are other threads, which would stay as they are; or the kernel refused.
pub fn drop_privileges(identity: Option<Identity<'_>>) -> io::Result<()> {
    refuse_threads()?;
    if let Some(Identity { uid, gid, groups }) = identity {
        bound(CapabilitySet::empty());
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&groups.iter().map(|group| Gid::from_raw(*group)).collect::<Vec<_>>())?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    if !geteuid().is_root() {
        let none = CapabilitySet::empty();
        clear_ambient_capability_set()?;
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    }
    Ok(set_no_new_privs(true)?)
}

/// Stays root, with only the capabilities for making block devices (CAP_SYS_ADMIN) and for seeing every user's
/// processes that have one open (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH).
///
/// # Errors
/// There are other threads, which would stay as they are; or the kernel refused.
pub fn keep_what_block_devices_take() -> io::Result<()> {
    refuse_threads()?;
    let kept = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
    bound(kept);
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })?;
    Ok(set_no_new_privs(true)?)
}

/// A capability belongs to a thread.
fn refuse_threads() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        _ => Err(io::Error::other("there are threads already, which would keep their privileges")),
    }
}

/// No program that is executed gets more.
fn bound(kept: CapabilitySet) {
    for capability in CapabilitySet::all().difference(kept).iter() {
        // Fails for those that this kernel does not have.
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Keeps other processes of the same user from reading this one's memory, and the kernel from dumping it.
///
/// # Errors
/// The kernel refused.
pub fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
