//! On which drive a tenant goes that names none: one where its promise and everybody else's hold, and of those the one
//! that has the least left over.
//!
//! A promise goes to no drive that has no profile to judge it by while there is one that has. A drive that forgets
//! everything when the daemon ends takes nobody who can be on another one.

use config::{Config, ConfigErrors, Found, Tenant, Unplaced};
use io_model::units::Size;
use ssd_model::Profile;

use crate::admission::Admission;
use crate::forecasts::Forecasts;

/// One drive that a tenant could be on.
pub struct Site<'a> {
    /// The tenants that are on the drive.
    pub config: &'a mut Config,
    /// What the drive is, or is taken for.
    pub profile: &'a Profile,
    /// What nobody has of it.
    pub free_bytes: Option<u64>,
}

/// Which of several drives a tenant goes to: the first in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference {
    is_volatile: bool,
    left_bytes: u64,
}

impl Preference {
    /// Of a drive that has so much left over with the tenant.
    pub fn of(config: &Config, left_bytes: u64) -> Self {
        Self { is_volatile: config.device.backend.path().is_none(), left_bytes }
    }
}

/// Why a drive can't have a tenant that names none: its promise can't be judged there, and on one of `others` it can.
pub fn refuse_unjudged<'c>(
    tenant: &Tenant,
    on: &Config,
    mut others: impl Iterator<Item = &'c Config>,
) -> Result<(), &'static str> {
    let is_judged = |config: &Config| config.device.profile_named;
    if tenant.is_promised() && !tenant.overcommit && !is_judged(on) && others.any(is_judged) {
        return Err("it has no profile to judge the promise by");
    }
    Ok(())
}

/// Places every tenant that is on no drive yet. Nothing is written.
///
/// # Errors
/// The first tenant that no drive can have, and why.
pub fn place(sites: &mut [Site<'_>], unplaced: &Unplaced, forecasts: &Forecasts) -> Result<(), ConfigErrors> {
    for name in &unplaced.names {
        let mut best: Option<(Preference, usize)> = None;
        let mut unfit = Vec::new();
        for (at, site) in sites.iter().enumerate() {
            let Some(tenant) = unplaced.on(name, at) else { continue };
            let others = sites.iter().map(|site| &*site.config);
            let judged = refuse_unjudged(tenant, site.config, others).map_err(str::to_owned);
            match judged.and_then(|()| site.left_with(tenant, forecasts)).map(|left| Preference::of(site.config, left))
            {
                Ok(found) if best.is_none_or(|(first, _)| found < first) => best = Some((found, at)),
                Ok(_) => {}
                Err(why) => unfit.push(format!("{}: {why}", site.config.device.name)),
            }
        }
        match (best, sites.first()) {
            // Another drive may be the better one.
            (Some(_), Some(site)) if forecasts.is_missing() => {
                return Err(unplaced.nowhere(name, site.config, "there is no forecast of its promises yet"));
            }
            (Some((found, at)), _) => {
                sites[at].free_bytes = Some(found.left_bytes);
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
        let free_bytes = Some(found.free_bytes());
        Self { config: &mut found.config, profile, free_bytes }
    }

    /// What the drive has left over with one more tenant, or why it can't be there: there is no room, or a promise
    /// would not hold that nobody overcommits.
    fn left_with(&self, tenant: &Tenant, forecasts: &Forecasts) -> Result<u64, String> {
        let free_bytes = self.free_bytes.ok_or("it is not served until the daemon starts again with this file")?;
        let left = free_bytes.checked_sub(tenant.size.0);
        let left = left.ok_or_else(|| format!("it has only {} left", Size(free_bytes)))?;
        if !self.config.tenants.iter().chain([tenant]).any(Tenant::is_promised) {
            // Nobody's promise is at stake: with a thousand tenants it makes a difference not to ask.
            return Ok(left);
        }
        let mut config = self.config.clone();
        config.tenants.push(tenant.clone());
        let admission = Admission::of_change(&config, self.profile, self.config, forecasts);
        admission.refuse(&config).map(|()| left).map_err(|errors| {
            errors.problems.iter().map(|problem| problem.what.as_str()).collect::<Vec<_>>().join("; ")
        })
    }
}
