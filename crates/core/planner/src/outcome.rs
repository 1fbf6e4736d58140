//! A forecast with its promises judged, and who makes them.

use std::cell::{Cell, RefCell};

use policy::PolicyConfig;

use crate::forecast::{Means, forecast};
use crate::play::{FULL, SHORT};
use crate::{Forecast, Promise, Site, Tenant, Unmodelled, Verdict, judge};

type Model<'a> = dyn Fn(&PolicyConfig, &[Tenant], Means<'_>) -> Result<Forecast, Unmodelled> + 'a;

/// What searches may play in all, in commands. What was found until then is told.
const SEARCHED_IOS: u64 = 3_000_000;

/// Answers questions about one site: whole plays, and short ones for searches.
pub struct Planner<'a> {
    site: &'a Site,
    model: Box<Model<'a>>,
    is_over: &'a dyn Fn() -> bool,
    known: RefCell<Vec<Known>>,
    questions: Cell<usize>,
    searched_ios: Cell<u64>,
}

/// A whole play and its answer.
struct Known {
    policy: PolicyConfig,
    tenants: Vec<Tenant>,
    outcome: Result<Outcome, Unmodelled>,
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
    /// With the engine, as long as it takes.
    pub fn new(site: &'a Site) -> Self {
        Self::within(site, &|| false)
    }

    /// With the engine. A play is cut off as soon as `is_over`: there is no answer then.
    pub fn within(site: &'a Site, is_over: &'a dyn Fn() -> bool) -> Self {
        let alone = RefCell::default();
        let model: Box<Model<'a>> =
            Box::new(move |policy, tenants, means| forecast(site, policy, tenants, means, &mut alone.borrow_mut()));
        let (known, questions, searched_ios) = Default::default();
        Self { site, model, is_over, known, questions, searched_ios }
    }

    /// With a model of the same site instead of the engine.
    pub fn with_model(
        site: &'a Site,
        model: impl Fn(&PolicyConfig, &[Tenant]) -> Result<Forecast, Unmodelled> + 'a,
    ) -> Self {
        Self { model: Box::new(move |policy, tenants, _| model(policy, tenants)), ..Self::new(site) }
    }

    /// What comes of these tenants under this policy: a whole play, once for each question.
    ///
    /// # Errors
    /// A demand that makes no sense, or what can't be played.
    pub fn outcome(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> Result<Outcome, Unmodelled> {
        let is_asked = |known: &&Known| (&known.policy, &known.tenants[..]) == (policy, tenants);
        if let Some(known) = self.known.borrow().iter().find(is_asked) {
            return known.outcome.clone();
        }
        let outcome = self.ask(policy, tenants, Means { effort: FULL, is_over: self.is_over });
        let known = Known { policy: policy.clone(), tenants: tenants.to_vec(), outcome: outcome.clone() };
        self.known.borrow_mut().push(known);
        outcome
    }

    fn ask(&self, policy: &PolicyConfig, tenants: &[Tenant], means: Means<'_>) -> Result<Outcome, Unmodelled> {
        self.questions.set(self.questions.get() + 1);
        let forecast = (self.model)(policy, tenants, means)?;
        Ok(Outcome { promises: judge(self.site, tenants, &forecast), forecast })
    }

    /// The drive and its host.
    pub fn site(&self) -> &Site {
        self.site
    }

    /// How many questions were played so far. It is what a plan's time goes to.
    pub fn questions(&self) -> usize {
        self.questions.get()
    }

    /// Whether searches have played all that they may: what they did not find may be there all the same.
    pub fn is_spent(&self) -> bool {
        self.searched_ios.get() >= SEARCHED_IOS
    }

    /// A first answer from a short play, for searches. `None`: there is none, or searches have played all they may.
    pub fn guess(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Outcome> {
        if self.is_spent() {
            return None;
        }
        let guess = self.ask(policy, tenants, Means { effort: SHORT, is_over: self.is_over }).ok()?;
        self.searched_ios.set(self.searched_ios.get() + guess.forecast.played_ios);
        Some(guess)
    }

    /// Whether a short play keeps every promise that can be kept by any means.
    pub(crate) fn seems_kept(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> bool {
        self.guess(policy, tenants).is_some_and(|outcome| outcome.keeps_what_it_can())
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
