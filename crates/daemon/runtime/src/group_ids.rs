//! The numbers of groups, by which pollers know them.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::{Group, MOST_GROUPS};
use policy::{GroupId, Groups, Limits};

/// The groups of the daemon, by name. A name keeps its number until the daemon ends.
#[derive(Debug)]
pub struct GroupIds {
    ceilings: Arc<Groups>,
    ids: BTreeMap<String, GroupId>,
}

impl GroupIds {
    /// No group has a number yet. There is room for as many former groups as a file has groups.
    pub fn new() -> Self {
        Self { ceilings: Arc::new(Groups::up_to(2 * MOST_GROUPS as u16)), ids: BTreeMap::new() }
    }

    /// The ceilings, which every poller reads.
    pub fn ceilings(&self) -> Arc<Groups> {
        Arc::clone(&self.ceilings)
    }

    /// The number of a group.
    pub fn of(&self, name: &str) -> Option<GroupId> {
        self.ids.get(name).copied()
    }

    /// These are all groups from now on. Former ones have no ceiling.
    pub fn set(&mut self, groups: &[Group]) {
        for (name, id) in &self.ids {
            if !groups.iter().any(|group| group.name == *name) {
                self.ceilings.set(*id, Limits::default());
            }
        }
        for Group { name, limits } in groups {
            let next = GroupId(self.ids.len() as u16);
            let id = *self.ids.entry(name.clone()).or_insert(next);
            self.ceilings.set(id, *limits);
        }
    }
}
