//! From the file's text to a [`Config`]: every section read, every problem noted.

use std::path::Path;

use io_model::units::Size;
use layout::WantedPool;
use policy::{Class, TenantPriority};
use toml::Spanned;
use toml::de::DeTable;

use crate::TENANTS_MAX;
use crate::access::{read_api, read_daemon, read_keys, read_socket};
use crate::config::{Backend, Config, Device, Marks, Pollers, Tenant};
use crate::demand::read_demand;
use crate::draft::{Draft, TenantDraft};
use crate::frontend::{Frontend, FrontendDraft, read_frontend};
use crate::groups::{read_group, read_groups};
use crate::images;
use crate::keys::{self, MAX_VIRTQUEUES_BY_PRIORITY, SCHEMA, device, drive, is_drive, pollers, tenant, top};
use crate::memory::read_memory;
use crate::namespace::read_namespaces;
use crate::policy_section::read_policy;
use crate::problem::{ConfigErrors, Sink, Text};
use crate::profile::{Profile, profile};
use crate::rules;
use crate::section::{Items, Section, THE_TOP, choice, or, small_integer};
use crate::terms::{TenantRules, TermsDraft, read_terms, refuse_above_limits};
use crate::values::{BackendWord, WipeBy};
use crate::view::{self, View};

impl Config {
    /// Checks the text of a file of one drive. `file` is its name for messages; nothing is read.
    ///
    /// # Errors
    /// Everything that is wrong in the text.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigErrors> {
        check(Text { file: file.to_owned(), text: text.to_owned() }, View::only(text.len()))
    }

    /// This file with these disks beside its tenants and no others, each a `[[tenant]]` or `[[namespace]]` section of
    /// its own. They are on this drive, and must obey all rules.
    ///
    /// # Errors
    /// Everything that is wrong with one of them, or with all together.
    pub fn with_disks<'d>(&self, disks: impl IntoIterator<Item = &'d str>) -> Result<Self, ConfigErrors> {
        let mut text = self.text.text[..self.view.base_bytes].to_owned();
        for disk in disks {
            text += "\n";
            text += disk;
        }
        check(Text { file: self.text.file.clone(), text }, self.view.placed())
    }
}

/// What a drive has of a file.
pub(crate) fn check(source: Text, view: View) -> Result<Config, ConfigErrors> {
    let document = parse_document(&source)?;
    let mut sink = Sink::new(&source);
    let draft = read(&mut sink, document.get_ref(), &view);
    let warnings = rules::check(&mut sink, &draft);
    sink.finish()?;
    let Some(config) = draft.finish() else {
        let remedy = "please report it with the file";
        return Err(ConfigErrors::one(&source.file, "can't be used, and no check says why", remedy));
    };
    Ok(Config { warnings, text: source, view, ..config })
}

/// A tenant as it would be on a drive, or what keeps it from being there.
pub(crate) type Candidate = Result<Tenant, ConfigErrors>;

/// The tenants of these names as they would be on a drive.
pub(crate) fn candidates(source: &Text, document: &DeTable<'_>, view: &View, names: &[String]) -> Vec<Candidate> {
    // What is wrong with the rest of the file was told.
    let mut ignored = Sink::new(source);
    let mut draft = read(&mut ignored, document, view);
    let sections = tenant_sections(&mut ignored, &top_of(document));
    let (all, rules) = (sections.len(), TenantRules::of(draft.policy.as_ref()));
    let named = |name: &String| sections.iter().find(|section| section.peek("name").is_some_and(|it| it.0 == name));
    let mut candidate = |section: &Section<'_, '_>| {
        let mut sink = Sink::new(source);
        draft.tenants = vec![read_tenant(&mut sink, section.clone(), rules, all)];
        rules::check_each(&mut sink, &draft);
        sink.finish()?;
        let tenant = draft.tenants.pop().zip(draft.device.as_ref()).and_then(|(tenant, drive)| tenant.finish(drive));
        tenant
            .ok_or_else(|| ConfigErrors::one(&source.file, "can't be used, and no check says why", "please report it"))
    };
    names.iter().filter_map(named).map(&mut candidate).collect()
}

/// The tables of a text, with their places.
pub fn parse_document(source: &Text) -> Result<Spanned<DeTable<'_>>, ConfigErrors> {
    let (document, errors) = DeTable::parse_recoverable(&source.text);
    if errors.is_empty() { Ok(document) } else { Err(syntax_problems(source, &errors)) }
}

