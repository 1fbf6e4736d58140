//! All drives of a file as they are now: present ones, missing ones that may be missing, and their layouts.

use std::path::Path;

use crate::config::Tenant;
use crate::drives::{Drives, Findings, Unplaced, refuse_made};
use crate::found::Found;
use crate::host::{AllowedCpus, most_open_files, warn_crowded, warn_few_files};
use crate::missing::{Absent, Missing};
use crate::problem::{ConfigErrors, Sink};
use crate::same_drive::{is_same_drive_as, same_drive};
use crate::view::DEVICE_NAME;

/// All drives of a file, as they are now.
#[derive(Debug)]
pub struct Looked {
    /// At least one.
    pub found: Vec<Found>,
    /// Optional drives that are unavailable, and tenants that may be on them and can't be served.
    pub absent: Absent,
    /// Tenants that are to be placed on what was found.
    pub unplaced: Unplaced,
}

/// What helps the tenants of the other drives.
const OR_NOFAIL: &str = "; or write nofail = true in its section: then the others are served without it";

/// A drive that is there.
struct There {
    /// Where it stands among all.
    at: usize,
    drive: Found,
    /// Tenants that could be placed on it.
    candidates: Vec<Tenant>,
}

impl Drives {
    /// Looks at every drive, and finds the tenants that were placed there before. Changes nothing.
    ///
    /// # Errors
    /// What [`Config::check_host`](crate::Config::check_host) and `LayoutFile::open` report, of all drives that must be
    /// there; one device that is two of them, whatever its paths; one name on two of them.
    pub fn find(self) -> Result<Looked, ConfigErrors> {
        let file = self.each.first().map(|config| config.file().to_owned()).unwrap_or_default();
        let (there, drives, mut unplaced) = self.look(&file)?;
        let (mut found, mut candidates) = (Vec::new(), Vec::new());
        for There { drive, candidates: its, .. } in there {
            found.push(drive);
            candidates.push(its);
        }
        unplaced.candidates = candidates;
        // Those on a drive that is there become the file's own.
        let made = drives.iter().flat_map(Missing::made).map(|(name, _)| name);
        refuse_made(found.iter().map(|drive| &drive.config), &unplaced, &made.collect::<Vec<_>>())?;
        let mut all = Findings::default();
        let on = |name: &str| {
            let missing = drives.iter().find(|it| it.layout().is_some_and(|layout| layout.find(name).is_some()));
            let there = found.iter().find(|other| other.has(name)).map(|it| &it.config);
            there.or_else(|| Some(&missing?.config)).map(|config| config.device.name.as_str())
        };
        found.iter().for_each(|it| _ = all.take(it.config.refuse_elsewhere(&|name| it.has(name), &on)));
        all.finish(&file)?;
        for (name, at) in unplaced.take_known(|name| found.iter().position(|drive| drive.has(name))) {
            unplaced.put(&name, at, &mut found[at].config);
        }
        // Its data may lie on a drive that is not there: anywhere else it would have an empty disk.
        let unknown = if drives.is_empty() { Vec::new() } else { std::mem::take(&mut unplaced.names) };
        Ok(Looked { found, absent: Absent { drives, unknown }, unplaced })
    }

    /// The drives that are there, in the file's order, and those that are not and need not be.
    fn look(self, file: &Path) -> Result<(Vec<There>, Vec<Missing>, Unplaced), ConfigErrors> {
        let Self { each, mut unplaced, .. } = self;
        let mut all = Findings::default();
        let (mut there, mut missing): (Vec<There>, Vec<Missing>) = (Vec::new(), Vec::new());
        let mut each: Vec<_> = each.into_iter().zip(std::mem::take(&mut unplaced.candidates)).enumerate().collect();
        // Of two drives that contradict each other it is the one that need not be there which is not.
        each.sort_by_key(|(_, (config, _))| config.device.nofail);
        let has_others = each.len() > 1;
        for (at, (config, candidates)) in each {
            let absent = config.device.nofail.then(|| config.clone());
            let can_be_missing = has_others && config.device.name != DEVICE_NAME && absent.is_none();
            let or_nofail = |errors: ConfigErrors| if can_be_missing { errors.or(OR_NOFAIL) } else { errors };
            let looked = Found::look(config).map_err(or_nofail).and_then(|drive| {
                refuse_one_drive_twice(&there, &missing, &drive)?;
                // Another drive's layout has that one's names, too.
                let of_this = || drive.config.refuse_layout(&drive.host.device, drive.layout());
                refuse_one_name_twice(&there, &drive).or_else(|twice| of_this().and(Err(twice)))?;
                // Of a drive that must be there it is told beside what else its tenants contradict.
                if absent.is_some() { drive.refuse_content().map(|()| drive) } else { Ok(drive) }
            });
            match (looked, absent) {
                (Ok(drive), _) => there.push(There { at, drive, candidates }),
                (Err(errors), Some(config)) => missing.push(Missing::new(config, errors)),
                (Err(errors), None) => _ = all.take::<()>(Err(errors)),
            }
        }
        if there.is_empty() {
            // At least one drive must be served.
            missing.iter().for_each(|it| _ = all.take::<()>(Err(it.errors.clone())));
        }
        all.finish(file)?;
        there.sort_by_key(|it| it.at);
        let configs = there.iter().map(|it| &it.drive.config);
        let few_files = most_open_files().and_then(|most| warn_few_files(configs.clone(), most));
        let crowded = AllowedCpus::of_this_process().and_then(|allowed| warn_crowded(configs, &allowed));
        if let Some(first) = there.first_mut() {
            first.drive.host.warnings.extend(crowded.into_iter().chain(few_files));
        }
        Ok((there, missing, unplaced))
    }
}

