//! A file as sections that can be taken apart: what differs between two files, and one with some of another's disks.
//!
//! Texts stay the operator's: a value is compared by what it means (`1024MiB` is `1GiB`), and kept as it was written.

use std::fmt::Write;

use io_model::units::Size;
use toml::{Table, Value};

use crate::config::Config;
use crate::keys::{self, Changes, Row};
use crate::problem::ConfigErrors;

/// The sections of one file, in an order of their own and without comments.
#[derive(Debug, Clone, PartialEq)]
pub struct Sections {
    head: Table,
    /// Tenants and namespaces; no name is there twice.
    disks: Vec<(DiskKind, Table)>,
}

/// What has a section, a name and a place on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// `[[tenant]]`.
    Tenant,
    /// `[[namespace]]`.
    Namespace,
}

impl DiskKind {
    const ALL: [Self; 2] = [Self::Tenant, Self::Namespace];

    /// As a file's heading has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Namespace => "namespace",
        }
    }

    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Tenant => keys::tenant::NAMES,
            Self::Namespace => keys::namespace::NAMES,
        }
    }

    const fn row(self) -> fn(&str) -> Option<&'static dyn Row> {
        match self {
            Self::Tenant => keys::of_tenant,
            Self::Namespace => keys::of_namespace,
        }
    }
}

/// A key that has another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// As in the file; `demand.bs` for one of a section within.
    pub key: String,
    /// `None`: it is not there.
    pub old: Option<String>,
    /// `None`: it is there no more.
    pub new: Option<String>,
    /// What to do where this can't be changed while the daemon runs.
    pub remedy: Option<&'static str>,
}

impl Sections {
    /// Those of a configuration's file, without the disks that were made since.
    ///
    /// # Errors
    /// What was checked can't be read again: a bug.
    pub fn of(config: &Config) -> Result<Self, ConfigErrors> {
        Self::of_text(config.declared_text()).map_err(|error| {
            let what = format!("can't be taken apart: {}", error.message());
            ConfigErrors::one(config.file(), what, "please report it with the file")
        })
    }

    fn of_text(text: &str) -> Result<Self, toml::de::Error> {
        let mut head: Table = toml::from_str(text)?;
        let mut disks = Vec::new();
        for kind in DiskKind::ALL {
            let Some(Value::Array(found)) = head.remove(kind.name()) else { continue };
            disks.extend(found.into_iter().filter_map(|disk| match disk {
                Value::Table(disk) => Some((kind, disk)),
                _ => None,
            }));
        }
        Ok(Self { head, disks })
    }

