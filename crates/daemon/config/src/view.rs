//! Which part of a file is one drive's: its own `[[drive]]`, the sections at the top, and the tenants on it.

use std::collections::BTreeSet;

use crate::keys::{self, is_drive};
use crate::problem::Sink;
use crate::section::{Items, Section};

/// What the drive of `[device]` is called.
pub(crate) const DEVICE_NAME: &str = "device";

/// Drives in one file, at most.
const DRIVES_MAX: usize = 64;

/// Which part of a text a [`Config`](crate::Config) is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// The drive that it belongs to. `None`: there is one drive, and everything is on it.
    pub(crate) drive: Option<String>,
    /// Tenants that are there and name no drive, where there are several.
    pub(crate) placed: BTreeSet<String>,
    /// Bytes of the text that are the file's.
    pub(crate) declared_bytes: usize,
    /// Bytes of the text with the drives that were added since. What follows are disks that were made on this one.
    pub(crate) base_bytes: usize,
    /// Every tenant is on a drive: one that names none and is not among `placed` is on another.
    pub(crate) is_placed: bool,
    /// Pollers of other drives that come before this one's on the CPUs of the top's `[pollers]`.
    pub(crate) pollers_before: usize,
}

impl View {
    /// Of a file of one drive.
    pub(crate) fn only(file_bytes: usize) -> Self {
        let placed = BTreeSet::new();
        let (declared_bytes, base_bytes) = (file_bytes, file_bytes);
        Self { drive: None, placed, declared_bytes, base_bytes, is_placed: false, pollers_before: 0 }
    }

    /// The section of the drive.
    pub(crate) fn find<'s, 't, 'i>(
        &self,
        sink: &mut Sink<'_>,
        drives: &'s [Section<'t, 'i>],
    ) -> Option<&'s Section<'t, 'i>> {
        match (&self.drive, drives) {
            (Some(name), drives) => drives.iter().find(|drive| name_of(drive) == Some(name)),
            (None, [only]) => Some(only),
            (None, []) => None,
            (None, [_, second, ..]) => {
                let what = "there are several drives, and this command takes a file with one";
                sink.maybe_at(second.span.as_ref(), what, "give a file with that drive alone");
                None
            }
        }
    }

    /// Whether a tenant's section belongs here.
    pub(crate) fn has(&self, tenant: &Section<'_, '_>, drives: &[Section<'_, '_>]) -> bool {
        let Some(own) = &self.drive else { return true };
        if tenant.span.as_ref().is_some_and(|span| span.start >= self.base_bytes) {
            return true;
        }
        match tenant.peek("drive") {
            Some((named, _)) => named == own,
            None if drives.len() == 1 => true,
            None => tenant.peek("name").is_some_and(|(name, _)| self.placed.contains(name)),
        }
    }

    /// Whether a namespace's section belongs here. One that names no drive is on the first.
    pub(crate) fn has_namespace(&self, namespace: &Section<'_, '_>, drives: &[Section<'_, '_>]) -> bool {
        let is_first = || self.drive.as_deref() == drives.first().and_then(|first| name_of(first));
        self.has(namespace, drives) || !namespace.has("drive") && is_first()
    }

    /// Tenants of which nobody knows yet where they are going to be.
    pub(crate) fn undecided(&self, tenants: &[Section<'_, '_>], drives: &[Section<'_, '_>]) -> Vec<String> {
        if self.is_placed || drives.len() < 2 {
            return Vec::new();
        }
        let names = tenants.iter().filter(|tenant| !tenant.has("drive")).filter_map(|tenant| tenant.peek("name"));
        names.map(|(name, _)| name.to_owned()).collect()
    }

    /// This file, once every tenant is on a drive.
    pub(crate) fn placed(&self) -> Self {
        Self { is_placed: true, ..self.clone() }
    }
}

pub(crate) fn name_of<'s>(drive: &'s Section<'_, '_>) -> Option<&'s str> {
    if is_drive(drive) { drive.peek("name").map(|(name, _)| name) } else { Some(DEVICE_NAME) }
}

/// The sections of all drives that are served, `[device]` and then each `[[drive]]`.
pub(crate) fn sections<'t, 'i>(sink: &mut Sink<'_>, top: &Section<'t, 'i>) -> Vec<Section<'t, 'i>> {
    let device = top.table(sink, "device", keys::device::NAMES);
    let words = Items {
        one: "drive",
        each: "each drive",
        keys: "name and backend",
        most: DRIVES_MAX,
        why: "can be served by one daemon",
    };
    let items = top.tables(sink, "drive", &words).into_iter();
    let drives = items.map(|(span, table)| {
        let mut drive = Section::new(keys::SCHEMA, "[[drive]]", keys::DRIVE, Some(span), Some(table));
        let named = drive.peek("name").map(|(name, _)| format!("drive {name:?}"));
        drive.label = named.unwrap_or(drive.label);
        drive
    });
    [device].into_iter().filter(|device| device.span.is_some()).chain(drives).collect()
}

/// `[policy]` or `[pollers]` of a drive: its own, or else the top's.
pub(crate) fn part<'t, 'i>(
    sink: &mut Sink<'_>,
    top: &Section<'t, 'i>,
    drive: Option<&Section<'t, 'i>>,
    key: &str,
    known: &'static [&'static str],
) -> Section<'t, 'i> {
    let Some(drive) = drive.filter(|drive| is_drive(drive) && drive.has(key)) else {
        return top.table(sink, key, known);
    };
    let mut part = drive.table(sink, key, known);
    part.label = format!("[drive.{key}]");
    part
}