fn refuse_one_drive_twice(there: &[There], missing: &[Missing], drive: &Found) -> Result<(), ConfigErrors> {
    let Found { config, host, .. } = drive;
    let mut sink = Sink::new(&config.text);
    let path = &host.device.path;
    let is_same = |other: &&There| config.device.backend.place().is_some() && other.drive.host.device.path == *path;
    let same = there.iter().find(is_same).map(|other| &other.drive.config.device.name);
    let same = same.or_else(|| Some(&missing.iter().find(|it| it.is_at(Path::new(path)))?.config.device.name));
    if let Some(other) = same {
        let remedy = match config.is_added() {
            true => format!(
                "`evenkeel drive remove {}` takes one of the two out of {}",
                config.device.name,
                config.added_file().display()
            ),
            false => "name another path, or remove one of the two".to_owned(),
        };
        sink.maybe_at(config.marks.path.as_ref(), format!("{path} is drive {other:?} already"), remedy);
        return sink.finish();
    }
    let found = there.iter().map(|other| (&other.drive.config, &other.drive.host.device));
    let recorded = missing.iter().filter_map(|other| Some((&other.config, other.layout()?.device())));
    if let Some(other) = same_drive(config, &host.device, found.chain(recorded)) {
        let (what, mut remedy) = is_same_drive_as(config, &host.device, other);
        if config.is_added() {
            remedy += &format!("; `evenkeel drive remove {}` removes the one that was added", config.device.name);
        }
        sink.maybe_at(config.marks.path.as_ref().or(config.marks.device.as_ref()), what, remedy);
    }
    sink.finish()
}

/// Two disks that were made under one name, while the drive of one was away, would be served on one socket.
fn refuse_one_name_twice(there: &[There], drive: &Found) -> Result<(), ConfigErrors> {
    let mut sink = Sink::new(&drive.config.text);
    let mark = drive.config.marks.device.as_ref();
    for name in drive.made() {
        let has_made = |other: &&There| other.drive.made().contains(&name);
        let Some(other) = there.iter().find(has_made).map(|other| &other.drive.config.device.name) else { continue };
        let what = format!("it has a disk {name:?}, and so has drive {other:?}: only that one is served");
        let remedy = format!(
            "stop the daemon and give the disk another name in {} (`name` of the [[tenant]] and in its `settings`), or \
             delete the one on {other:?}, which loses its data",
            drive.file.path().unwrap_or(Path::new("its layout file")).display()
        );
        sink.maybe_at(mark, what, remedy);
    }
    sink.finish()
}

#[cfg(test)]
mod tests {
    use layout::{DeviceIdentity, LayoutFile};

    use super::*;
    use crate::host::HostReport;

    #[test]
    fn one_namespace_behind_two_controllers_is_one_drive() {
        let text = "[[drive]]\nname = \"a\"\nbackend = \"nvme\"\naddress = \"0000:03:00.1\"\n\
                    [[drive]]\nname = \"b\"\nbackend = \"nvme\"\naddress = \"0000:03:00.2\"\n\
                    [policy]\nname = \"passthrough\"\n";
        let drives = Drives::parse(Path::new("ek.toml"), text, "").unwrap_or_else(|e| panic!("{e}"));
        let found = |at: usize, id: &str| {
            let config = drives.each[at].clone();
            let path = config.device.backend.place().unwrap_or_default().display().to_string();
            let device = DeviceIdentity { path, id: Some(id.to_owned()), size_bytes: 1 << 30, ..Default::default() };
            let host = HostReport::of(device);
            Found { config, host, file: LayoutFile::open(None).expect("no layout") }
        };
        let there = [There { at: 0, drive: found(0, "nvme-S1-1"), candidates: Vec::new() }];
        let told = |id: &str| refuse_one_drive_twice(&there, &[], &found(1, id)).map_err(|errors| errors.to_string());
        assert_eq!(told("nvme-S1-2"), Ok(()));
        let refused = told("nvme-S1-1").expect_err("refused");
        for part in ["ek.toml:8", "\"a\" (0000:03:00.1)", "\"b\" (0000:03:00.2)", "nvme-S1-1", "remove one of the two"]
        {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
}
