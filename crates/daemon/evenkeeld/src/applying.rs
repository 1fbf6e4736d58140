//! A configuration file that is applied while the daemon runs, by `evenkeel apply` or SIGHUP.
//!
//! What the file declares is held against what is served, as steps. All of them are checked, and every promise judged
//! as it will be in the end, before the first one is taken; each is then whole or not at all, as if it had been asked
//! for alone. Disks that the API made are no part of it.

use std::path::Path;
use std::sync::mpsc::channel;

use api::{Action, Applied, Apply, Key, Problem, Step};
use client_socket::Level;
use config::{Config, ConfigErrors, KeyChange, Sections, tenant_changes, tenant_keys, tenant_meanwhile};
use layout::WipeMethod;
use promises::admission::Admission;

use crate::disks::{broken, in_words, invalid, not_durable};
use crate::owner::Owner;

/// Whether tenants that left the file go, or stay until somebody says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Goes,
    Stays,
}

/// What applying a file comes to.
struct Plan {
    steps: Vec<Step>,
    /// What is declared once all of it is done.
    sections: Sections,
    /// The same with everything else.
    config: Config,
}

impl Owner {
    /// Applies a file, or says what that would do.
    pub(crate) fn apply_file(&mut self, asked: &Apply) -> Result<Applied, Problem> {
        let plan = self.plan_to_apply(Path::new(&asked.file), &asked.text, Missing::Goes)?;
        if asked.agreed.as_ref().is_some_and(|agreed| *agreed != plan.steps) {
            let title = "what there is to do has changed since it was shown; nothing is done";
            return Err(Problem::new(409, "changed-meanwhile", title, "look at it again, and say yes again"));
        }
        if !asked.dry_run {
            self.carry_out(&plan, Missing::Goes)?;
        }
        let starts_with = self.config.file().display().to_string();
        Ok(Applied { steps: plan.steps, done: !asked.dry_run, starts_with })
    }

    /// Applies the file that the daemon started with, as it is now. It deletes nothing.
    pub(crate) fn apply_own_file(&mut self, text: Result<String, String>) {
        let file = self.config.file().to_owned();
        let refuse = |why: String| format!("{}: not applied: {why}", file.display());
        let text = match text {
            Ok(text) => text,
            Err(why) => return (self.around.sink)(Level::Warn, &refuse(why)),
        };
        let plan = self.plan_to_apply(&file, &text, Missing::Stays);
        let done = plan.and_then(|plan| self.carry_out(&plan, Missing::Stays).map(|()| plan));
        match done {
            Ok(plan) if plan.steps.is_empty() => {
                (self.around.sink)(Level::Info, &format!("{}: nothing in it has changed", file.display()));
            }
            Ok(plan) => {
                for step in plan.steps.iter().filter(|step| step.action == Action::Delete) {
                    let name = step.tenant.as_deref().unwrap_or_default();
                    let line = format!(
                        "{name}: {} has it no more; it is served all the same until `evenkeel apply {}` deletes it and \
                         all its data",
                        file.display(),
                        file.display()
                    );
                    (self.around.sink)(Level::Warn, &line);
                }
            }
            Err(problem) if problem.details.is_empty() => (self.around.sink)(Level::Warn, &refuse(problem.to_string())),
            Err(problem) => {
                problem.details.iter().for_each(|why| (self.around.sink)(Level::Warn, &refuse(why.clone())))
            }
        }
    }

    /// What it takes to serve what a file declares. Nothing is changed.
    fn plan_to_apply(&self, file: &Path, text: &str, missing: Missing) -> Result<Plan, Problem> {
        let next = Config::parse(file, text).map_err(|errors| invalid_file(&errors))?;
        let made: Vec<&str> = self.layout.layout().into_iter().flat_map(|it| it.settings()).map(|it| it.0).collect();
        next.refuse_names(&made).map_err(|errors| invalid_file(&errors))?;
        let now = Sections::of(&self.config).map_err(|errors| invalid(&errors))?;
        let next = Sections::of(&next).map_err(|errors| invalid(&errors))?;
        let steps = steps(&now, &next);
        let mut sections = now.clone();
        for name in next.names() {
            if let Some(new) = next.find(name) {
                sections.put(now.find(name).map_or_else(|| new.clone(), |old| tenant_meanwhile(old, new)));
            }
        }
        if missing == Missing::Goes {
            now.names().filter(|name| next.find(name).is_none()).for_each(|name| sections.remove(name));
        }
        let config = self.with_declared(&sections).map_err(|errors| invalid(&errors))?;
        let plan = Plan { steps, sections, config };
        self.check_to_apply(&plan, missing)?;
        Ok(plan)
    }

    /// The configuration with these tenants declared, and all disks that the API made.
    fn with_declared(&self, sections: &Sections) -> Result<Config, ConfigErrors> {
        let made = self.layout.layout().into_iter().flat_map(|layout| layout.settings()).map(|(_, settings)| settings);
        let mut config = Config::parse(self.config.file(), &sections.to_text())?.with_disks(made)?;
        config.take_accounts_of(&self.config)?;
        Ok(config)
    }

