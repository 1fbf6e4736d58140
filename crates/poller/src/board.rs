//! The probes of all tenants of one drive.

use std::sync::{Arc, PoisonError, RwLock};

use policy::TenantReport;

use crate::Probe;

/// Where pollers learn of each other's tenants, and `stats` of all of them.
///
/// The lock guards the list, not the numbers: it is taken when a tenant comes or goes and once per
/// 10 ms interval by each poller, never per command.
#[derive(Debug, Default)]
pub struct Board {
    probes: RwLock<Vec<Arc<Probe>>>,
}

impl Board {
    /// Adds a tenant's probe.
    pub fn add(&self, probe: Arc<Probe>) {
        self.probes.write().unwrap_or_else(PoisonError::into_inner).push(probe);
    }

    /// All probes.
    pub fn probes(&self) -> Vec<Arc<Probe>> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fills `reports` with every tenant's recent past.
    pub(crate) fn reports(&self, reports: &mut Vec<TenantReport>) {
        reports.clear();
        let probes = self.probes.read().unwrap_or_else(PoisonError::into_inner);
        reports.extend(probes.iter().map(|probe| probe.report()));
    }
}
