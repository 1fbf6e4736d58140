//! What a broken daemon might leave behind, done by hand while none runs: each must be found.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, anyhow};
use config::AddedDrives;
use toml::{Table, Value};

use super::content::{BLOCK_BYTES, ZEROS, block, lock};
use super::files::{Drive, Strangers, offset_on_drive, spare_image};
use super::model::{DECLARED, Known, SPARES, State};
use crate::host::Host;

/// A harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A tenant of the second drive is forgotten.
    LostTenant,
    /// A namespace is forgotten.
    LostNamespace,
    /// A namespace is attached to a tenant less.
    LostAttachment,
    /// A namespace that was read-only can be written to.
    LostProtection,
    /// A drive that was added is forgotten.
    LostDrive,
    /// A write to a namespace that was acknowledged is gone.
    LostWrite,
    /// A disk of the second drive has a block of another one.
    ForeignBlock,
    /// Two disks of the second drive have the same place.
    SamePlace,
    /// What is free on the second drive holds something of a disk.
    Leftover,
    /// A drive that was taken away is written to.
    WriteToAbsent,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::LostTenant,
        Self::LostNamespace,
        Self::LostAttachment,
        Self::LostProtection,
        Self::LostDrive,
        Self::LostWrite,
        Self::ForeignBlock,
        Self::SamePlace,
        Self::Leftover,
        Self::WriteToAbsent,
    ];

    /// Does it. `false`: there is nothing to do it to now.
    pub fn commit(self, host: &Host, state: &State, strangers: &Strangers) -> Result<bool> {
        let field = Field { host, state };
        let second = DECLARED[1].0;
        let done = match self {
            Self::LostTenant => field.find(|known| known.is_made() && known.is_on(second)).map(|it| field.forget(it)),
            Self::LostNamespace => field.find(|known| known.shape.nsid.is_some()).map(|it| field.forget(it)),
            Self::LostAttachment => field.find(|known| !known.shape.attachments.is_empty()).map(|it| {
                let tenant = it.1.shape.attachments.keys().next().context("it has one")?;
                field.change_namespace(it, |namespace| namespace.detach(tenant))
            }),
            Self::LostProtection => {
                field.find(|known| known.shape.attachments.values().any(|read_only| *read_only)).map(|it| {
                    field.change_namespace(it, |namespace| {
                        let tenants = std::mem::take(&mut namespace.read_only);
                        namespace.tenants.extend(tenants);
                        namespace.shared = true;
                    })
                })
            }
            Self::LostDrive => state.added.keys().next().map(|name| {
                let added = AddedDrives::in_directory(&host.path("state")).map_err(|error| anyhow!("{error}"))?;
                Ok(added.without(name).save()?)
            }),
            Self::LostWrite => field
                .find(|known| known.shape.nsid.is_some() && known.written().is_some())
                .map(|it| field.put(it, it.1.written().context("it has one")?, &ZEROS)),
            Self::ForeignBlock => field.find(|known| known.is_on(second)).map(|it| {
                let stranger = lock(&it.1.content).owner + 1;
                field.put(it, 0, &block(stranger, 0, 1))
            }),
            Self::SamePlace => return field.place_twice(second),
            Self::Leftover => return field.leave_something(second),
            Self::WriteToAbsent => SPARES.into_iter().find(|name| strangers.have(name)).map(|name| {
                Ok(File::options().write(true).open(spare_image(host, name))?.write_all_at(&[1], 5 * BLOCK_BYTES)?)
            }),
        };
        done.transpose().map(|done| done.is_some())
    }
}

impl Known {
    /// Whether it is a tenant that the API made.
    fn is_made(&self) -> bool {
        self.shape.terms.is_some() && self.shape.drive.is_some()
    }

    fn is_on(&self, drive: &str) -> bool {
        self.shape.drive.as_deref() == Some(drive)
    }

    /// A block that was written, and acknowledged.
    fn written(&self) -> Option<u64> {
        lock(&self.content).settled_block()
    }
}

struct Field<'a> {
    host: &'a Host,
    state: &'a State,
}

