//! A configuration with some disks changed, read without the rest of the file.

use toml::Spanned;

use crate::check::{parse_document, read_tenant, tenant_sections, top_of};
use crate::config::{Config, Tenant, TenantMarks};
use crate::draft::{Draft, TenantDraft};
use crate::frontend::{FrontendDraft, FrontendMarks};
use crate::memory::{MemoryDraft, MemoryLimits};
use crate::namespace::{self, NamespaceDraft, read_namespaces};
use crate::problem::{ConfigErrors, OUTSIDE, Sink, Text};
use crate::rules;
use crate::terms::{TenantRules, TermsDraft};

impl Config {
    /// This configuration with each of these `[[tenant]]` or `[[namespace]]` sections in place of the disk of that
    /// name, or as a new one; without the disk `removed`. Reads these sections alone. Users and groups are those that
    /// this configuration knows.
    ///
    /// # Errors
    /// Everything that is wrong with one of them, or with all together; and each user or group that is not known.
    pub fn changed_by(&self, sections: &[&str], removed: Option<&str>) -> Result<Self, ConfigErrors> {
        let mut changed = self.clone();
        if let Some(name) = removed {
            changed.tenants.retain(|tenant| tenant.name != name);
            changed.namespaces.retain(|namespace| namespace.name != name);
        }
        for section in sections {
            changed.put(section)?;
        }
        changed.share_memory();
        let mut sink = Sink::new(&changed.text);
        rules::check_together(&mut sink, &Draft::of(&changed));
        sink.finish()?;
        changed.take_accounts_of(self)?;
        Ok(changed)
    }

    /// Reads one disk's section and puts the disk in its place.
    fn put(&mut self, section: &str) -> Result<(), ConfigErrors> {
        let source = Text { file: self.file().to_owned(), text: section.to_owned() };
        let document = parse_document(&source)?;
        let mut sink = Sink::new(&source);
        let top = top_of(document.get_ref());
        let rules = TenantRules::of(Some(&self.policy));
        let disks = self.tenants.len() + 1;
        let tenants = tenant_sections(&mut sink, &top).into_iter();
        let mut draft = Draft {
            tenants: tenants.map(|section| read_tenant(&mut sink, section, rules, disks)).collect(),
            namespaces: read_namespaces(&mut sink, &top, &|_| true),
            ..Draft::without_disks(self)
        };
        rules::check_each(&mut sink, &draft);
        sink.finish()?;
        let of_drive = self.device.encryption;
        for tenant in draft.tenants.drain(..).filter_map(|tenant| tenant.finish(&self.device)) {
            let tenant = Tenant { marks: tenant.marks.outside(), ..tenant };
            match self.tenants.iter_mut().find(|old| old.name == tenant.name) {
                Some(old) => *old = tenant,
                None => self.tenants.push(tenant),
            }
        }
        for namespace in draft.namespaces.drain(..).filter_map(|namespace| namespace.finish(of_drive)) {
            let namespace = namespace::outside(namespace);
            match self.namespaces.iter_mut().find(|old| old.name == namespace.name) {
                Some(old) => *old = namespace,
                None => self.namespaces.push(namespace),
            }
        }
        Ok(())
    }

    /// Tenants without limits of their own have equal shares of the memory that clients may map.
    fn share_memory(&mut self) {
        let share = MemoryLimits::default_among(self.tenants.len());
        for tenant in &mut self.tenants {
            let [has_memory, has_maps] = tenant.marks.has_memory;
            if !has_memory {
                tenant.memory.max_memory = share.max_memory;
            }
            if !has_maps {
                tenant.memory.max_maps = share.max_maps;
            }
        }
    }
}

impl TenantMarks {
    /// Of a tenant that stands in no file.
    fn outside(self) -> Self {
        let FrontendMarks { threads, mode, cpus } = self.frontend;
        Self {
            name: OUTSIDE,
            size: OUTSIDE,
            offset: self.offset.map(|_| OUTSIDE),
            image: self.image.map(|_| OUTSIDE),
            target: self.target.map(|_| OUTSIDE),
            lba_size: self.lba_size.map(|_| OUTSIDE),
            has_memory: self.has_memory,
            frontend: FrontendMarks {
                threads: threads.map(|_| OUTSIDE),
                mode: mode.map(|_| OUTSIDE),
                cpus: cpus.map(|_| OUTSIDE),
            },
        }
    }
}

impl Draft {
    /// A configuration that was read before.
    fn of(config: &Config) -> Self {
        Self {
            tenants: config.tenants.iter().map(TenantDraft::of).collect(),
            namespaces: config.namespaces.iter().map(NamespaceDraft::of).collect(),
            ..Self::without_disks(config)
        }
    }

    fn without_disks(config: &Config) -> Self {
        Self {
            runtime_dir: Some(config.runtime_dir.clone()),
            state_dir: Some(config.state_dir.clone()),
            daemon: config.daemon.clone(),
            api: config.api.clone(),
            keys: config.keys.clone(),
            device: Some(config.device.clone()),
            has_own_pollers: config.has_own_pollers,
            policy: Some(config.policy.clone()),
            drive_assumed: !config.device.profile_named,
            pollers: Some(config.pollers.clone()),
            groups: Some(config.groups.clone()),
            tenants: Vec::new(),
            undecided: Vec::new(),
            namespaces: Vec::new(),
            marks: config.marks.clone(),
            policy_mark: None,
        }
    }
}

