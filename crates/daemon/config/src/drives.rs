//! A file of several drives: what each has of it, and which tenants are still to be placed on one.
//!
//! Every drive has a [`Config`] of its own, read from the same text: the sections at the top, its own `[[drive]]`, and
//! the tenants that are on it. A tenant that names no drive is on the only one, or where it was placed.

use std::path::Path;

use toml::de::DeTable;

use crate::added::{self, AddedDrives};
use crate::check::{self, Candidate, parse_document, tenant_sections};
use crate::config::{Config, Tenant};
use crate::keys::{self, is_drive};
use crate::namespace;
use crate::nearest::nearest;
use crate::problem::{ConfigErrors, Problem, Sink, Text};
use crate::rules;
use crate::section::{self, Section};
use crate::text_file::read_text;
use crate::view::{DEVICE_NAME, View, name_of, sections};

/// A file, drive by drive.
#[derive(Debug)]
pub struct Drives {
    /// At least one. Tenants that are to be placed are on none of them.
    pub each: Vec<Config>,
    /// Those.
    pub unplaced: Unplaced,
}

impl Drives {
    /// Marks drives whose data new disks may overwrite. Only the command line that starts the daemon may ask for that.
    ///
    /// # Errors
    /// There is no drive of a name.
    pub fn discard_content(mut self, names: &[String]) -> Result<Self, ConfigErrors> {
        for name in names {
            let all: Vec<&str> = self.each.iter().map(|config| &*config.device.name).collect();
            let remedy = format!("the file's drives are: {}", all.join(", "));
            let Some(config) = self.each.iter_mut().find(|config| config.device.name == *name) else {
                let file = self.each.first().map_or(Path::new(""), |config| config.file());
                return Err(ConfigErrors::one(file, format!("--discard-content {name} names no drive"), remedy));
            };
            config.device.discard_content = true;
        }
        Ok(self)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong in the file, or that it can't be read.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = read_text(path, "a configuration file")?;
        let added = AddedDrives::find(&text)?;
        Self::parse(path, &text, added.sections())
    }

    /// Checks a file's text, with the sections of drives that were added since and that it does not declare. `file` is
    /// its name for messages; nothing is read.
    ///
    /// # Errors
    /// Everything that is wrong in the text.
    pub fn parse(file: &Path, text: &str, added: &str) -> Result<Self, ConfigErrors> {
        let added = added::not_declared(added, text);
        let source = Text { file: file.to_owned(), text: format!("{text}{added}") };
        let only = View { base_bytes: source.text.len(), ..View::only(text.len()) };
        let document = parse_document(&source)?;
        let mut all = Findings::default();
        let Overview { names, unplaced } = look_over(&mut all, &source, document.get_ref(), text.len());
        if names.is_empty() {
            // It says what else is wrong.
            all.take(check::check(source.clone(), only.clone()));
        }
        let views = names.iter().map(|name| View { drive: Some(name.clone()), ..only.clone() });
        let mut each: Vec<Config> =
            views.clone().filter_map(|view| all.take(check::check(source.clone(), view))).collect();
        all.finish(file)?;
        let as_there = |view: View| check::candidates(&source, document.get_ref(), &view, &unplaced);
        let candidates: Vec<Vec<Candidate>> = views.map(as_there).collect();
        for at in 0..unplaced.len() {
            // What is wrong everywhere is told as it is on the first drive.
            if candidates.iter().all(|of_drive| of_drive.get(at).is_none_or(Result::is_err))
                && let Some(Err(errors)) = candidates.first().and_then(|of_drive| of_drive.get(at))
            {
                all.take::<()>(Err(errors.clone()));
            }
        }
        each.iter().enumerate().for_each(|(at, config)| _ = all.take(refuse_one_path_twice(&each[..at], config)));
        all.finish(file)?;
        share_cpus(&mut each);
        let candidates = candidates.into_iter().map(|of_drive| of_drive.into_iter().flatten().collect());
        Ok(Self { each, unplaced: Unplaced { names: unplaced, candidates: candidates.collect() } })
    }

    /// # Errors
    /// Each tenant that has the name of a disk that was made while a daemon ran.
    pub fn refuse_names(&self, made: &[&str]) -> Result<(), ConfigErrors> {
        refuse_made(self.each.iter(), &self.unplaced, made)
    }

    /// The configuration of one drive, without the tenants that are to be placed.
    ///
    /// # Errors
    /// There is no drive of that name, or several and no name.
    pub fn one(self, name: Option<&str>) -> Result<Config, ConfigErrors> {
        let file = self.each.first().map(|config| config.file().to_owned()).unwrap_or_default();
        let names: Vec<String> = self.each.iter().map(|config| config.device.name.clone()).collect();
        let is_it = |config: &Config| name.map_or(names.len() == 1, |name| name == config.device.name);
        self.each.into_iter().find(is_it).ok_or_else(|| {
            let what = match name {
                Some(name) => format!("has no drive {:?}", section::clip(name)),
                None => format!("has {} drives", names.len()),
            };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            ConfigErrors::one(&file, what, format!("say which: --drive {}", section::list(&names)))
        })
    }
}