/// A broken file is not read further: what a parser guesses behind an error would only mislead.
fn syntax_problems(source: &Text, errors: &[toml::de::Error]) -> ConfigErrors {
    let mut sink = Sink::new(source);
    let mut last_line = None;
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let line = source.line(span.start);
        // Errors that follow from the first one on the same line are noise.
        if last_line.replace(line) == Some(line) {
            continue;
        }
        let what = format!("not valid TOML: {}", error.message());
        sink.at(&span, what, syntax_remedy(&source.place(&span).excerpt, error.message()));
    }
    ConfigErrors { file: source.file.clone(), problems: sink.into_problems() }
}

fn syntax_remedy(line: &str, message: &str) -> &'static str {
    let value = line.split_once('=').map_or("", |(_, value)| value.trim_start());
    if message.contains("duplicate key") {
        "keep one of the two"
    } else if value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/') {
        "put texts, sizes and times in double quotes: size = \"16GiB\""
    } else {
        "write one `key = value` a line, under [section] headings"
    }
}

fn read(sink: &mut Sink<'_>, document: &DeTable<'_>, view: &View) -> Draft {
    let top = top_of(document);
    top.reject_unknown(sink);
    let (runtime_dir, state_dir) =
        (top::RUNTIME_DIR.get_or_default(sink, &top), top::STATE_DIR.get_or_default(sink, &top));
    let mut marks =
        Marks { runtime_dir: top.mark("runtime_dir"), state_dir: top.mark("state_dir"), ..Marks::default() };
    let daemon_section = top.table(sink, "daemon", keys::daemon::NAMES);
    marks.daemon = daemon_section.span.clone();
    let daemon = read_daemon(sink, &daemon_section);
    let api_section = top.table(sink, "api", keys::api::NAMES);
    marks.api = api_section.span.clone();
    let api = read_api(sink, &api_section);
    let keys_section = top.table(sink, "keys", keys::host_keys::NAMES);
    let keys = read_keys(sink, &keys_section);
    let drives = view::sections(sink, &top);
    if drives.is_empty() && top.lacks("device") {
        sink.whole("there is no [device] section", "add one: [device] with backend = \"file\", path and size");
    }
    let drive_section = view.find(sink, &drives);
    let device = drive_section.and_then(|section| read_device(sink, section, &mut marks));
    let part = |sink: &mut Sink<'_>, key, known| view::part(sink, &top, drive_section, key, known);
    let policy_section = part(sink, "policy", keys::POLICY);
    let profile = device.as_ref().map_or(Profile::DEFAULT, |device| device.profile.clone());
    let policy = read_policy(sink, &policy_section, &profile);
    let pollers_section = part(sink, "pollers", pollers::NAMES);
    let pollers = read_pollers(sink, &pollers_section, &mut marks)
        .map(|pollers| Pollers { first: view.pollers_before, ..pollers });
    let named = device.as_ref().is_some_and(|device| device.profile_named);
    let tenant_rules = TenantRules::of(policy.as_ref());
    Draft {
        runtime_dir,
        state_dir,
        daemon,
        api,
        keys,
        drive_assumed: !(named || policy_section.has("rate_iops") && policy_section.has("min_latency")),
        device,
        has_own_pollers: drive_section.is_some_and(|section| is_drive(section) && section.has("pollers")),
        policy,
        pollers,
        groups: read_groups(sink, &top),
        tenants: read_tenants(sink, &top, tenant_rules, &|section| view.has(section, &drives)),
        undecided: view.undecided(&tenant_sections(&mut Sink::new(sink.text), &top), &drives),
        namespaces: read_namespaces(sink, &top, &|section| view.has_namespace(section, &drives)),
        marks,
        policy_mark: policy_section.span,
    }
}

/// All of a file.
pub(crate) fn top_of<'t, 'i>(document: &'t DeTable<'i>) -> Section<'t, 'i> {
    Section::new(SCHEMA, THE_TOP, top::NAMES, None, Some(document))
}

