//! The blocks of disks, which can't be smaller than those of their drive.

use std::ops::Range;

use layout::Layout;

use crate::config::Config;
use crate::problem::{ConfigErrors, Sink};

/// The largest that a disk can have.
const MOST_BYTES: u32 = 4096;

/// A disk as far as its blocks go.
struct Blocks<'a> {
    title: String,
    lba_bytes: u32,
    mark: &'a Range<usize>,
    /// Where the file says how large they are to be.
    written: Option<&'a Range<usize>>,
}

impl Config {
    /// Disks whose blocks are smaller than `drive_bytes`, the smallest that their drive reads and writes, can't be
    /// served. `placed` tells what disks have that were placed before; others are new.
    ///
    /// # Errors
    /// Each of them, but for new ones of which the file does not say it: those get larger ones.
    pub fn refuse_smaller_blocks(
        &self,
        drive_bytes: u32,
        placed: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<(), ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        let drive = &self.device.name;
        if drive_bytes > MOST_BYTES {
            let what = format!("the blocks of drive {drive:?} have {drive_bytes} bytes, and a disk's 512 or 4096");
            sink.maybe_at(self.marks.path.as_ref(), what, "give a drive with smaller blocks");
            return sink.finish();
        }
        for (name, Blocks { title, lba_bytes, mark, written }) in self.blocks() {
            match (placed(name), written) {
                (Some(placed), _) if placed < drive_bytes => {
                    let what = format!(
                        "{title} has blocks of {placed} bytes, and drive {drive:?} none smaller than {drive_bytes}"
                    );
                    let remedy = "move the drive's data back to a device or file system with smaller blocks, or copy \
                                  the disk's data to a new disk inside a guest";
                    sink.at(mark, what, remedy);
                }
                (None, Some(written)) if lba_bytes < drive_bytes => {
                    let what = format!(
                        "{title} is to have lba_size = {lba_bytes}, and drive {drive:?} has no blocks smaller than \
                         {drive_bytes}"
                    );
                    let remedy = format!("write lba_size = {drive_bytes}, or leave it out to get what the drive has");
                    sink.at(written, what, remedy);
                }
                _ => {}
            }
        }
        sink.finish()
    }

    /// Refuses block sizes of disks in a layout that are smaller than the drive's.
    pub(crate) fn refuse_smaller_than(
        &self,
        drive_bytes: Option<u32>,
        recorded: Option<&Layout>,
    ) -> Result<(), ConfigErrors> {
        let placed = |name: &str| Some(recorded?.find(name)?.lba_bytes);
        drive_bytes.map_or(Ok(()), |bytes| self.refuse_smaller_blocks(bytes, &placed))
    }

    /// Raises the block size of new disks to at least this many bytes.
    pub(crate) fn raise_blocks(&mut self, drive_bytes: u32) {
        let namespaces = self.namespaces.iter_mut().map(|it| &mut it.lba_bytes);
        let all = self.tenants.iter_mut().map(|it| &mut it.lba_bytes).chain(namespaces);
        all.for_each(|bytes| *bytes = (*bytes).max(drive_bytes));
    }

    fn blocks(&self) -> impl Iterator<Item = (&str, Blocks<'_>)> {
        let of_tenants = self.tenants.iter().map(|tenant| {
            let (title, written) = (format!("tenant {:?}", tenant.name), tenant.marks.lba_size.as_ref());
            (tenant.name.as_str(), Blocks { title, lba_bytes: tenant.lba_bytes, mark: &tenant.marks.name, written })
        });
        let of_namespaces = self.namespaces.iter().map(|it| {
            let (title, written) = (format!("namespace {:?}", it.name), it.marks.lba_size.as_ref());
            (it.name.as_str(), Blocks { title, lba_bytes: it.lba_bytes, mark: &it.marks.name, written })
        });
        of_tenants.chain(of_namespaces)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = "[[drive]]\nname = \"d\"\nbackend = \"null\"\nsize = \"1GiB\"\n\
                        [policy]\nname = \"passthrough\"\n\
                        [[tenant]]\nname = \"plain\"\nsize = \"1MiB\"\n\
                        [[tenant]]\nname = \"small\"\nsize = \"1MiB\"\nlba_size = 512\n\
                        [[namespace]]\nname = \"logs\"\nnsid = 2\nsize = \"1MiB\"\nlba_size = 512\n";

    #[test]
    fn smaller_blocks_than_the_drives_are_refused_where_they_are_written_or_recorded() {
        let mut config = Config::parse(Path::new("ek.toml"), TEXT).unwrap_or_else(|e| panic!("{e}"));
        let told = |config: &Config, drive_bytes, placed: &dyn Fn(&str) -> Option<u32>| {
            config.refuse_smaller_blocks(drive_bytes, placed).err().map(|errors| errors.to_string()).unwrap_or_default()
        };
        assert_eq!(told(&config, 512, &|_| None), "");
        assert_eq!(told(&config, 4096, &|_| Some(4096)), "", "they stay as they were formatted");
        let refused = told(&config, 4096, &|_| None);
        for part in
            ["ek.toml:13", "tenant \"small\" is to have lba_size = 512", "ek.toml:18", "namespace \"logs\"", "4096"]
        {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert!(!refused.contains("plain"), "{refused}");
        let refused = told(&config, 4096, &|name| (name == "plain").then_some(512).or(Some(4096)));
        assert!(
            refused.contains("tenant \"plain\" has blocks of 512 bytes") && !refused.contains("small\""),
            "{refused}"
        );
        assert!(told(&config, 65_536, &|_| None).contains("65536 bytes, and a disk's 512 or 4096"));
        config.raise_blocks(4096);
        assert_eq!(config.tenants[0].lba_bytes, 4096);
    }
}