type Disk<'a> = (&'a str, &'a Known);

impl<'a> Field<'a> {
    /// A disk that the API made.
    fn find(&self, is_it: impl Fn(&Known) -> bool) -> Option<Disk<'a>> {
        let mut disks = self.state.disks.iter().filter(|(name, _)| name.starts_with('d'));
        disks.find(|(_, known)| is_it(known)).map(|(name, known)| (name.as_str(), known))
    }

    fn drive(&self, name: &str) -> Result<Drive> {
        let drive = Drive::of(self.host)?.into_iter().find(|drive| drive.name == name);
        drive.with_context(|| format!("the drive {name}"))
    }

    fn drive_of(&self, known: &Known) -> Result<Drive> {
        self.drive(known.shape.drive.as_deref().unwrap_or_default())
    }

    /// Changes the list of disks in a layout.
    fn edit(drive: &Drive, change: impl FnOnce(&mut Vec<Value>) -> Result<()>) -> Result<()> {
        let mut table: Table = toml::from_str(&std::fs::read_to_string(&drive.layout)?)?;
        change(table.get_mut("tenant").and_then(Value::as_array_mut).context("a layout with disks")?)?;
        Ok(std::fs::write(&drive.layout, format!("{table}\n# end of the layout\n"))?)
    }

    fn forget(&self, (name, known): Disk<'_>) -> Result<()> {
        Self::edit(&self.drive_of(known)?, |disks| {
            disks.retain(|disk| !has_name(disk, name));
            Ok(())
        })
    }

    fn change_namespace(&self, (name, known): Disk<'_>, change: impl FnOnce(&mut api::Namespace)) -> Result<()> {
        Self::edit(&self.drive_of(known)?, |disks| {
            let disk = disks.iter_mut().find(|disk| has_name(disk, name)).context("its record")?;
            let settings = disk.get_mut("settings").context("its settings")?;
            let mut namespace = settings.as_str().and_then(api::Namespace::from_section).context("its section")?;
            change(&mut namespace);
            *settings = namespace.to_section()?.into();
            Ok(())
        })
    }

    /// Writes a block of a disk behind its back.
    fn put(&self, (name, known): Disk<'_>, at: u64, content: &[u8]) -> Result<()> {
        let drive = self.drive_of(known)?;
        let layout = drive.layout()?.context("a layout")?;
        let placement = layout.find(name).context("its place")?;
        let offset = offset_on_drive(placement, at * BLOCK_BYTES).context("the block's place")?;
        Ok(File::options().write(true).open(&drive.image)?.write_all_at(content, offset)?)
    }

    fn place_twice(&self, drive: &str) -> Result<bool> {
        let drive = self.drive(drive)?;
        let layout = drive.layout()?.context("a layout")?;
        let [first, .., last] = layout.placements() else { return Ok(false) };
        let offset = Value::Integer(first.offset_bytes() as i64);
        Self::edit(&drive, |disks| {
            let disk = disks.iter_mut().find(|disk| has_name(disk, &last.name)).context("its record")?;
            disk.as_table_mut().context("a table")?.insert("offset_bytes".to_owned(), offset);
            Ok(())
        })?;
        Ok(true)
    }

    /// At the end of the drive, where nobody is for long.
    fn leave_something(&self, drive: &str) -> Result<bool> {
        let drive = self.drive(drive)?;
        let layout = drive.layout()?.context("a layout")?;
        let at = drive.size_bytes - BLOCK_BYTES;
        let wiping = layout.wiping().iter().map(layout::Wiping::extent);
        let taken = layout.placements().iter().flat_map(|it| it.extents.iter().copied()).chain(wiping);
        if taken.into_iter().any(|extent| extent.end_bytes() > at) {
            return Ok(false);
        }
        File::options().write(true).open(&drive.image)?.write_all_at(&block(1, 0, 1), at)?;
        Ok(true)
    }
}

fn has_name(disk: &Value, name: &str) -> bool {
    disk.get("name").and_then(Value::as_str) == Some(name)
}