/// Tenants that name no drive and are on none yet.
#[derive(Debug, Default)]
pub struct Unplaced {
    /// In the file's order.
    pub names: Vec<String>,
    pub(crate) candidates: Vec<Vec<Tenant>>,
}

impl Unplaced {
    /// Each once, as it would be on some drive.
    fn all(&self) -> impl Iterator<Item = &Tenant> {
        self.names.iter().filter_map(|name| self.candidates.iter().flatten().find(|tenant| tenant.name == *name))
    }

    /// A tenant as it would be on one of the drives; `None`: it can't be there.
    pub fn on(&self, name: &str, drive: usize) -> Option<&Tenant> {
        self.candidates.get(drive)?.iter().find(|tenant| tenant.name == name)
    }

    /// The error for a tenant that no drive can have; any drive's configuration will do.
    pub fn nowhere(&self, name: &str, config: &Config, why: &str) -> ConfigErrors {
        let mut sink = Sink::new(&config.text);
        let tenant = self.all().find(|tenant| tenant.name == name);
        let what = format!("no drive can have tenant {name:?}: {why}");
        let remedy = "make it smaller or promise it less, add a drive, or name the drive and write overcommit = true";
        sink.maybe_at(tenant.map(|tenant| &tenant.marks.name), what, remedy);
        ConfigErrors { file: config.file().to_owned(), problems: sink.into_problems() }
    }

    /// As if there were only some of the drives, by their numbers.
    pub fn keep_drives(&mut self, is_kept: impl Fn(usize) -> bool) {
        let all = std::mem::take(&mut self.candidates).into_iter().enumerate();
        self.candidates = all.filter(|(at, _)| is_kept(*at)).map(|(_, of_drive)| of_drive).collect();
    }

    /// Those that are on a drive already, each with that: they need no place any more.
    pub fn take_known(&mut self, drive_of: impl Fn(&str) -> Option<usize>) -> Vec<(String, usize)> {
        let (known, new): (Vec<_>, Vec<_>) = std::mem::take(&mut self.names)
            .into_iter()
            .map(|name| (drive_of(&name), name))
            .partition(|it| it.0.is_some());
        self.names = new.into_iter().map(|(_, name)| name).collect();
        known.into_iter().filter_map(|(at, name)| Some((name, at?))).collect()
    }

    /// Puts a tenant on a drive, whose configuration is `config`.
    pub fn put(&self, name: &str, drive: usize, config: &mut Config) {
        if let Some(tenant) = self.on(name, drive) {
            config.view.placed.insert(name.to_owned());
            config.tenants.push(tenant.clone());
        }
    }
}

/// What concerns all drives together.
#[derive(Default)]
struct Overview {
    names: Vec<String>,
    /// Tenants that name no drive, where there are several.
    unplaced: Vec<String>,
}

fn look_over(all: &mut Findings, source: &Text, document: &DeTable<'_>, declared_bytes: usize) -> Overview {
    let mut sink = Sink::new(source);
    let top = check::top_of(document);
    let drives = sections(&mut sink, &top);
    let names = drive_names(&mut sink, &drives, declared_bytes);
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let tenants = tenant_sections(&mut sink, &top);
    let namespaces = namespace::sections(&mut sink, &top);
    let named = |kind: &'static str| move |(name, span)| (kind, name, span);
    let of_tenants = tenants.iter().filter_map(|tenant| tenant.peek("name")).map(named("tenant"));
    let of_namespaces = namespaces.iter().filter_map(|namespace| namespace.peek("name")).map(named("namespace"));
    rules::names(&mut sink, of_tenants.chain(of_namespaces));
    let mut unplaced = Vec::new();
    for tenant in tenants.iter().filter(|tenant| names_none(&mut sink, tenant, &known)) {
        unplaced.extend(tenant.peek("name").map(|(name, _)| name.to_owned()));
    }
    for namespace in &namespaces {
        names_none(&mut sink, namespace, &known);
    }
    all.take(sink.finish());
    Overview { names, unplaced }
}

/// Whether a disk could be on any of several drives. One that names a drive must name one that there is.
fn names_none(sink: &mut Sink<'_>, disk: &Section<'_, '_>, known: &[&str]) -> bool {
    match disk.get(sink, "drive", section::text) {
        Some(drive) if !known.contains(&drive.get_ref().as_str()) => {
            let remedy = match nearest(drive.get_ref(), known) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("expected {}", section::list(known)),
            };
            sink.at(&drive.span(), format!("there is no drive {:?}", section::clip(drive.get_ref())), remedy);
            false
        }
        None => known.len() > 1 && !disk.has("drive"),
        Some(_) => false,
    }
}

