//! The numbers of groups, by which pollers know them.

use std::sync::{Arc, Mutex, PoisonError};

use config::{Group, MOST_GROUPS};
use policy::{GroupId, Groups, Limits};

/// The groups of the daemon, by name. Drives share it.
#[derive(Debug)]
pub struct GroupIds {
    ceilings: Arc<Groups>,
    taken: Mutex<Taken>,
}

/// The names by number.
#[derive(Debug)]
struct Taken {
    names: Vec<Option<String>>,
    next: usize,
}

impl Default for GroupIds {
    /// No group has a number yet. There is room for as many former groups as a file has groups.
    fn default() -> Self {
        let room = 2 * MOST_GROUPS;
        let taken = Mutex::new(Taken { names: vec![None; room], next: 0 });
        Self { ceilings: Arc::new(Groups::up_to(room as u16)), taken }
    }
}

impl GroupIds {
    /// The ceilings, which every poller reads.
    pub fn ceilings(&self) -> Arc<Groups> {
        Arc::clone(&self.ceilings)
    }

    /// The number of a group.
    pub fn of(&self, name: &str) -> Option<GroupId> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.find(name).map(|at| GroupId(at as u16))
    }

    /// These are all groups from now on. Former ones have no ceiling.
    pub fn set(&self, groups: &[Group]) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, name) in taken.names.iter_mut().enumerate() {
            if name.take_if(|name| !groups.iter().any(|group| group.name == *name)).is_some() {
                self.ceilings.set(GroupId(at as u16), Limits::default());
            }
        }
        for Group { name, limits } in groups {
            if let Some(at) = taken.find(name).or_else(|| taken.take(name)) {
                self.ceilings.set(GroupId(at as u16), *limits);
            }
        }
    }
}

impl Taken {
    fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|taken| taken.as_deref() == Some(name))
    }

    /// A new name gets the number that has been free for longest: a tenant may have a former group's for a moment.
    fn take(&mut self, name: &str) -> Option<usize> {
        let room = self.names.len();
        let at = (0..room).map(|ahead| (self.next + ahead) % room).find(|at| self.names[*at].is_none())?;
        self.names[at] = Some(name.to_owned());
        self.next = at + 1;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(names: impl IntoIterator<Item = usize>) -> Vec<Group> {
        let limits = Limits { rw_ios_per_sec: 1, ..Limits::default() };
        names.into_iter().map(|number| Group { name: format!("vm{number}"), limits }).collect()
    }

    /// Numbers that come to an end would leave later groups without a ceiling.
    #[test]
    fn numbers_of_former_groups_are_used_again_and_a_group_that_stays_keeps_its_own() {
        let ids = GroupIds::default();
        let stays = 100_000;
        ids.set(&groups([stays]));
        let number = ids.of("vm100000");
        for first in (0..10).map(|round| round * (MOST_GROUPS - 1)) {
            let now = first..first + MOST_GROUPS - 1;
            ids.set(&groups(now.clone().chain([stays])));
            assert_eq!(ids.of("vm100000"), number);
            assert!(now.clone().all(|group| ids.of(&format!("vm{group}")).is_some()));
            assert_eq!(ids.of(&format!("vm{}", now.end)), None);
        }
    }
}