    /// The names of all tenants and namespaces, in the file's order of each.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.disks.iter().filter_map(|(_, disk)| name(disk))
    }

    /// A disk's section.
    pub fn find(&self, of: &str) -> Option<(DiskKind, &Table)> {
        self.disks.iter().find(|(_, disk)| name(disk) == Some(of)).map(|(kind, disk)| (*kind, disk))
    }

    /// Adds a disk's section, in the place of the one that it had if there is one.
    pub fn put(&mut self, kind: DiskKind, disk: Table) {
        match self.disks.iter_mut().find(|(_, old)| name(old) == name(&disk)) {
            Some(old) => *old = (kind, disk),
            None => self.disks.push((kind, disk)),
        }
    }

    /// Adds the drives of another text.
    pub fn extend_drives(&mut self, text: &str) {
        // It was checked when they were added.
        let mut more: Table = toml::from_str(text).unwrap_or_default();
        let Some(Value::Array(more)) = more.remove("drive") else { return };
        if let Value::Array(drives) = self.head.entry("drive").or_insert_with(|| Value::Array(Vec::new())) {
            drives.extend(more);
        }
    }

    /// Adds the disks of another text, such as the section of one that was made while the daemon ran.
    pub fn extend(&mut self, text: &str) {
        // It was checked when the disk was made.
        let more = Self::of_text(text).map(|sections| sections.disks);
        more.unwrap_or_default().into_iter().for_each(|(kind, disk)| self.put(kind, disk));
    }

    /// Has a disk name its drive.
    pub fn set_drive(&mut self, of: &str, drive: &str) {
        self.set(of, "drive", drive);
    }

    /// Has a disk say how it is encrypted.
    pub fn set_encryption(&mut self, of: &str, encryption: &str) {
        self.set(of, "encryption", encryption);
    }

    fn set(&mut self, of: &str, key: &str, value: &str) {
        if let Some((_, disk)) = self.disks.iter_mut().find(|(_, disk)| name(disk) == Some(of)) {
            disk.insert(key.to_owned(), value.into());
        }
    }

    /// Takes from another file what changes at once, but for disks: groups, the policy at the top, and policy and pool
    /// of each drive that both have.
    pub fn take_head(&mut self, next: &Self) {
        take(&mut self.head, &next.head, "policy");
        take(&mut self.head, &next.head, "group");
        if let (Some(Value::Table(device)), Some(Value::Table(next))) =
            (self.head.get_mut("device"), next.head.get("device"))
        {
            POOL.iter().for_each(|key| take(device, next, key));
        }
        let theirs = next.head.get("drive").and_then(Value::as_array);
        let Some(Value::Array(drives)) = self.head.get_mut("drive") else { return };
        for drive in drives.iter_mut().filter_map(Value::as_table_mut) {
            let mut tables = theirs.into_iter().flatten().filter_map(Value::as_table);
            if let Some(next) = tables.find(|next| name(next) == name(drive)) {
                take(drive, next, "policy");
                POOL.iter().for_each(|key| take(drive, next, key));
            }
        }
    }

    /// Removes a disk's section.
    pub fn remove(&mut self, of: &str) {
        self.disks.retain(|(_, disk)| name(disk) != Some(of));
    }

    /// Attaches namespaces no more to tenants that are not among these.
    pub fn detach_from_absent(&mut self) {
        let names: Vec<String> = self.names().map(str::to_owned).collect();
        self.detach(&|tenant| names.iter().any(|name| name == tenant));
    }

    /// Attaches namespaces no more to tenants that are not `is_there`. `true`: one of them was.
    fn detach(&mut self, is_there: &dyn Fn(&str) -> bool) -> bool {
        let mut is_changed = false;
        for (_, namespace) in self.disks.iter_mut().filter(|(kind, _)| *kind == DiskKind::Namespace) {
            for key in ["tenants", "read_only"] {
                let Some(Value::Array(tenants)) = namespace.get_mut(key) else { continue };
                let had = tenants.len();
                tenants.retain(|tenant| tenant.as_str().is_none_or(is_there));
                is_changed |= tenants.len() < had;
            }
        }
        is_changed
    }

    /// As a file.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        write_keys(&mut text, &self.head, keys::top::NAMES);
        let own = [("policy", keys::POLICY), ("pollers", keys::pollers::NAMES)];
        let sections = [
            ("daemon", keys::daemon::NAMES),
            ("api", keys::api::NAMES),
            ("keys", keys::host_keys::NAMES),
            ("device", keys::device::NAMES),
        ];
        let sections = sections.into_iter().chain(own);
        for (section, keys) in sections {
            if let Some(Value::Table(found)) = self.head.get(section) {
                // Writing to a text can't fail.
                let _ = writeln!(text, "\n[{section}]");
                write_keys(&mut text, found, keys);
            }
        }
        for drive in self.head.get("drive").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
        {
            text += "\n[[drive]]\n";
            write_keys(&mut text, drive, keys::DRIVE);
            for (section, keys) in own {
                if let Some(Value::Table(found)) = drive.get(section) {
                    // Writing to a text can't fail.
                    let _ = writeln!(text, "\n[drive.{section}]");
                    write_keys(&mut text, found, keys);
                }
            }
        }
        for group in self.head.get("group").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
        {
            text += "\n[[group]]\n";
            write_keys(&mut text, group, keys::group::NAMES);
        }
        let of = |kind: DiskKind| self.disks.iter().filter(move |(its, _)| *its == kind);
        for (kind, disk) in DiskKind::ALL.into_iter().flat_map(of) {
            // Writing to a string can't fail.
            let _ = writeln!(text, "\n[[{}]]", kind.name());
            write_keys(&mut text, disk, kind.keys());
            if let Some(labels) = disk.get("labels") {
                let _ = writeln!(text, "labels = {labels}");
            }
            if let Some(Value::Table(demand)) = disk.get("demand") {
                text += "\n[tenant.demand]\n";
                write_keys(&mut text, demand, keys::demand::NAMES);
            }
        }
        text.trim_start().to_owned()
    }

    /// A disk's size.
    pub fn size_bytes(&self, of: &str) -> Option<u64> {
        size_bytes(self.find(of)?.1)
    }

    /// What another file has otherwise, but for disks. Only policies, groups and pools can be changed while the daemon
    /// runs.
    pub fn head_changes(&self, next: &Self) -> Vec<KeyChange> {
        let remedy = |_: &str, when: Changes, values: [Option<&str>; 2]| when.remedy(values, true);
        let rules = Rules { row: keys::of_head, has_defaults: false, remedy: &remedy };
        changes(&self.head_by_name(), &next.head_by_name(), "", &rules)
    }

    /// The head with each drive and group under its name.
    fn head_by_name(&self) -> Table {
        let mut head = self.head.clone();
        for key in ["drive", "group"] {
            if let Some(Value::Array(found)) = head.remove(key) {
                let named = |section: Value| Some((name(section.as_table()?)?.to_owned(), section));
                let found: Table = found.into_iter().filter_map(named).collect();
                head.insert(key.to_owned(), found.into());
            }
        }
        head
    }
}

