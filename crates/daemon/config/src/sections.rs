//! A file as sections that can be taken apart: what differs between two files, and one with some of another's tenants.
//!
//! Texts stay the operator's: a value is compared by what it means (`1024MiB` is `1GiB`), and kept as it was written.

use std::fmt::Write;

use io_model::Nanos;
use io_model::units::{Bandwidth, Rate, Size};
use toml::{Table, Value};

use crate::config::Config;
use crate::problem::ConfigErrors;
use crate::section::{API_KEYS, DAEMON_KEYS, DEMAND, DEVICE, POLICY, POLLERS, TENANT, TOP};

/// The sections of one file, in an order of their own and without comments.
#[derive(Debug, Clone, PartialEq)]
pub struct Sections {
    head: Table,
    tenants: Vec<Table>,
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

const START_AGAIN: &str = "start the daemon again";

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
        let tenants = match head.remove("tenant") {
            Some(Value::Array(tenants)) => tenants.into_iter().filter_map(|tenant| match tenant {
                Value::Table(tenant) => Some(tenant),
                _ => None,
            }),
            _ => return Ok(Self { head, tenants: Vec::new() }),
        };
        Ok(Self { head, tenants: tenants.collect() })
    }

    /// The names of the tenants, in the file's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tenants.iter().filter_map(name)
    }

    /// A tenant's section.
    pub fn find(&self, of: &str) -> Option<&Table> {
        self.tenants.iter().find(|tenant| name(tenant) == Some(of))
    }

    /// Adds a tenant's section, in the place of the one that it had if there is one.
    pub fn put(&mut self, tenant: Table) {
        match self.tenants.iter_mut().find(|old| name(old) == name(&tenant)) {
            Some(old) => *old = tenant,
            None => self.tenants.push(tenant),
        }
    }

    /// Adds the tenants of another text, such as the section of a disk that was made while the daemon ran.
    pub fn extend(&mut self, text: &str) {
        // It was checked when the disk was made.
        let more = Self::of_text(text).map(|sections| sections.tenants);
        more.unwrap_or_default().into_iter().for_each(|tenant| self.put(tenant));
    }

    /// Removes a tenant's section.
    pub fn remove(&mut self, of: &str) {
        self.tenants.retain(|tenant| name(tenant) != Some(of));
    }

    /// As a file.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        write_keys(&mut text, &self.head, TOP);
        let sections =
            [("daemon", DAEMON_KEYS), ("api", API_KEYS), ("device", DEVICE), ("policy", POLICY), ("pollers", POLLERS)];
        for (section, keys) in sections {
            if let Some(Value::Table(found)) = self.head.get(section) {
                // Writing to a text can't fail.
                let _ = writeln!(text, "\n[{section}]");
                write_keys(&mut text, found, keys);
            }
        }
        for tenant in &self.tenants {
            text += "\n[[tenant]]\n";
            write_keys(&mut text, tenant, TENANT);
            if let Some(Value::Table(demand)) = tenant.get("demand") {
                text += "\n[tenant.demand]\n";
                write_keys(&mut text, demand, DEMAND);
            }
        }
        text.trim_start().to_owned()
    }

    /// The size of a tenant's disk.
    pub fn size_bytes(&self, of: &str) -> Option<u64> {
        meaning("size", self.find(of)?.get("size"), &self.head)?.parse().ok()
    }

    /// What another file has otherwise, but for tenants. None of it can be changed while the daemon runs.
    pub fn head_changes(&self, next: &Self) -> Vec<KeyChange> {
        changes(&self.head, &next.head, "", &|_| Some(START_AGAIN))
    }
}

/// A tenant's name.
fn name(tenant: &Table) -> Option<&str> {
    tenant.get("name").and_then(Value::as_str)
}

/// The values of a table that are no tables, in the order of `keys`, which are all that it can have.
fn write_keys(text: &mut String, table: &Table, keys: &[&str]) {
    for (key, value) in keys.iter().filter_map(|key| Some((key, table.get(*key)?))) {
        if !value.is_table() {
            // Writing to a text can't fail.
            let _ = writeln!(text, "{key} = {value}");
        }
    }
}

/// What a tenant's section has otherwise.
pub fn tenant_changes(old: &Table, new: &Table) -> Vec<KeyChange> {
    let bytes = |table: &Table| meaning("size", table.get("size"), table).and_then(|size| size.parse::<u64>().ok());
    let shrinks = bytes(new) < bytes(old);
    changes(old, new, "", &|key| match key {
        "size" if shrinks => Some("write the size that it has: a disk can grow and not shrink"),
        key => remedy_of(key),
    })
}

/// What a new tenant's section says, but for its name.
pub fn tenant_keys(new: &Table) -> Vec<KeyChange> {
    let named: Table = new.get("name").map(|name| ("name".to_owned(), name.clone())).into_iter().collect();
    changes(&named, new, "", &|_| None)
}

/// A tenant as it can be while the daemon runs: `new`, but for the keys that need a start, which it has as `old`.
pub fn tenant_meanwhile(old: &Table, new: &Table) -> Table {
    let mut meanwhile = new.clone();
    for KeyChange { key, .. } in tenant_changes(old, new).into_iter().filter(|change| change.remedy.is_some()) {
        match old.get(&key) {
            Some(value) => meanwhile.insert(key, value.clone()),
            None => meanwhile.remove(&key),
        };
    }
    meanwhile
}

