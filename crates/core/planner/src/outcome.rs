//! A forecast with its promises judged, and who makes them.

use std::cell::Cell;

use policy::PolicyConfig;

use crate::{Forecast, Promise, Site, Tenant, Unmodelled, Verdict, judge, predict};

type Model<'a> = dyn Fn(&PolicyConfig, &[Tenant]) -> Result<Forecast, Unmodelled> + 'a;

/// Asks the model about one site, and counts how often.
pub struct Planner<'a> {
    site: &'a Site,
    model: Box<Model<'a>>,
    questions: Cell<usize>,
}

/// What all tenants will get under a policy, and what becomes of the promises.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What they get.
    pub forecast: Forecast,
    /// The promises, in the order of the tenants.
    pub promises: Vec<Promise>,
}

impl<'a> Planner<'a> {
    /// With the model of this crate.
    pub fn new(site: &'a Site) -> Self {
        Self::with_model(site, |policy, tenants| predict(site, policy, tenants))
    }

    /// With another model of the same site.
    pub fn with_model(
        site: &'a Site,
        model: impl Fn(&PolicyConfig, &[Tenant]) -> Result<Forecast, Unmodelled> + 'a,
    ) -> Self {
        Self { site, model: Box::new(model), questions: Cell::new(0) }
    }

    /// What comes of these tenants under this policy.
    ///
    /// # Errors
    /// What [`predict`] can't say.
    pub fn outcome(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> Result<Outcome, Unmodelled> {
        self.questions.set(self.questions.get() + 1);
        let forecast = (self.model)(policy, tenants)?;
        Ok(Outcome { promises: judge(self.site, tenants, &forecast), forecast })
    }

    /// The drive and its host.
    pub fn site(&self) -> &Site {
        self.site
    }

    /// How often the model was asked so far. It is what a plan's time goes to.
    pub fn questions(&self) -> usize {
        self.questions.get()
    }

    /// The outcome, if every promise that can be kept by any means is kept.
    pub(crate) fn if_kept(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Outcome> {
        self.outcome(policy, tenants).ok().filter(Outcome::keeps_what_it_can)
    }
}

impl Outcome {
    /// Whether every promise holds.
    pub fn keeps_all(&self) -> bool {
        self.promises.iter().all(|promise| promise.verdict.is_kept())
    }

    /// Whether every promise holds but those that no drive of this kind can keep.
    pub fn keeps_what_it_can(&self) -> bool {
        self.broken().all(|promise| matches!(promise.verdict, Verdict::Impossible { .. }))
    }

    /// The promises that do not hold.
    pub fn broken(&self) -> impl Iterator<Item = &Promise> {
        self.promises.iter().filter(|promise| !promise.verdict.is_kept())
    }

    /// Bytes per second that tenants without a promise get together.
    pub fn best_effort_bytes_s(&self, tenants: &[Tenant]) -> f64 {
        let pairs = tenants.iter().zip(&self.forecast.tenants);
        let without = pairs.filter(|(tenant, _)| tenant.target().is_none());
        // A sum of nothing is -0.
        0.0 + without.map(|(_, own)| own.bandwidth_bytes_s).sum::<f64>()
    }
}