/// The section of a namespace that was made while the daemon ran, attached no more to tenants that are not
/// `is_there`. `None`: it is of no such tenant, or no namespace.
pub fn detached(section: &str, is_there: impl Fn(&str) -> bool) -> Option<String> {
    let mut sections = Sections::of_text(section).ok()?;
    let is_changed = sections.detach(&is_there);
    is_changed.then(|| sections.to_text())
}

/// What a drive has of its pool.
const POOL: [&str; 3] = ["pool", "pool_piece", "pool_overcommit"];

fn take(of: &mut Table, next: &Table, key: &str) {
    match next.get(key) {
        Some(value) => of.insert(key.to_owned(), value.clone()),
        None => of.remove(key),
    };
}

/// The name of a disk or drive.
fn name(section: &Table) -> Option<&str> {
    section.get("name").and_then(Value::as_str)
}

/// The values of a table that are no tables, in the order of `keys`, which are all that it can have.
fn write_keys(text: &mut String, table: &Table, keys: &[&str]) {
    for (key, value) in keys.iter().filter_map(|key| Some((key, table.get(*key)?))) {
        let is_section = value.is_table() || value.as_array().is_some_and(|items| items.iter().any(Value::is_table));
        if !is_section {
            // Writing to a text can't fail.
            let _ = writeln!(text, "{key} = {value}");
        }
    }
}

fn size_bytes(disk: &Table) -> Option<u64> {
    let size = disk.get("size")?;
    let size: Size = size.as_str().map_or_else(|| size.to_string(), str::to_owned).parse().ok()?;
    Some(size.0)
}

/// What a disk's section has otherwise; both are of the same kind. `attached`: a client has the disk now.
pub fn disk_changes(kind: DiskKind, old: &Table, new: &Table, attached: bool) -> Vec<KeyChange> {
    let shrinks = size_bytes(new) < size_bytes(old);
    let remedy = |key: &str, when: Changes, values: [Option<&str>; 2]| match key {
        "size" if shrinks => Some("write the size that it has: a disk can grow and not shrink"),
        _ => when.remedy(values, attached),
    };
    changes(old, new, "", &Rules { row: kind.row(), has_defaults: true, remedy: &remedy })
}

