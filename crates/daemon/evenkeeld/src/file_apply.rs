//! A configuration file that is applied while the daemon runs, by `evenkeel apply` or SIGHUP.
//!
//! What the file declares is held against what is served, as steps. All of them are checked, and every promise judged
//! as it will be in the end, before the first one is taken; each is then whole or not at all, as if it had been asked
//! for alone. Disks that the API made are no part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{Action, Applied, Apply, Key, Step};
use client_socket::{About, Level};
use config::{
    Config, ConfigErrors, DiskKind, Drives, KeyChange, Sections, Tenant, disk_changes, disk_keys, disk_meanwhile,
    is_of_front_end,
};
use io_model::TenantId;
use policy::PolicyConfig;
use promises::admission::Admission;
use promises::placing::{self, Site};
use ssd_model::Profile;

use crate::adoption::Adopted;
use state::errors::{broken, in_words, invalid};

use crate::error_texts::{failed, no_room_for_file, promise_not_kept};
use crate::owner::Owner;
use crate::served_drive::ServedDrive;
use api::{DiskError, Reason};
use runtime::command::Command;
use runtime::happening::DriveId;

/// Whether tenants that left the file are deleted, or kept until the operator agrees.
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
    /// Each drive's configuration with all other changes.
    configs: BTreeMap<DriveId, Config>,
    /// Its steps are among `steps`.
    adopted: Adopted,
}

impl Owner {
    /// Applies a file, or says what that would do.
    pub(crate) fn apply_file(&mut self, asked: &Apply) -> Result<Applied, DiskError> {
        let plan = self.plan_to_apply(Path::new(&asked.file), &asked.text, Missing::Goes)?;
        if asked.agreed.as_ref().is_some_and(|agreed| *agreed != plan.steps) {
            let title = "the changes are not those that were shown; nothing is done";
            return Err(DiskError::new(Reason::ChangedMeanwhile, title, "look at the changes again, and confirm them"));
        }
        if !asked.dry_run {
            self.carry_out(&plan, Missing::Goes)?;
        }
        let starts_with = self.file().display().to_string();
        Ok(Applied { steps: plan.steps, done: !asked.dry_run, starts_with })
    }

    /// Applies the file that the daemon started with, as it is now. It deletes nothing.
    pub(crate) fn apply_own_file(&mut self, text: Result<String, String>) {
        let file = self.file();
        let sink = Arc::clone(&self.common.around.sink);
        let refuse = |why: String| format!("{}: not applied: {why}", file.display());
        let text = match text {
            Ok(text) => text,
            Err(why) => return sink(Level::Warn.of_daemon(), &refuse(why)),
        };
        let plan = self.plan_to_apply(&file, &text, Missing::Stays);
        let done = plan.and_then(|plan| self.carry_out(&plan, Missing::Stays).map(|()| plan));
        if let Some(missing) = self.missing_for(&done) {
            return self.carry_out_after(missing, Command::OwnFile(Ok(text)));
        }
        match done {
            Ok(plan) if plan.steps.is_empty() => {
                sink(Level::Info.of_daemon(), &format!("{}: nothing in it has changed", file.display()));
            }
            Ok(plan) => {
                for step in plan.steps.iter().filter(|step| step.action == Action::Later) {
                    let of = step.tenant.as_deref().unwrap_or("the daemon");
                    let about = About { tenant: step.tenant.as_deref(), ..Level::Warn.of_daemon() };
                    for key in &step.keys {
                        sink(about, &format!("{of}: {} has {key}: not done while it runs", file.display()));
                    }
                }
                for step in plan.steps.iter().filter(|step| step.action == Action::Delete) {
                    let name = step.tenant.as_deref().unwrap_or_default();
                    let line = format!(
                        "{name}: {} no longer has it; it is served until `evenkeel apply {}` deletes it and \
                         all its data",
                        file.display(),
                        file.display()
                    );
                    sink(Level::Warn.of_tenant(name), &line);
                }
            }
            Err(problem) if problem.details.is_empty() => sink(Level::Warn.of_daemon(), &refuse(problem.to_string())),
            Err(problem) => problem.details.iter().for_each(|why| sink(Level::Warn.of_daemon(), &refuse(why.clone()))),
        }
    }