    /// Whether all steps together can be done: promises, room, clients that are in the way.
    fn check_to_apply(&self, plan: &Plan, missing: Missing) -> Result<(), Problem> {
        let config = &plan.config;
        Admission::new(config, &self.profile).refuse(config).map_err(|errors| {
            let (title, remedy) = in_words(&errors);
            Problem::new(409, "promise-not-kept", title, remedy)
        })?;
        if let Some(recorded) = self.layout.layout() {
            config.plan_layout(recorded.device(), Some(recorded)).map_err(|errors| {
                let (title, remedy) = in_words(&errors);
                Problem::new(409, "no-room", title, remedy)
            })?;
        }
        for Step { action, tenant, .. } in &plan.steps {
            let Some(name) = tenant.as_deref() else { continue };
            let live = self.find_tenant(name).and_then(|id| self.tenants.get(&id));
            let server = live.and_then(|live| live.server.as_ref());
            let is_attached = server.is_some_and(client_socket::Server::has_client);
            match action {
                Action::Create if live.is_some() => {
                    let title = format!("an earlier {name:?} has not left yet");
                    return Err(Problem::new(409, "still-leaving", title, "apply the file again in a moment"));
                }
                Action::Delete if missing == Missing::Goes && is_attached => {
                    let title = format!("{name:?} left the file and is attached to a client");
                    let remedy = "detach it there first, or write it into the file again; nothing is done";
                    return Err(Problem::new(409, "attached", title, remedy));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes every step. What was done before one that fails stays done.
    fn carry_out(&mut self, plan: &Plan, missing: Missing) -> Result<(), Problem> {
        let now = Sections::of(&self.config).map_err(|errors| invalid(&errors))?;
        let mut done = now;
        let (mut told, mut failed) = (Vec::new(), None);
        for step in &plan.steps {
            let Some(name) = step.tenant.as_deref().filter(|_| step.action != Action::Later) else { continue };
            if step.action == Action::Delete && missing == Missing::Stays {
                continue;
            }
            if let Err(problem) = self.take_step(step.action, name, &plan.config) {
                failed = Some((step, problem));
                break;
            }
            match plan.sections.find(name) {
                Some(section) => done.put(section.clone()),
                None => done.remove(name),
            }
            (self.around.sink)(Level::Info, &format!("applied: {step}"));
            told.push(format!("done: {step}"));
        }
        let Some((step, mut problem)) = failed else {
            self.config = plan.config.clone();
            return Ok(());
        };
        // Part of a file that holds together does so too, but for what a bug would make of it.
        if let Ok(config) = self.with_declared(&done) {
            self.config = config;
        }
        problem.title = format!("{step}: {}", problem.title);
        problem.details = told;
        Err(problem)
    }

    fn take_step(&mut self, action: Action, name: &str, config: &Config) -> Result<(), Problem> {
        let find = || config.tenants.iter().find(|tenant| tenant.name == name).ok_or_else(broken);
        match action {
            // When it has left nobody waits for it.
            Action::Delete => self.delete(name, WipeMethod::Zeros, channel().0).map_err(|error| not_durable(&error)),
            Action::Change => {
                let id = self.find_tenant(name).ok_or_else(broken)?;
                self.change_to(id, find()?, None)
            }
            Action::Create => {
                let added = self.add(find()?.clone(), None);
                added.map(drop).map_err(|error| {
                    let remedy = "apply the file again once that is mended; what was done before stays done";
                    Problem::new(500, "failed", format!("{error:#}"), remedy)
                })
            }
            Action::Later => Ok(()),
        }
    }
}

/// What differs, in the order in which it is done: room and promises are given back before others take them.
fn steps(now: &Sections, next: &Sections) -> Vec<Step> {
    let size = |sections: &Sections, name: &str| sections.size_bytes(name);
    let gone = now.names().filter(|name| next.find(name).is_none());
    let delete = |name: &str| Step {
        action: Action::Delete,
        tenant: Some(name.to_owned()),
        size_bytes: size(now, name),
        keys: Vec::new(),
    };
    let mut steps: Vec<Step> = gone.map(delete).collect();
    let mut later = Vec::new();
    for (name, old, new) in next.names().filter_map(|name| Some((name, now.find(name)?, next.find(name)?))) {
        let (cant, can): (Vec<_>, Vec<_>) = tenant_changes(old, new).into_iter().partition(|key| key.remedy.is_some());
        let step = |action, keys| Step { action, tenant: Some(name.to_owned()), size_bytes: None, keys };
        steps.extend((!can.is_empty()).then(|| step(Action::Change, keys(can))));
        later.extend((!cant.is_empty()).then(|| step(Action::Later, keys(cant))));
    }
    for (name, new) in next.names().filter(|name| now.find(name).is_none()).filter_map(|it| Some((it, next.find(it)?)))
    {
        let (tenant, size_bytes) = (Some(name.to_owned()), size(next, name));
        steps.push(Step { action: Action::Create, tenant, size_bytes, keys: keys(tenant_keys(new)) });
    }
    let head = now.head_changes(next);
    if !head.is_empty() {
        later.push(Step { action: Action::Later, tenant: None, size_bytes: None, keys: keys(head) });
    }
    steps.into_iter().chain(later).collect()
}

fn keys(changes: Vec<KeyChange>) -> Vec<Key> {
    let key = |KeyChange { key, old, new, remedy }| Key { key, old, new, remedy: remedy.map(str::to_owned) };
    changes.into_iter().map(key).collect()
}

/// Every problem of a file, each at its line.
fn invalid_file(errors: &ConfigErrors) -> Problem {
    let (title, remedy) = in_words(errors);
    let details = errors.problems.iter().map(|problem| problem.in_file(&errors.file)).collect();
    Problem { details, ..Problem::new(422, "invalid", title, remedy) }
}