/// What a new disk's section says, but for its name.
pub fn disk_keys(kind: DiskKind, new: &Table) -> Vec<KeyChange> {
    let named: Table = new.get("name").map(|name| ("name".to_owned(), name.clone())).into_iter().collect();
    changes(&named, new, "", &Rules { row: kind.row(), has_defaults: true, remedy: &|_, _, _| None })
}

/// A disk as it can be while the daemon runs: `new`, but for the keys that need a start, which it has as `old`.
pub fn disk_meanwhile(kind: DiskKind, old: &Table, new: &Table, attached: bool) -> Table {
    let mut meanwhile = new.clone();
    for KeyChange { key, .. } in
        disk_changes(kind, old, new, attached).into_iter().filter(|change| change.remedy.is_some())
    {
        match old.get(&key) {
            Some(value) => meanwhile.insert(key, value.clone()),
            None => meanwhile.remove(&key),
        };
    }
    meanwhile
}

/// Whether a key of a tenant says how its guest reaches its disk, or what is made of its queues there: whether it asks
/// for priorities.
pub fn is_of_front_end(key: &str, values: [Option<&str>; 2]) -> bool {
    keys::of_tenant(key).is_some_and(|row| row.changes().is_detached(values))
}

/// What two sections of a tenant that was made while the daemon ran differ in, however they are written.
pub fn made_changes(old: &str, new: &str) -> Vec<KeyChange> {
    let tenant = |text: &str| Sections::of_text(text).ok()?.disks.into_iter().next().map(|(_, disk)| disk);
    // What was written once can be read again.
    let (old, new) = (tenant(old).unwrap_or_default(), tenant(new).unwrap_or_default());
    disk_changes(DiskKind::Tenant, &old, &new, false)
}

/// The remedy for a key's path, when a change of it counts, and its two values.
type RemedyOf<'a> = &'a dyn Fn(&str, Changes, [Option<&str>; 2]) -> Option<&'static str>;

/// The row of each key by its path, and the remedy where a change of its value can't be made at once.
struct Rules<'a> {
    row: fn(&str) -> Option<&'static dyn Row>,
    /// Defaults follow from the section that the key is in.
    has_defaults: bool,
    remedy: RemedyOf<'a>,
}

fn changes(old: &Table, new: &Table, within: &str, rules: &Rules<'_>) -> Vec<KeyChange> {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let mut found = Vec::new();
    for key in old.keys().chain(added) {
        let path = format!("{within}{key}");
        let none = Table::new();
        match (old.get(key), new.get(key)) {
            (Some(Value::Table(old)), Some(Value::Table(new))) => {
                found.extend(changes(old, new, &format!("{path}."), rules));
            }
            (Some(Value::Table(old)), _) => found.extend(changes(old, &none, &format!("{path}."), rules)),
            (_, Some(Value::Table(new))) => found.extend(changes(&none, new, &format!("{path}."), rules)),
            (before, after) => {
                let row = (rules.row)(&path);
                let means = |value: Option<&Value>, table: &Table| match value {
                    None if !rules.has_defaults => None,
                    value => meaning(row, value, table),
                };
                let (meant, means) = (means(before, old), means(after, new));
                if meant != means {
                    let (old, new) = (shown(before, meant), shown(after, means));
                    let when = row.map_or(Changes::AtStart, Row::changes);
                    let remedy = (rules.remedy)(&path, when, [old.as_deref(), new.as_deref()]);
                    found.push(KeyChange { remedy, key: path, old, new });
                }
            }
        }
    }
    found
}

/// A value as it is shown: as it was written, or its default.
fn shown(value: Option<&Value>, meaning: Option<String>) -> Option<String> {
    match value {
        Some(Value::String(text)) => Some(text.clone()),
        Some(value) => Some(value.to_string()),
        None => meaning,
    }
}