    /// What it takes to serve what a file declares. Nothing is changed.
    fn plan_to_apply(&self, file: &Path, text: &str, missing: Missing) -> Result<Plan, DiskError> {
        let next = Drives::parse(file, text, self.added.sections()).map_err(|errors| invalid_file(&errors))?;
        next.refuse_names(&self.absent.made().collect::<Vec<_>>()).map_err(|errors| invalid_file(&errors))?;
        self.refuse_new_drives(&next)?;
        let mut now = self.declared()?;
        let Some(first) = next.each.first() else { return Err(broken()) };
        let (mut next, at_start) = (Sections::of(first).map_err(|errors| invalid(&errors))?, next);
        let mut adopted = self.adopt(&mut now, &next, text);
        self.name_drives(&mut now, &mut next);
        refuse_other_kinds(&now, &next)?;
        let attached = |name: &str| {
            self.drives.values().any(|drive| drive.find_tenant(name).is_some_and(|id| drive.is_attached(id)))
        };
        let mut steps: Vec<Step> =
            std::mem::take(&mut adopted.steps).into_iter().chain(steps(&now, &next, &attached)).collect();
        let is_away = |name: &str| self.why_away(name, &next).is_some();
        self.put_off_missing(&mut steps, &next);
        let mut sections = now.clone();
        for name in next.names().filter(|name| !is_away(name)) {
            if let Some((kind, new)) = next.find(name) {
                let old = now.find(name);
                let meanwhile = |(_, old)| disk_meanwhile(kind, old, new, attached(name));
                sections.put(kind, old.map_or_else(|| new.clone(), meanwhile));
            }
        }
        if missing == Missing::Goes {
            let gone = now.names().filter(|name| next.find(name).is_none() && !is_away(name));
            gone.for_each(|name| sections.remove(name));
        }
        let as_it_is = sections.clone();
        sections.take_head(&next);
        let new_drives: Vec<String> = self.new_drives(&at_start).map(|it| format!("{:?}", it.device.name)).collect();
        let mut configs = self.with_declared(&sections).map_err(|errors| {
            let mut problem = invalid(&errors);
            if !new_drives.is_empty() {
                problem.title += &format!("; not served before the daemon starts again: {}", new_drives.join(", "));
            }
            problem
        })?;
        if let Err(why) = self.policies_of(&configs) {
            steps.iter_mut().filter(|step| step.is_policies()).for_each(|step| step.put_off(&why));
            (sections, configs) = (as_it_is.clone(), self.with_declared(&as_it_is).map_err(|errors| invalid(&errors))?);
        }
        let plan = Plan { steps, sections, configs, adopted };
        self.check_to_apply(&plan, missing)?;
        self.check_next_start(at_start)?;
        Ok(plan)
    }

    /// Why what a file says of a disk has to wait: its drive is missing, or the one where the file wants it.
    fn why_away(&self, name: &str, next: &Sections) -> Option<String> {
        if self.drives.values().any(|drive| drive.find_disk(name).is_some()) {
            return None;
        }
        let wanted = next.find(name).and_then(|(_, section)| section.get("drive")?.as_str());
        let missing = wanted.and_then(|drive| self.absent.drive(drive));
        let wanted = missing.map(|drive| format!("drive {:?} is missing: {}", drive.name(), drive.why()));
        self.absent.why(name).or(wanted)
    }

    /// Disks of drives that are missing stay as they are.
    fn put_off_missing(&self, steps: &mut [Step], next: &Sections) {
        for step in steps.iter_mut() {
            let Some(name) = &step.tenant else { continue };
            let Some(why) = self.why_away(name, next) else { continue };
            if step.action == Action::Delete {
                step.keys.push(Key { key: "name".to_owned(), old: Some(name.clone()), new: None, remedy: None });
            }
            step.put_off(&why);
        }
        steps.sort_by_key(|step| step.action == Action::Later);
    }