fn read_device(sink: &mut Sink<'_>, section: &Section<'_, '_>, marks: &mut Marks) -> Option<Device> {
    section.reject_unknown(sink);
    let drive_name = match is_drive(section) {
        true => drive::NAME.get(sink, section).map(Spanned::into_inner),
        false => Some(view::DEVICE_NAME.to_owned()),
    };
    marks.device = section.span.clone();
    let remedy = "add backend = \"file\" (or block, nvme, memory, null, model)";
    let word = device::BACKEND.require(sink, section, remedy).map(Spanned::into_inner);
    let device_size = device::SIZE.get(sink, section);
    marks.size = device_size.as_ref().map(Spanned::span);
    let backend = word.and_then(|word| read_backend(sink, section, word, marks));
    let file = sink.text.file.clone();
    let drive = or(sink, section, "profile", Profile::DEFAULT, profile(&file));
    marks.profile = section.mark("profile");
    let profile_named = section.has("profile") || matches!(word, Some(BackendWord::Model));
    let queues = device::QUEUES.get_if_any(sink, section);
    let nofail = is_drive(section) && drive::NOFAIL.get_or_default(sink, section).unwrap_or_default();
    let layout_file = device::LAYOUT_FILE.get(sink, section).map(Spanned::into_inner);
    if !has_layout(word) {
        section.forbid(sink, "layout_file", "only files, block devices and NVMe drives keep a layout", "remove it");
    }
    let wipe = read_wipe(sink, section, word);
    let encryption = device::ENCRYPTION.get_or_default(sink, section);
    let pool = read_pool(sink, section, marks);
    Some(Device {
        name: drive_name?,
        backend: backend?,
        size: device_size.map(Spanned::into_inner),
        profile: drive?,
        profile_named,
        queues: queues?,
        nofail,
        layout_file,
        wipe: wipe?,
        encryption: encryption?,
        pool: pool?,
        discard_content: false,
    })
}

/// `Some(None)`: there is none.
fn read_pool(sink: &mut Sink<'_>, section: &Section<'_, '_>, marks: &mut Marks) -> Option<Option<WantedPool>> {
    let pool = device::POOL.get(sink, section);
    let piece = device::POOL_PIECE.get_or_default(sink, section);
    let overcommit = device::POOL_OVERCOMMIT.get_or_default(sink, section);
    marks.pool = pool.as_ref().map(Spanned::span);
    if !section.has("pool") {
        for key in ["pool_piece", "pool_overcommit"] {
            section.forbid(sink, key, "the drive has no pool", "add pool = \"100GiB\", or remove it");
        }
        return Some(None);
    }
    let (size, piece_bytes) = (pool?.into_inner(), piece?.0);
    Some(Some(WantedPool { size, piece_bytes, overcommit_percent: overcommit?.into() }))
}