/// What to do where a tenant's key can't be changed while it is served.
fn remedy_of(key: &str) -> Option<&'static str> {
    match key {
        "size" | "class" | "latency_target" | "weight" | "priority" | "overcommit" | "burst" => None,
        _ if key.ends_with("_iops") || key.ends_with("_bandwidth") || key.starts_with("demand") => None,
        "lba_size" => Some("format it from inside its guest (`nvme format`): the key is for new tenants"),
        "offset" => Some("write the offset that it has, or remove the key: a disk is not moved"),
        _ => Some(START_AGAIN),
    }
}

fn changes(old: &Table, new: &Table, within: &str, remedy_of: &dyn Fn(&str) -> Option<&'static str>) -> Vec<KeyChange> {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let mut found = Vec::new();
    for key in old.keys().chain(added) {
        let path = format!("{within}{key}");
        let none = Table::new();
        match (old.get(key), new.get(key)) {
            (Some(Value::Table(old)), Some(Value::Table(new))) => {
                found.extend(changes(old, new, &format!("{path}."), remedy_of));
            }
            (Some(Value::Table(old)), _) => found.extend(changes(old, &none, &format!("{path}."), remedy_of)),
            (_, Some(Value::Table(new))) => found.extend(changes(&none, new, &format!("{path}."), remedy_of)),
            (before, after) => {
                let (meant, means) = (meaning(&path, before, old), meaning(&path, after, new));
                if meant != means {
                    let (old, new) = (shown(before, meant), shown(after, means));
                    found.push(KeyChange { remedy: remedy_of(&path), key: path, old, new });
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
fn meaning(key: &str, value: Option<&Value>, table: &Table) -> Option<String> {
    let Some(value) = value else { return default_of(key, table).map(str::to_owned) };
    let written = match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let number = match key.rsplit('.').next().unwrap_or(key) {
        "size" | "offset" | "max_memory" | "lba_size" => written.parse().ok().map(|size: Size| size.0),
        "latency_target" | "burst" => written.parse().ok().map(|span: Nanos| span.0),
        key if key.ends_with("_iops") => written.parse().ok().map(|rate: Rate| rate.0),
        key if key.ends_with("_bandwidth") => written.parse().ok().map(|bandwidth: Bandwidth| bandwidth.0),
        _ => None,
    };
    Some(number.map_or(written, |number| number.to_string()))
}

/// What a tenant has that does not say. Keys without one are shown as missing.
fn default_of(key: &str, table: &Table) -> Option<&'static str> {
    let is_best_effort = table.get("class").and_then(Value::as_str) != Some("guaranteed");
    Some(match key {
        "frontend" => "vfio-user",
        "class" => "best-effort",
        "weight" if is_best_effort => "1",
        "isolation" | "threads" => "shared",
        "priority" => "medium",
        "overcommit" | "read_only" => "false",
        "doorbells" => "mapped",
        "mode" => "adaptive",
        "queues" => "64",
        "lba_size" => "512",
        "burst" => "0",
        _ => return None,
    })
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
        sections(&text).find("a").cloned().expect("it is there")
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
                    [[tenant]]\nname = \"b\"\nsize = \"4MiB\"\nweight = 3\nsocket_mode = \"0666\"\n";
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
        assert_eq!(tenant_changes(&plain, &tenant(said)), []);
        let same = tenant("rw_iops = \"20k\"\nrw_bandwidth = \"1GiB/s\"\nburst = \"2s\"");
        assert_eq!(
            tenant_changes(&same, &tenant("rw_iops = 20000\nrw_bandwidth = \"1024MiB/s\"\nburst = \"2000ms\"")),
            []
        );
        let other = tenant("rw_iops = \"5k\"\nweight = 7");
        assert_eq!(
            words(&tenant_changes(&same, &other)),
            ["burst 2s 0", "rw_bandwidth 1GiB/s -", "rw_iops 20k 5k", "weight 1 7"]
        );
        let promised = tenant("class = \"guaranteed\"\nlatency_target = \"50us\"\n[tenant.demand]\nrw = \"read\"");
        assert_eq!(
            words(&tenant_changes(&plain, &promised)),
            ["class best-effort guaranteed", "demand.rw - read", "latency_target - 50us"]
        );
    }

    #[test]
    fn what_needs_a_start_stays_as_it_is_until_then() {
        let (old, new) = (tenant("weight = 2"), tenant("weight = 3\nqueues = 4\ndoorbells = \"trapped\""));
        let found = words(&tenant_changes(&old, &new));
        assert_eq!(found, ["weight 2 3", "doorbells mapped trapped later", "queues 64 4 later"]);
        assert_eq!(tenant_meanwhile(&old, &new), tenant("weight = 3"));
        let (one, mut other) = (sections(""), sections(""));
        assert_eq!(one.head_changes(&other), []);
        other.head.insert("overcommit".into(), Value::Boolean(true));
        other.head.insert("pollers".into(), Value::Table(Table::from_iter([("cpus".into(), Value::from(vec![1]))])));
        let found = words(&one.head_changes(&other));
        assert_eq!(found, ["overcommit false true later", "pollers.cpus - [1] later"]);
    }
}
