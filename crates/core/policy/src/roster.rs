//! Which tenants a policy serves, by identifier: for reports and operators, who know no slots.

use std::cell::Cell;

use io_model::TenantId;

use crate::ready::NONE;

/// Tenants with their slots, in the order of their identifiers. Never asked per command.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    entries: Vec<(TenantId, u16)>,
    /// Where the next one is looked for first: reports come in the same order.
    next: Cell<usize>,
}

impl Roster {
    /// A tenant has this slot. Said again, nothing happens.
    pub(crate) fn enter(&mut self, tenant: TenantId, slot: u16) {
        match self.entries.binary_search_by_key(&tenant, |entry| entry.0) {
            Ok(at) => self.entries[at].1 = slot,
            Err(at) => self.entries.insert(at, (tenant, slot)),
        }
    }

    pub(crate) fn leave(&mut self, slot: u16) {
        self.entries.retain(|entry| entry.1 != slot);
    }

    /// The tenant's slot; [`NONE`] if it is not here.
    pub(crate) fn slot_of(&self, tenant: TenantId) -> u16 {
        let next = self.next.get();
        let found = match self.entries.get(next) {
            Some(entry) if entry.0 == tenant => Ok(next),
            _ => self.entries.binary_search_by_key(&tenant, |entry| entry.0),
        };
        let Ok(at) = found else { return NONE };
        self.next.set(at + 1);
        self.entries[at].1
    }
}
