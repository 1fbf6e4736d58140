//! On which drive a tenant goes that names none: one where its promise and everybody else's hold, and of those the one
//! that has the least left over.

use config::{Config, ConfigErrors, Found, Tenant, Unplaced};
use io_model::units::Size;
use ssd_model::Profile;

use crate::admission::Admission;

/// One drive that a tenant could be on.
pub struct Site<'a> {
    /// Everybody who is there.
    pub config: &'a mut Config,
    /// What the drive is, or is taken for.
    pub profile: &'a Profile,
    /// What nobody has of it.
    pub free_bytes: u64,
}

/// Places every tenant that is on no drive yet. Nothing is written.
///
/// # Errors
/// The first tenant that no drive can have, and why.
pub fn place(sites: &mut [Site<'_>], unplaced: &Unplaced) -> Result<(), ConfigErrors> {
    for name in &unplaced.names {
        let mut best: Option<(u64, usize)> = None;
        let mut unfit = Vec::new();
        for (at, site) in sites.iter().enumerate() {
            let Some(tenant) = unplaced.on(name, at) else { continue };
            match site.left_with(tenant) {
                Ok(left) if best.is_none_or(|(least, _)| left < least) => best = Some((left, at)),
                Ok(_) => {}
                Err(why) => unfit.push(format!("{}: {why}", site.config.device.name)),
            }
        }
        match (best, sites.first()) {
            (Some((left, at)), _) => {
                sites[at].free_bytes = left;
                unplaced.put(name, at, sites[at].config);
            }
            (None, Some(site)) => return Err(unplaced.nowhere(name, site.config, &unfit.join("; "))),
            (None, None) => {}
        }
    }
    Ok(())
}

impl<'a> Site<'a> {
    /// A drive that is not served yet.
    pub fn new(found: &'a mut Found, profile: &'a Profile) -> Self {
        let free_bytes = found.free_bytes();
        Self { config: &mut found.config, profile, free_bytes }
    }

    /// What the drive has left over with one more tenant, or why it can't be there: there is no room, or a promise
    /// would not hold that nobody overcommits.
    fn left_with(&self, tenant: &Tenant) -> Result<u64, String> {
        let left = self.free_bytes.checked_sub(tenant.size.0);
        let left = left.ok_or_else(|| format!("it has only {} left", Size(self.free_bytes)))?;
        if !self.config.tenants.iter().chain([tenant]).any(Tenant::is_guaranteed) {
            // Nobody's promise is at stake: with a thousand tenants it makes a difference not to ask.
            return Ok(left);
        }
        let mut config = self.config.clone();
        config.tenants.push(tenant.clone());
        Admission::new(&config, self.profile).refuse(&config).map(|()| left).map_err(|errors| {
            errors.problems.iter().map(|problem| problem.what.as_str()).collect::<Vec<_>>().join("; ")
        })
    }
}