impl TenantDraft {
    fn of(tenant: &Tenant) -> Self {
        let marks = &tenant.marks;
        let terms = &tenant.terms;
        Self {
            span: marks.name.clone(),
            name: Some(Spanned::new(marks.name.clone(), tenant.name.clone())),
            labels: Some(tenant.labels.clone()),
            group: Some(tenant.group.clone().map(|group| Spanned::new(marks.name.clone(), group))),
            size: Some(Spanned::new(marks.size.clone(), tenant.size)),
            offset: tenant.offset.map(|offset| Spanned::new(marks.offset.clone().unwrap_or(OUTSIDE), offset)),
            frontend: FrontendDraft {
                frontend: Some(tenant.frontend.clone()),
                doorbells: Some(tenant.doorbells),
                marks: marks.frontend.clone(),
            },
            terms: TermsDraft {
                class: Some(terms.class),
                priority: Some(terms.priority),
                limits: Some(terms.limits),
                floor: Some(terms.floor),
                target_mark: marks.target.clone(),
            },
            memory: MemoryDraft {
                max_memory: Some(tenant.memory.max_memory),
                max_maps: Some(tenant.memory.max_maps),
                is_written: marks.has_memory,
            },
            overcommit: Some(tenant.overcommit),
            demand: Some(tenant.demand.clone()),
            lba_size: (Some(tenant.lba_bytes), marks.lba_size.clone()),
            encryption: Some(Some(tenant.encryption)),
            thin: (Some(tenant.is_thin), Some(tenant.reserve)),
            image: Some(tenant.image.clone()),
            image_mark: marks.image.clone(),
            queues: Some(tenant.queues),
            socket: Some(tenant.socket.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FILE: &str = "[device]\nbackend = \"null\"\nsize = \"8GiB\"\n[policy]\nname = \"evenkeel\"\n\
                        [[tenant]]\nname = \"a\"\nsize = \"4MiB\"\nsocket_user = \"7\"\n\
                        [[tenant]]\nname = \"b\"\nsize = \"4MiB\"\nmax_maps = 12\n";

    fn config() -> Config {
        Config::parse(Path::new("ek.toml"), FILE).unwrap_or_else(|e| panic!("{e}"))
    }

    fn section(name: &str, more: &str) -> String {
        format!("[[tenant]]\nname = \"{name}\"\nsize = \"8MiB\"\n{more}\n")
    }

    fn told(result: Result<Config, ConfigErrors>) -> String {
        result.expect_err("refused").to_string()
    }

    /// A disk that is read by itself would otherwise differ from one that the whole file is read with.
    #[test]
    fn a_disk_that_is_read_alone_is_as_one_of_the_file() {
        let logs = "[[namespace]]\nname = \"logs\"\nsize = \"1MiB\"\nnsid = 2\ntenants = [\"a\"]\n";
        let new = section("c", "class = \"guaranteed\"\nlatency_target = \"1ms\"\nthreads = \"dedicated\"");
        let alone = config().changed_by(&[&new, logs], None).unwrap_or_else(|e| panic!("{e}"));
        let whole = config().with_disks([new.as_str(), logs]).unwrap_or_else(|e| panic!("{e}"));
        let without_marks = |config: &Config| {
            let tenants = config.tenants.iter().cloned();
            let tenants: Vec<_> = tenants.map(|it| Tenant { marks: TenantMarks::default(), ..it }).collect();
            let namespaces: Vec<_> = config.namespaces.iter().cloned().map(namespace::outside).collect();
            (tenants, namespaces)
        };
        assert_eq!(without_marks(&alone), without_marks(&whole));
        assert_eq!(without_marks(&alone.changed_by(&[], Some("c")).expect("removed")).0.len(), 2);
        let again = alone.changed_by(&[&section("c", "weight = 5")], None).expect("changed");
        assert_eq!(again.tenants.len(), 3);
        assert_eq!(again.tenants[2].terms.class.weight(), Some(5));
    }

    #[test]
    fn each_rule_between_disks_holds_for_a_disk_that_is_read_alone() {
        let base = config();
        let refused = |section: &str| told(base.changed_by(&[section], None));
        for (section, part) in [
            (section("c", "colour = 1"), "colour"),
            (section("c", "weight = 0"), "`weight` in tenant \"c\""),
            (section("c", "socket_user = \"nobody-knows\""), "can't be looked up"),
            (section("c", "max_memory = \"97TiB\""), "max_memory add up"),
            (section("c", "queues = 1").replace("8MiB", "9GiB"), "ask for"),
            (section("c", "").replace("8MiB", "4097"), "not a multiple"),
            ("[[namespace]]\nname = \"l\"\nsize = \"1MiB\"\nnsid = 2\ntenants = [\"z\"]\n".to_owned(), "\"z\""),
        ] {
            let told = refused(&section);
            assert!(told.contains(part), "{part}: {told}");
        }
        let known = base.changed_by(&[&section("c", "socket_user = \"7\"")], None).expect("a number");
        assert_eq!(known.tenants[2].socket.user.as_ref().and_then(|user| user.id), Some(7));
    }

    #[test]
    fn memory_is_shared_among_all_tenants_that_name_no_limit() {
        let sections: Vec<String> = (0..500).map(|at| section(&format!("d{at}"), "queues = 1")).collect();
        let sections: Vec<&str> = sections.iter().map(String::as_str).collect();
        let config = config().changed_by(&sections, None).unwrap_or_else(|e| panic!("{e}"));
        let share = MemoryLimits::default_among(502);
        assert_eq!(config.tenants[0].memory, share);
        assert_eq!(config.tenants[1].memory, MemoryLimits { max_maps: 12, ..share });
        assert_eq!(config.tenants[501].memory, share);
    }
}