/// What a value means, however it was written; that of a key that is not there is its default.
fn meaning(row: Option<&dyn Row>, value: Option<&Value>, table: &Table) -> Option<String> {
    match value {
        None => row?.default_text(&|key| table.get(key)?.as_str()),
        Some(Value::String(text)) => row.and_then(|row| row.meaning(value?)).or_else(|| Some(text.clone())),
        Some(value) => row.and_then(|row| row.meaning(value)).or_else(|| Some(value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const HEAD: &str = "[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n[policy]\nname = \"passthrough\"\n";

    fn sections(tenants: &str) -> Sections {
        let config = Config::parse(Path::new("ek.toml"), &format!("{HEAD}{tenants}"));
        Sections::of(&config.unwrap_or_else(|errors| panic!("{errors}"))).expect("taken apart")
    }

    fn tenant(keys: &str) -> Table {
        let text = format!("[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n{keys}\n");
        sections(&text).find("a").expect("it is there").1.clone()
    }

    fn words(changes: &[KeyChange]) -> Vec<String> {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let word = |it: &KeyChange| {
            let stays = if it.remedy.is_some() { " later" } else { "" };
            format!("{} {} {}{stays}", it.key, shown(&it.old), shown(&it.new))
        };
        changes.iter().map(word).collect()
    }

    #[test]
    fn a_file_that_was_put_together_is_the_same_file() {
        let text = "[[tenant]]\nname = \"a\"\nsize = 4194304 # bytes\nclass = \"guaranteed\"\n\
                    latency_target = \"50us\"\n[tenant.demand]\nrw = \"randread\"\nbs = \"4k\"\n\
                    [[tenant]]\nname = \"b\"\nsize = \"4MiB\"\nweight = 3\nsocket_mode = \"0666\"\n\
                    labels = { pvc = \"data-0\" }\n";
        let first = sections(text);
        let again = Config::parse(Path::new("ek.toml"), &first.to_text()).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(Sections::of(&again).expect("taken apart"), first);
        assert_eq!(Sections::of(&again).expect("taken apart").to_text(), first.to_text());
        assert!(first.to_text().starts_with("[device]\nbackend = \"memory\"\n"), "{}", first.to_text());
        let mut more = first.clone();
        more.extend("[[tenant]]\nsize = \"1MiB\"\nname = \"c\"\n");
        more.remove("a");
        assert_eq!(more.names().collect::<Vec<_>>(), ["b", "c"]);
        assert!(more.to_text().ends_with("\n[[tenant]]\nname = \"c\"\nsize = \"1MiB\"\n"), "{}", more.to_text());
    }

    #[test]
    fn values_are_compared_by_what_they_mean() {
        let plain = tenant("");
        let said = "weight = 1\nclass = \"best-effort\"\nqueues = 64\nlba_size = 512\nfrontend = \"vfio-user\"";
        assert_eq!(disk_changes(DiskKind::Tenant, &plain, &tenant(said), true), []);
        let same = tenant("rw_iops = \"20k\"\nrw_bandwidth = \"1GiB/s\"\nburst = \"2s\"");
        assert_eq!(
            disk_changes(
                DiskKind::Tenant,
                &same,
                &tenant("rw_iops = 20000\nrw_bandwidth = \"1024MiB/s\"\nburst = \"2000ms\""),
                true
            ),
            []
        );
        let other = tenant("rw_iops = \"5k\"\nweight = 7");
        assert_eq!(
            words(&disk_changes(DiskKind::Tenant, &same, &other, true)),
            ["burst 2s 0", "rw_bandwidth 1GiB/s -", "rw_iops 20k 5k", "weight 1 7"]
        );
        let labelled = [tenant("labels = { pvc = \"a\", pod = \"b\" }"), tenant("labels.pvc = \"c\"")];
        let changed = words(&disk_changes(DiskKind::Tenant, &labelled[0], &labelled[1], true));
        assert_eq!(changed, ["labels.pod b -", "labels.pvc a c"]);
        let promised = tenant("class = \"guaranteed\"\nlatency_target = \"50us\"\n[tenant.demand]\nrw = \"read\"");
        assert_eq!(
            words(&disk_changes(DiskKind::Tenant, &plain, &promised, true)),
            ["class best-effort guaranteed", "demand.rw - read", "latency_target - 50us"]
        );
    }

    #[test]
    fn what_needs_a_start_stays_as_it_is_until_then() {
        let (old, new) = (tenant("weight = 2"), tenant("weight = 3\nqueues = 4\ndoorbells = \"trapped\""));
        let found = words(&disk_changes(DiskKind::Tenant, &old, &new, true));
        assert_eq!(found, ["weight 2 3", "doorbells mapped trapped later", "queues 64 4 later"]);
        assert_eq!(disk_meanwhile(DiskKind::Tenant, &old, &new, true), tenant("weight = 3"));
        // How it is reached waits for nobody where nobody is attached.
        let found = words(&disk_changes(DiskKind::Tenant, &old, &new, false));
        assert_eq!(found, ["weight 2 3", "doorbells mapped trapped", "queues 64 4"]);
        assert_eq!(disk_meanwhile(DiskKind::Tenant, &old, &new, false), new);
        let (one, mut other) = (sections(""), sections(""));
        assert_eq!(one.head_changes(&other), []);
        other.head.insert("pollers".into(), Value::Table(Table::from_iter([("cpus".into(), Value::from(vec![1]))])));
        let Some(Value::Table(device)) = other.head.get_mut("device") else { panic!("no device") };
        device.insert("pool".into(), "64MiB".into());
        let found = words(&one.head_changes(&other));
        assert_eq!(found, ["device.pool - 64MiB", "pollers.cpus - [1] later"]);
        let mut meanwhile = one;
        meanwhile.take_head(&other);
        assert_eq!(words(&meanwhile.head_changes(&other)), ["pollers.cpus - [1] later"]);
    }

    const TWO: &str = "[[tenant]]\nname = \"db\"\nsize = \"4MiB\"\n[[tenant]]\nname = \"web\"\nsize = \"4MiB\"\n";

    fn namespace(keys: &str) -> String {
        format!("[[namespace]]\nname = \"logs\"\nsize = \"4MiB\"\nnsid = 2\n{keys}\n")
    }

    #[test]
    fn namespaces_are_sections_like_tenants() {
        let of = |keys: &str| sections(&format!("{}{TWO}", namespace(keys)));
        let first = of("tenants = [\"db\"]\nread_only = [\"web\"]");
        assert_eq!(first.names().collect::<Vec<_>>(), ["db", "web", "logs"]);
        let text = first.to_text();
        assert!(
            text.ends_with(
                "[[namespace]]\nname = \"logs\"\nsize = \"4MiB\"\nnsid = 2\ntenants = [\"db\"]\nread_only = [\"web\"]\n"
            ),
            "{text}"
        );
        let again = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(Sections::of(&again).expect("taken apart").to_text(), text);

        let changes = |old: &Sections, new: &Sections| {
            let ((kind, old), (_, new)) = (old.find("logs").expect("old"), new.find("logs").expect("new"));
            assert_eq!(kind, DiskKind::Namespace);
            words(&disk_changes(kind, old, new, true))
        };
        let other = of("tenants = [\"web\"]\nlba_size = 4096");
        assert_eq!(
            changes(&first, &other),
            ["read_only [\"web\"] []", "tenants [\"db\"] [\"web\"]", "lba_size 512 4096 later"]
        );
        let both = of("tenants = [\"db\", \"web\"]\nshared = true");
        assert_eq!(changes(&both, &of("tenants = [\"web\", \"db\"]\nshared = true\nread_only = []")), [""; 0]);
    }

    #[test]
    fn a_namespace_is_detached_from_tenants_that_are_not_there() {
        let both = namespace("tenants = [\"db\"]\nread_only = [\"web\", \"old\"]");
        assert_eq!(detached(&both, |_| true), None);
        assert_eq!(detached(&both, |name| name == "web"), Some(namespace("tenants = []\nread_only = [\"web\"]")));
        assert_eq!(detached("[[tenant]]\nname = \"db\"\nsize = \"4MiB\"\n", |_| false), None);
    }
}