    /// The policies that drives are to have, or why one can't have its while the daemon runs.
    fn policies_of(&self, configs: &BTreeMap<DriveId, Config>) -> Result<Vec<(DriveId, PolicyConfig)>, String> {
        let served = configs.iter().filter_map(|(id, config)| Some((id, self.drives.get(id)?, config)));
        served.map(|(id, drive, config)| Ok((*id, drive.can_have_policy_of(config)?))).collect()
    }

    /// Drives of a file that the daemon did not start with.
    fn new_drives<'d>(&self, next: &'d Drives) -> impl Iterator<Item = &'d Config> {
        let is_known = |name: &str| self.drive_named(name).is_some() || self.absent.drive(name).is_some();
        next.each.iter().filter(move |config| !is_known(&config.device.name))
    }

    /// A tenant of a drive that is not served can't be served.
    fn refuse_new_drives(&self, next: &Drives) -> Result<(), DiskError> {
        let Some(new) = self.new_drives(next).find(|it| it.disks().next().is_some()) else { return Ok(()) };
        let title = format!("drive {:?} has tenants in the file and is not served yet", new.device.name);
        Err(DiskError::new(Reason::NewDrive, title, "start the daemon again to serve it; nothing is done"))
    }

    /// What the file that the daemon serves declares now.
    fn declared(&self) -> Result<Sections, DiskError> {
        let Some(drive) = self.drives.values().next() else { return Err(broken()) };
        Sections::of(drive.config()).map_err(|errors| invalid(&errors))
    }

    /// The file that the daemon started with.
    fn file(&self) -> PathBuf {
        self.drives.values().next().map(|drive| drive.config().file().to_owned()).unwrap_or_default()
    }

    /// The configuration of each drive with these disks declared, and all that the API made.
    fn with_declared(&self, sections: &Sections) -> Result<BTreeMap<DriveId, Config>, ConfigErrors> {
        let drives = Drives::parse(&self.file(), &sections.to_text(), self.added.sections())?;
        let mut configs = self.on_drives(drives, &|drive, _| drive.profile.clone())?;
        for (id, config) in &mut configs {
            if let Some(drive) = self.drives.get(id) {
                config.take_accounts_of(drive.config())?;
            }
        }
        Ok(configs)
    }

    /// What each drive that is served has of a file, with all that the API made. Tenants that are there stay where they
    /// are; namespaces of tenants that are no more are attached to the others. `profile`: what a drive is taken for.
    pub(crate) fn on_drives(
        &self,
        Drives { mut each, mut unplaced, .. }: Drives,
        profile: &dyn Fn(&ServedDrive, &Config) -> Profile,
    ) -> Result<BTreeMap<DriveId, Config>, ConfigErrors> {
        let served: Vec<Option<(DriveId, &ServedDrive)>> =
            each.iter().map(|config| self.drive_named(&config.device.name)).collect();
        let has = |name: &str| served.iter().position(|it| it.is_some_and(|(_, drive)| drive.has_disk(name)));
        for (name, at) in unplaced.take_known(has) {
            unplaced.put(&name, at, &mut each[at]);
        }
        // The rest may be on a drive that is missing, and would have an empty disk here.
        unplaced.names.retain(|name| self.absent.why(name).is_none());
        if !unplaced.names.is_empty() {
            let profiles: Vec<Option<Profile>> =
                served.iter().zip(&each).map(|(it, config)| it.map(|(_, drive)| profile(drive, config))).collect();
            let Some(any) = profiles.iter().flatten().next() else { return Ok(BTreeMap::new()) };
            let sites = each.iter_mut().zip(&served).zip(&profiles).map(|((config, served), profile)| {
                let free_bytes = served.map(|(_, drive)| drive.state.free_bytes_with(config));
                Site { config, profile: profile.as_ref().unwrap_or(any), free_bytes }
            });
            placing::place(&mut sites.collect::<Vec<_>>(), &unplaced, &self.common.forecasts)?;
        }
        // What the file names by now is the file's.
        let declared: BTreeSet<String> =
            each.iter().flat_map(Config::disks).map(|(name, ..)| name.to_owned()).collect();
        let whole = |((id, drive), config): ((DriveId, &ServedDrive), Config)| {
            let is_there = |tenant: &str| {
                let made = drive.state.made_disks().map(|(name, _)| name);
                config.tenants.iter().map(|it| it.name.as_str()).chain(made).any(|name| name == tenant)
            };
            let detached = drive.state.detached_sections(is_there);
            let now = |(of, section)| detached.iter().find(|(it, _)| it == of).map_or(section, |(_, it)| it.as_str());
            let made = drive.state.made_disks().filter(|(name, _)| !declared.contains(*name));
            Ok((id, config.with_disks(made.map(now))?))
        };
        served.into_iter().zip(each).filter_map(|(it, config)| Some((it?, config))).map(whole).collect()
    }

    /// Whether all steps together can be done: promises, room, clients that are in the way.
    fn check_to_apply(&self, plan: &Plan, missing: Missing) -> Result<(), DiskError> {
        for (id, config) in &plan.configs {
            let Some(drive) = self.drives.get(id) else { continue };
            let admission = Admission::of_change(config, &drive.profile, drive.config(), &drive.forecasts);
            admission.refuse(config).map_err(|errors| promise_not_kept(&errors))?;
            if let Some(recorded) = drive.state.layout() {
                config.plan_layout(recorded.device(), Some(recorded)).map_err(|errors| no_room_for_file(&errors))?;
            }
        }
        for Step { action, tenant, .. } in &plan.steps {
            let Some(name) = tenant.as_deref() else { continue };
            let disk = self.drives.values().find_map(|drive| drive.describe_disk(drive.find_disk(name)?));
            let is_attached = disk.as_ref().is_some_and(|disk| disk.attached);
            match action {
                Action::Create if disk.is_some() => {
                    let title = format!("an earlier {name:?} has not been removed yet");
                    return Err(DiskError::new(Reason::StillLeaving, title, "apply the file again in a moment"));
                }
                Action::Delete if missing == Missing::Goes && is_attached => {
                    let title = format!("{name:?} was removed from the file and is attached to a client");
                    let remedy = "detach it there first, or write it into the file again; nothing is done";
                    return Err(DiskError::new(Reason::Attached, title, remedy));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Has pollers let go of all tenants that are to be served another way.
    fn take_off_first(&mut self, plan: &Plan) -> Result<(), DiskError> {
        let mut all = Ok(());
        for step in plan.steps.iter().filter(|step| step.action == Action::Change) {
            let reached = of_front_end(step.keys.clone());
            for (id, config) in &plan.configs {
                let Some(drive) = self.drives.get_mut(id) else { continue };
                let remade = |tenant: &Tenant| {
                    drive.find_tenant(&tenant.name).filter(|id| drive.is_remade(*id, tenant, config, &reached))
                };
                let tenants: Vec<TenantId> = match &step.tenant {
                    Some(name) => config.tenants.iter().filter(|it| it.name == *name).filter_map(remade).collect(),
                    None => drive.misplaced(config).collect(),
                };
                for id in tenants {
                    all = if drive.is_free(id) { drive.take_off_first(id).and(all) } else { all };
                }
            }
        }
        all
    }

    /// Takes every step. What was done before one that fails stays done.
    fn carry_out(&mut self, plan: &Plan, missing: Missing) -> Result<(), DiskError> {
        self.take_off_first(plan)?;
        let mut done = self.declared()?;
        let (mut told, mut failed) = (Vec::new(), None);
        let stays = |step: &&Step| step.action == Action::Delete && missing == Missing::Stays;
        for step in plan.steps.iter().filter(|step| step.action != Action::Later && !stays(step)) {
            if let Err(problem) = self.take_step(step, plan, &mut done) {
                failed = Some((step, problem));
                break;
            }
            let about = About { tenant: step.tenant.as_deref(), ..Level::Info.of_daemon() };
            (self.common.around.sink)(about, &format!("applied: {step}"));
            told.push(format!("done: {step}"));
        }
        let Some((step, mut problem)) = failed else {
            self.take_configs(plan.configs.clone());
            self.take_back();
            return Ok(());
        };
        // Part of a file that holds together does so too, but for namespaces of tenants that are not there.
        done.detach_from_absent();
        if let Ok(configs) = self.with_declared(&done) {
            self.take_configs(configs);
        }
        problem.title = format!("{step}: {}", problem.title);
        problem.details = told;
        Err(problem)
    }

    fn take_configs(&mut self, configs: BTreeMap<DriveId, Config>) {
        for (id, config) in configs {
            if let Some(drive) = self.drives.get_mut(&id) {
                drive.take(config);
            }
        }
    }

    /// Takes one step; what is `done` has it.
    fn take_step(&mut self, step: &Step, plan: &Plan, done: &mut Sections) -> Result<(), DiskError> {
        match (step.action, step.tenant.as_deref()) {
            (Action::Declare, _) => {
                self.take_adoption(step, (&plan.adopted.added, &plan.adopted.drives), done)?;
            }
            (_, None) => {
                for (id, config) in &plan.configs {
                    self.drives.get_mut(id).map_or(Ok(()), |drive| drive.take_pool(config))?;
                }
                self.take_policies(plan);
                self.take_groups(plan);
                done.take_head(&plan.sections);
            }
            (_, Some(name)) => {
                self.take_disk_step(step, name, &plan.configs)?;
                match plan.sections.find(name) {
                    Some((kind, section)) => done.put(kind, section.clone()),
                    None => done.remove(name),
                }
            }
        }
        Ok(())
    }

    /// It was tried when the plan was made.
    fn take_policies(&mut self, plan: &Plan) {
        for (id, policy) in self.policies_of(&plan.configs).unwrap_or_default() {
            if let (Some(drive), Some(config)) = (self.drives.get_mut(&id), plan.configs.get(&id)) {
                drive.take_policy(policy, config);
            }
        }
    }

    fn take_groups(&mut self, plan: &Plan) {
        plan.configs.values().take(1).for_each(|config| self.common.groups.set(&config.groups));
        for (id, config) in &plan.configs {
            if let Some(drive) = self.drives.get_mut(id) {
                Arc::make_mut(&mut drive.foresight).change_groups(&config.groups);
            }
        }
    }

    fn take_disk_step(&mut self, step: &Step, name: &str, to_be: &BTreeMap<DriveId, Config>) -> Result<(), DiskError> {
        let action = step.action;
        let is_it = |config: &Config| config.namespaces.iter().any(|namespace| namespace.name == name);
        if let Some((id, config)) = to_be.iter().find(|(_, config)| action != Action::Delete && is_it(config)) {
            let drive = self.drives.get_mut(id).ok_or_else(broken)?;
            return drive.take_namespace_step(action, name, config);
        }
        let find = |config: &Config| config.tenants.iter().find(|tenant| tenant.name == name).cloned();
        let planned = to_be.iter().find_map(|(id, config)| Some((*id, find(config)?)));
        match action {
            Action::Delete => {
                let drive = self.find_drive(name).ok_or_else(broken)?;
                // When it has left nobody waits for it.
                drive.delete(name, None)
            }
            Action::Change => {
                let drive = self.find_drive(name).ok_or_else(broken)?;
                let id = drive.find_tenant(name).ok_or_else(broken)?;
                let (on, tenant) = planned.ok_or_else(broken)?;
                let config = to_be.get(&on).ok_or_else(broken)?;
                drive.change_to(id, &tenant, config, &of_front_end(step.keys.clone()), None)
            }
            Action::Create => {
                let (id, tenant) = planned.ok_or_else(broken)?;
                let drive = self.drives.get_mut(&id).ok_or_else(broken)?;
                let config = to_be.get(&id).ok_or_else(broken)?;
                drive.add(tenant, config, None).map_err(|error| {
                    let remedy = "apply the file again once that is fixed; earlier changes stay";
                    failed(&error, remedy)
                })
            }
            Action::Declare | Action::Later => Ok(()),
        }
    }
}

/// A tenant's disk and a namespace are not turned into one another while in use.
fn refuse_other_kinds(now: &Sections, next: &Sections) -> Result<(), DiskError> {
    for name in next.names() {
        if let (Some((old, _)), Some((new, _))) = (now.find(name), next.find(name))
            && old != new
        {
            let title = format!("{name:?} is a {} and can't become a {} while it is there", old.name(), new.name());
            return Err(DiskError::new(Reason::OtherKind, title, "start the daemon again, or choose another name"));
        }
    }
    Ok(())
}

/// What differs, in the order in which it is done: room and promises are given back before others take them, and
/// tenants are there before namespaces are attached to them.
fn steps(now: &Sections, next: &Sections, attached: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let size = |sections: &Sections, name: &str| sections.size_bytes(name);
    let of = |sections: &Sections, name: &str| sections.find(name).map(|(kind, _)| kind);
    let mut gone: Vec<&str> = now.names().filter(|name| next.find(name).is_none()).collect();
    gone.sort_by_key(|name| of(now, name) == Some(DiskKind::Tenant));
    let names: Vec<&str> = next.names().collect();
    let delete = |name: &str| Step {
        action: Action::Delete,
        tenant: Some(name.to_owned()),
        size_bytes: size(now, name),
        keys: Vec::new(),
    };
    let mut steps: Vec<Step> = gone.into_iter().map(delete).collect();
    let (cant, policies): (Vec<_>, Vec<_>) = now.head_changes(next).into_iter().partition(|key| key.remedy.is_some());
    let of_daemon = |action, keys| Step { action, tenant: None, size_bytes: None, keys };
    steps.extend((!policies.is_empty()).then(|| of_daemon(Action::Change, keys(policies))));
    let mut later = Vec::new();
    for (name, old, (kind, new)) in names.iter().filter_map(|it| Some((*it, now.find(it)?.1, next.find(it)?))) {
        let changes = disk_changes(kind, old, new, attached(name));
        let (cant, can): (Vec<_>, Vec<_>) = changes.into_iter().partition(|key| key.remedy.is_some());
        let step = |action, keys| Step { action, tenant: Some(name.to_owned()), size_bytes: None, keys };
        steps.extend((!can.is_empty()).then(|| step(Action::Change, keys(can))));
        later.extend((!cant.is_empty()).then(|| step(Action::Later, keys(cant))));
    }
    for (name, (kind, new)) in
        names.iter().filter(|it| now.find(it).is_none()).filter_map(|it| Some((*it, next.find(it)?)))
    {
        let (tenant, size_bytes) = (Some(name.to_owned()), size(next, name));
        steps.push(Step { action: Action::Create, tenant, size_bytes, keys: keys(disk_keys(kind, new)) });
    }
    // Stable: what is done with tenants comes before what is done with namespaces, but for deletions.
    steps.sort_by_key(|step| {
        let kind = step.tenant.as_deref().and_then(|name| of(next, name));
        step.action != Action::Delete && kind == Some(DiskKind::Namespace)
    });
    later.extend((!cant.is_empty()).then(|| of_daemon(Action::Later, keys(cant))));
    steps.into_iter().chain(later).collect()
}

/// Those that say how a tenant's guest reaches its disk.
pub(crate) fn of_front_end(mut keys: Vec<Key>) -> Vec<Key> {
    keys.retain(|it| is_of_front_end(&it.key, [it.old.as_deref(), it.new.as_deref()]));
    keys
}

pub(crate) fn keys(changes: Vec<KeyChange>) -> Vec<Key> {
    let key = |KeyChange { key, old, new, remedy }| Key { key, old, new, remedy: remedy.map(str::to_owned) };
    changes.into_iter().map(key).collect()
}

/// Every problem of a file, each at its line.
fn invalid_file(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    let details = errors.problems.iter().map(|problem| problem.in_file(&errors.file)).collect();
    DiskError { details, ..DiskError::new(Reason::Invalid, title, remedy) }
}