/// Whether a disk is thin, and what is kept for it.
fn read_thin(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> (Option<bool>, Option<Size>) {
    let is_thin = tenant::THIN.get_or_default(sink, section);
    let reserve = tenant::RESERVE.get_if_any(sink, section);
    if is_thin == Some(false) {
        section.forbid(sink, "reserve", "the disk has its own range", "remove it, or add thin = true");
    }
    if is_thin == Some(true) {
        section.forbid(sink, "offset", "a thin disk has no place of its own", "remove it, or thin = true");
    }
    (is_thin, reserve.map(|reserve| reserve.unwrap_or(Size(0))))
}

fn read_wipe(sink: &mut Sink<'_>, section: &Section<'_, '_>, word: Option<BackendWord>) -> Option<WipeBy> {
    const NO_WORD: &str = "nothing says what a drive reads as after a discard; write \"write-zeroes\" to have the \
                           drive itself make zeros, or \"overwrite\"";
    let absent = [("discard", NO_WORD), ("unmap", NO_WORD)];
    let wipe = device::WIPE.get_or_default_by(sink, section, choice(device::WIPE.values.0, &absent));
    if let (Some(WipeBy::WriteZeroes), Some(BackendWord::File), Some((_, value))) = (wipe, word, section.entry("wipe"))
    {
        let what =
            "`wipe` is \"write-zeroes\", but a file system only marks an image's blocks: their data stays on its drive";
        sink.at(&value.span(), what, "write \"overwrite\", or remove it");
        return None;
    }
    wipe
}

fn has_layout(word: Option<BackendWord>) -> bool {
    word.is_none_or(|word| matches!(word, BackendWord::File | BackendWord::Block | BackendWord::Nvme))
}

fn read_backend(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    word: BackendWord,
    marks: &mut Marks,
) -> Option<Backend> {
    let has_path = matches!(word, BackendWord::File | BackendWord::Block | BackendWord::Directory);
    if !has_path {
        section.forbid(sink, "path", "only file, block and directory back ends have one", "remove it");
    }
    if matches!(word, BackendWord::Directory) {
        images::refuse_settings(sink, section);
    }
    if !matches!(word, BackendWord::File) {
        section.forbid(sink, "create", "only a file can be created", "remove it");
    }
    if matches!(word, BackendWord::Memory | BackendWord::Null) {
        let remedy = "remove it, or set rate_iops and min_latency under [policy]";
        section.forbid(sink, "profile", "memory and null imitate no drive", remedy);
    }
    let path = if has_path {
        let example = match word {
            BackendWord::File => "/srv/evenkeel/drive.img",
            BackendWord::Directory => "/srv/evenkeel/images",
            _ => "/dev/nvme0n1",
        };
        let found = device::PATH.require(sink, section, &format!("add path = \"{example}\""));
        marks.path = found.as_ref().map(Spanned::span);
        found.map(Spanned::into_inner)
    } else {
        None
    };
    let nvme = read_nvme(sink, section, word, marks);
    if !matches!(word, BackendWord::Model) {
        section.forbid(sink, "memory_backed", "only the drive model can do without", "remove it");
    }
    let memory_backed = device::MEMORY_BACKED.get_or_default(sink, section);
    if !matches!(word, BackendWord::Block) {
        section.forbid(sink, "nvme_commands", "only a block device gets them through the kernel", "remove it");
    }
    let nvme_commands = device::NVME_COMMANDS.get_or_default(sink, section);
    let create = device::CREATE.get_or_default(sink, section);
    let has_no_size = has_layout(Some(word)) || matches!(word, BackendWord::Directory);
    let needs_size = !has_no_size || create == Some(true);
    if needs_size && section.lacks("size") {
        let why = if has_path { " to create the file with" } else { "" };
        let what = format!("{} has no `size`{why}", section.label);
        sink.maybe_at(section.span.as_ref(), what, "add size = \"64GiB\" (the room for all tenants)");
    }
    match word {
        BackendWord::File => Some(Backend::File { path: path?, create: create? }),
        BackendWord::Block => Some(Backend::Block { path: path?, nvme_commands: nvme_commands? }),
        BackendWord::Nvme => nvme,
        BackendWord::Directory => Some(Backend::Directory { path: path? }),
        BackendWord::Memory => Some(Backend::Memory),
        BackendWord::Null => Some(Backend::Null),
        BackendWord::Model => Some(Backend::Model { memory_backed: memory_backed? }),
    }
}

/// What only a drive without the kernel has.
fn read_nvme(sink: &mut Sink<'_>, section: &Section<'_, '_>, word: BackendWord, marks: &mut Marks) -> Option<Backend> {
    if !matches!(word, BackendWord::Nvme) {
        for key in ["address", "nsid", "command_timeout"] {
            section.forbid(sink, key, "only backend = \"nvme\" has one", "remove it");
        }
        return None;
    }
    let address = device::ADDRESS.require(sink, section, "add address = \"0000:03:00.0\" (`lspci -D` has it)");
    marks.path = address.as_ref().map(Spanned::span);
    let nsid = device::NSID.get_or_default(sink, section);
    let command_timeout = device::COMMAND_TIMEOUT.get_or_default(sink, section);
    Some(Backend::Nvme { address: address?.into_inner(), nsid: u32::from(nsid?), command_timeout: command_timeout? })
}

fn read_pollers(sink: &mut Sink<'_>, section: &Section<'_, '_>, marks: &mut Marks) -> Option<Pollers> {
    section.reject_unknown_but(sink, &["layout"]);
    let remedy = "remove the line, and write threads = \"shared\" for guaranteed tenants that need no own poller";
    section.forbid(sink, "layout", "the `threads` of each tenant say which pollers serve it", remedy);
    let best_effort = pollers::BEST_EFFORT.get_or_default(sink, section);
    let cpus = pollers::CPUS.get(sink, section);
    marks.cpus = cpus.as_ref().map(Spanned::span);
    let idle_after = pollers::IDLE_AFTER.get_or_default(sink, section);
    Some(Pollers {
        best_effort: best_effort?,
        cpus: cpus.map(Spanned::into_inner).unwrap_or_default(),
        idle_after: idle_after?,
        first: 0,
    })
}

/// Every tenant's section.
pub(crate) fn tenant_sections<'t, 'i>(sink: &mut Sink<'_>, top: &Section<'t, 'i>) -> Vec<Section<'t, 'i>> {
    let words = Items {
        one: "tenant",
        each: "each virtual disk",
        keys: "name and size",
        most: TENANTS_MAX,
        why: "can share a host",
    };
    let items = top.tables(sink, "tenant", &words).into_iter();
    items.map(|(span, table)| Section::new(SCHEMA, "[[tenant]]", tenant::NAMES, Some(span), Some(table))).collect()
}

/// Those that are `wanted`. Of others, nothing is told.
fn read_tenants(
    sink: &mut Sink<'_>,
    top: &Section<'_, '_>,
    rules: TenantRules,
    wanted: &dyn Fn(&Section<'_, '_>) -> bool,
) -> Vec<TenantDraft> {
    let sections = tenant_sections(sink, top);
    let all = sections.len();
    sections.into_iter().filter(wanted).map(|section| read_tenant(sink, section, rules, all)).collect()
}

pub(crate) fn read_tenant(
    sink: &mut Sink<'_>,
    mut section: Section<'_, '_>,
    rules: TenantRules,
    tenants: usize,
) -> TenantDraft {
    let span = section.span.clone().unwrap_or_default();
    let name =
        tenant::NAME.require(sink, &section, "add name = \"db\": it names the socket and the place on the drive");
    if let Some(name) = &name {
        section.label = format!("tenant {:?}", name.get_ref());
    }
    let section = section;
    section.reject_unknown(sink);
    let group = read_group(sink, &section);
    let labels = tenant::LABELS.get_if_any(sink, &section).map(Option::unwrap_or_default);
    let size = tenant::SIZE.require(sink, &section, "add size = \"16GiB\"");
    let offset = tenant::OFFSET.get(sink, &section);
    let frontend = read_frontend(sink, &section);
    let lba_size = (tenant::LBA_SIZE.get_or_default(sink, &section), section.mark("lba_size"));
    let encryption = tenant::ENCRYPTION.get_if_any(sink, &section);
    let thin = read_thin(sink, &section);
    let image = images::read(sink, &section);
    let terms = read_terms(sink, &section, rules, no_client(&frontend));
    let queues = read_queues(sink, &section, &frontend, &terms);
    let memory = read_memory(sink, &section, tenants);
    let overcommit = read_overcommit(sink, &section, &terms);
    let demand = read_demand(sink, &section, thin.0 == Some(true));
    refuse_above_limits(sink, &section, &terms, demand.as_ref().and_then(Option::as_ref));
    let socket = read_socket(sink, &section);
    TenantDraft {
        span,
        name,
        labels,
        group,
        size,
        offset,
        frontend,
        terms,
        memory,
        overcommit,
        demand,
        lba_size,
        encryption,
        thin,
        image,
        image_mark: section.mark("image"),
        queues,
        socket,
    }
}

fn read_overcommit(sink: &mut Sink<'_>, section: &Section<'_, '_>, terms: &TermsDraft) -> Option<bool> {
    let is_guaranteed = terms.class.is_none_or(Class::is_guaranteed);
    if !is_guaranteed && terms.floor.is_some_and(|floor| floor.is_empty()) {
        let why = "only a guaranteed tenant has a promise that may be broken, or one with a min_iops or min_bandwidth";
        section.forbid(sink, "overcommit", why, "remove it, or add class = \"guaranteed\" and a latency_target");
        return Some(false);
    }
    tenant::OVERCOMMIT.get_or_default(sink, section)
}

/// Why a tenant's guest can't ask for priorities, if it can't, and what to do.
fn no_client(frontend: &FrontendDraft) -> Option<(&'static str, &'static str)> {
    matches!(frontend.frontend, Some(Frontend::Ublk(..))).then_some((
        "Linux does not tell a block device's server the priority (`ionice`) of a request",
        "write urgent, high, medium or low, or another frontend",
    ))
}

fn read_queues(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    frontend: &FrontendDraft,
    terms: &TermsDraft,
) -> Option<u16> {
    let by_priority = terms.priority == Some(TenantPriority::OfQueue);
    match frontend.frontend {
        Some(Frontend::VhostUserBlk(_)) if by_priority => {
            let most = MAX_VIRTQUEUES_BY_PRIORITY;
            or(sink, section, "queues", most, small_integer(1..=most))
        }
        _ => tenant::QUEUES.get_or_default(sink, section),
    }
}