fn drive_names(sink: &mut Sink<'_>, drives: &[Section<'_, '_>], declared_bytes: usize) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let first = |name: &str| drives.iter().find(|drive| name_of(drive) == Some(name)).and_then(|it| it.span.clone());
    for drive in drives {
        if !is_drive(drive) {
            names.push(DEVICE_NAME.to_owned());
            continue;
        }
        let remedy = "add name = \"fast\": tenants and commands name the drive by it";
        let Some(name) = keys::drive::NAME.require(sink, drive, remedy) else { continue };
        if name.get_ref() == DEVICE_NAME {
            sink.at(&name.span(), "\"device\" is the name of the drive in [device]", "choose another name");
        } else if names.contains(name.get_ref()) && name.span().start >= declared_bytes {
            let what = format!("drive {:?} was added by `evenkeel drive add`, at another place", name.get_ref());
            let remedy = "to declare it, write backend, path and layout_file as `evenkeel export` does; or choose \
                          another name, or remove that drive by `evenkeel drive remove` (it is in drives.toml of \
                          state_dir)";
            sink.maybe_at(first(name.get_ref()).as_ref(), what, remedy);
        } else if names.contains(name.get_ref()) {
            let what = format!("there is another drive {:?}", name.get_ref());
            sink.at(&name.span(), what, "give each drive a name of its own");
        } else {
            names.push(name.into_inner());
        }
    }
    names
}

/// The pollers of drives that use the top's `[pollers]` go on where those of the drive before ended.
fn share_cpus(each: &mut [Config]) {
    let mut before = 0;
    for config in each.iter_mut().filter(|config| !config.has_own_pollers) {
        config.view.pollers_before = before;
        config.pollers.first = before;
        before += config.poller_plan().len();
    }
}

/// As far as the paths themselves tell. Of two that are one, that which need not be there is missing.
fn refuse_one_path_twice(before: &[Config], config: &Config) -> Result<(), ConfigErrors> {
    let Some(path) = config.device.backend.path().filter(|_| !config.device.nofail) else { return Ok(()) };
    let is_same = |other: &&Config| !other.device.nofail && other.device.backend.path() == Some(path);
    let Some(other) = before.iter().find(is_same) else { return Ok(()) };
    let mut sink = Sink::new(&config.text);
    let what = format!("{} is drive {:?} already", path.display(), other.device.name);
    sink.maybe_at(config.marks.path.as_ref(), what, "name another path, or remove one of the two");
    sink.finish()
}

pub(crate) fn refuse_made<'c>(
    each: impl Iterator<Item = &'c Config> + Clone,
    unplaced: &Unplaced,
    made: &[&str],
) -> Result<(), ConfigErrors> {
    let Some(config) = each.clone().next() else { return Ok(()) };
    let mut sink = Sink::new(&config.text);
    let tenants = each.clone().flat_map(|config| &config.tenants).chain(unplaced.all());
    let namespaces = each.flat_map(|config| &config.namespaces).map(|it| (&it.name, &it.marks.name));
    let named = tenants.map(|it| (&it.name, &it.marks.name)).chain(namespaces);
    for (name, mark) in named.filter(|(name, _)| made.contains(&name.as_str())) {
        let what = format!("a disk {name:?} was made by `evenkeel disk create`");
        sink.at(mark, what, "choose another name, or delete that disk first");
    }
    sink.finish()
}

impl Config {
    /// A tenant whose data lies on another drive would have an empty disk here. `drive_of`: the drive that has a disk's
    /// data.
    ///
    /// # Errors
    /// Each such tenant.
    pub fn refuse_elsewhere<'d>(
        &self,
        is_here: &dyn Fn(&str) -> bool,
        drive_of: &dyn Fn(&str) -> Option<&'d str>,
    ) -> Result<(), ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        for (name, _, mark) in self.disks().filter(|(name, ..)| !is_here(name)) {
            let Some(there) = drive_of(name) else { continue };
            let what = format!("tenant {name:?} has its data on drive {there:?}, not on {:?}", self.device.name);
            let remedy = format!(
                "write drive = \"{there}\"; to move it here, add a tenant with a new name and copy the data inside a \
                 guest"
            );
            sink.at(mark, what, remedy);
        }
        sink.finish()
    }
}

/// What is wrong, once each.
#[derive(Default)]
pub(crate) struct Findings {
    problems: Vec<Problem>,
}

impl Findings {
    pub(crate) fn take<T>(&mut self, result: Result<T, ConfigErrors>) -> Option<T> {
        result.map_err(|errors| errors.problems.into_iter().for_each(|problem| self.add(problem))).ok()
    }

    fn add(&mut self, problem: Problem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    pub(crate) fn finish(&mut self, file: &Path) -> Result<(), ConfigErrors> {
        let mut problems = std::mem::take(&mut self.problems);
        problems.sort_by_key(|problem| problem.place.as_ref().map(|place| (place.line, place.column)));
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors { file: file.to_owned(), problems }) }
    }
}
