//! From the file's text to a [`Config`]: every section read, every problem noted.

use std::ops::Range;
use std::path::PathBuf;

use io_model::Nanos;
use io_model::units::Size;
use nvme_driver::PciAddress;
use policy::{Class, Settings, TenantPriority};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::TENANTS_MAX;
use crate::access::{ApiSection, DaemonSection, SocketSection, read_api, read_daemon, read_socket};
use crate::blocks::LBA_BYTES;
use crate::config::{Backend, Config, Device, Marks, PollerLayout, Pollers, Tenant, TenantMarks, WipeBy};
use crate::demand::{Demand, read_demand};
use crate::drives::{self, View};
use crate::frontend::{Frontend, FrontendDraft, read_frontend};
use crate::memory::{MemoryDraft, read_memory};
use crate::namespace::{NamespaceDraft, read_namespaces};
use crate::policy_section::read_policy;
use crate::problem::{ConfigErrors, Sink, Text};
use crate::profile::{Profile, profile};
use crate::rules;
use crate::section::{
    self, DAEMON, Items, Section, Wrong, boolean, choice, count, integers, or, size, small_integer, span_in, text,
};
use crate::terms::{TenantRules, TermsDraft, read_terms, refuse_above_limits};

const RUNTIME_DIR: &str = "/run/evenkeel";
pub(crate) const STATE_DIR: &str = "/var/lib/evenkeel";

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
    let sections = tenant_sections(&mut ignored, &top(document));
    let (all, rules) = (sections.len(), TenantRules::of(draft.policy.as_ref()));
    let named = |name: &String| sections.iter().find(|section| section.peek("name").is_some_and(|it| it.0 == name));
    let mut candidate = |section: &Section<'_, '_>| {
        let mut sink = Sink::new(source);
        draft.tenants = vec![read_tenant(&mut sink, section.clone(), rules, all)];
        rules::check_each(&mut sink, &draft);
        sink.finish()?;
        let tenant = draft.tenants.pop().and_then(TenantDraft::finish);
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

/// What was read so far: `None` where a problem was noted.
pub(crate) struct Draft {
    pub runtime_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    pub daemon: DaemonSection,
    pub api: ApiSection,
    pub device: Option<Device>,
    pub has_own_pollers: bool,
    pub policy: Option<Settings>,
    /// R and L_h are the profile's, and nobody said that the drive is one.
    pub drive_assumed: bool,
    pub pollers: Option<Pollers>,
    pub tenants: Vec<TenantDraft>,
    /// Tenants that may be on this drive or not.
    pub undecided: Vec<String>,
    pub namespaces: Vec<NamespaceDraft>,
    pub marks: Marks,
    pub policy_mark: Option<Range<usize>>,
    pub layout_mark: Option<Range<usize>>,
    pub best_effort_mark: Option<Range<usize>>,
}

/// A tenant as far as it could be read.
pub(crate) struct TenantDraft {
    pub span: Range<usize>,
    pub name: Option<Spanned<String>>,
    pub size: Option<Spanned<Size>>,
    pub offset: Option<Spanned<Size>>,
    pub frontend: FrontendDraft,
    pub terms: TermsDraft,
    pub memory: MemoryDraft,
    pub overcommit: Option<bool>,
    /// `Some(None)`: not declared.
    pub demand: Option<Option<Demand>>,
    /// And where it stands.
    pub lba_size: (Option<u32>, Option<Range<usize>>),
    pub queues: Option<u16>,
    pub socket: Option<SocketSection>,
}

impl Draft {
    fn finish(self) -> Option<Config> {
        Some(Config {
            runtime_dir: self.runtime_dir?,
            state_dir: self.state_dir?,
            daemon: self.daemon,
            api: self.api,
            device: self.device?,
            has_own_pollers: self.has_own_pollers,
            policy: self.policy?,
            pollers: self.pollers?,
            tenants: self.tenants.into_iter().map(TenantDraft::finish).collect::<Option<_>>()?,
            namespaces: self.namespaces.into_iter().map(NamespaceDraft::finish).collect::<Option<_>>()?,
            warnings: Vec::new(),
            text: Text { file: PathBuf::new(), text: String::new() },
            view: View::only(0),
            marks: self.marks,
        })
    }
}

impl TenantDraft {
    pub fn finish(self) -> Option<Tenant> {
        let (name, size) = (self.name?, self.size?);
        let FrontendDraft { frontend, doorbells, marks } = self.frontend;
        let has_memory = self.memory.is_written;
        let memory = self.memory.finish()?;
        let offset = self.offset.as_ref().map(Spanned::span);
        let marks = TenantMarks {
            name: name.span(),
            size: size.span(),
            offset,
            target: self.terms.target_mark.clone(),
            lba_size: self.lba_size.1,
            has_memory,
            frontend: marks,
        };
        Some(Tenant {
            name: name.into_inner(),
            size: size.into_inner(),
            offset: self.offset.map(Spanned::into_inner),
            frontend: frontend?,
            terms: self.terms.finish()?,
            memory,
            overcommit: self.overcommit?,
            demand: self.demand?,
            lba_bytes: self.lba_size.0?,
            doorbells: doorbells?,
            queues: self.queues?,
            socket: self.socket?,
            marks,
        })
    }
}

fn read(sink: &mut Sink<'_>, document: &DeTable<'_>, view: &View) -> Draft {
    let top = top(document);
    top.reject_unknown(sink);
    let mut marks = Marks::default();
    let runtime_dir = directory(sink, &top, "runtime_dir", RUNTIME_DIR, &mut marks.runtime_dir);
    let state_dir = directory(sink, &top, "state_dir", STATE_DIR, &mut marks.state_dir);
    let daemon_section = top.table(sink, "daemon", section::DAEMON_KEYS);
    marks.daemon = daemon_section.span.clone();
    let daemon = read_daemon(sink, &daemon_section);
    let api_section = top.table(sink, "api", section::API_KEYS);
    marks.api = api_section.span.clone();
    let api = read_api(sink, &api_section);
    let drives = drives::sections(sink, &top);
    if drives.is_empty() && top.lacks("device") {
        sink.whole("there is no [device] section", "add one: [device] with backend = \"file\", path and size");
    }
    let drive_section = view.find(sink, &drives);
    let device = drive_section.and_then(|section| read_device(sink, section, &mut marks));
    let part = |sink: &mut Sink<'_>, key, known| drives::part(sink, &top, drive_section, key, known);
    let policy_section = part(sink, "policy", section::POLICY);
    let profile = device.as_ref().map_or(Profile::DEFAULT, |device| device.profile.clone());
    let policy = read_policy(sink, &policy_section, &profile);
    let pollers_section = part(sink, "pollers", section::POLLERS);
    let pollers = read_pollers(sink, &pollers_section, &mut marks).map(|pollers| view.share_cpus(pollers));
    let named = device.as_ref().is_some_and(|device| device.profile_named);
    let tenant_rules = TenantRules::of(policy.as_ref());
    Draft {
        runtime_dir,
        state_dir,
        daemon,
        api,
        drive_assumed: !(named || policy_section.has("rate_iops") && policy_section.has("min_latency")),
        device,
        has_own_pollers: drive_section.is_some_and(|section| section.is_drive() && section.has("pollers")),
        policy,
        pollers,
        tenants: read_tenants(sink, &top, tenant_rules, &|section| view.has(section, &drives)),
        undecided: view.undecided(&tenant_sections(&mut Sink::new(sink.text), &top), &drives),
        namespaces: read_namespaces(sink, &top, &|section| view.has_namespace(section, &drives)),
        marks,
        policy_mark: policy_section.span,
        layout_mark: pollers_section.mark("layout"),
        best_effort_mark: pollers_section.mark("best_effort"),
    }
}

/// All of a file.
pub(crate) fn top<'t, 'i>(document: &'t DeTable<'i>) -> Section<'t, 'i> {
    Section::new(DAEMON, section::THE_TOP, section::TOP, None, Some(document))
}

pub(crate) fn absolute(value: &DeValue<'_>) -> Result<PathBuf, Wrong> {
    let found = text(value)?;
    if found.contains('\0') {
        return Err(Wrong { what: "has a NUL character in it".into(), remedy: "remove it".into() });
    }
    if !found.starts_with('/') {
        let what = format!("is {found:?}, which depends on where the daemon is started");
        return Err(Wrong { what, remedy: "write the whole path, from /".into() });
    }
    Ok(PathBuf::from(found))
}

fn directory(
    sink: &mut Sink<'_>,
    top: &Section<'_, '_>,
    key: &str,
    default: &str,
    mark: &mut Option<Range<usize>>,
) -> Option<PathBuf> {
    if !top.has(key) {
        return Some(PathBuf::from(default));
    }
    let found = top.get(sink, key, absolute)?;
    *mark = Some(found.span());
    Some(found.into_inner())
}

#[derive(Clone, Copy)]
enum BackendWord {
    File,
    Block,
    Nvme,
    Memory,
    Null,
    Model,
}

fn read_device(sink: &mut Sink<'_>, section: &Section<'_, '_>, marks: &mut Marks) -> Option<Device> {
    section.reject_unknown(sink);
    let drive_name = match section.is_drive() {
        true => section.get(sink, "name", name).map(Spanned::into_inner),
        false => Some(drives::DEVICE_NAME.to_owned()),
    };
    marks.device = section.span.clone();
    let words = [
        ("file", BackendWord::File),
        ("block", BackendWord::Block),
        ("nvme", BackendWord::Nvme),
        ("memory", BackendWord::Memory),
        ("null", BackendWord::Null),
        ("model", BackendWord::Model),
    ];
    let remedy = "add backend = \"file\" (or block, nvme, memory, null, model)";
    let word = section.require(sink, "backend", remedy, choice(&words, &[])).map(Spanned::into_inner);
    let device_size = section.get(sink, "size", size);
    marks.size = device_size.as_ref().map(Spanned::span);
    let backend = word.and_then(|word| read_backend(sink, section, word, marks));
    let file = sink.text.file.clone();
    let drive = or(sink, section, "profile", Profile::DEFAULT, profile(&file));
    marks.profile = section.mark("profile");
    let profile_named = section.has("profile") || matches!(word, Some(BackendWord::Model));
    let queues = count(sink, section, "queues", 1..=1024);
    let nofail = section.is_drive() && or(sink, section, "nofail", false, boolean).unwrap_or_default();
    let layout_file = section.get(sink, "layout_file", absolute).map(Spanned::into_inner);
    if !has_layout(word) {
        section.forbid(sink, "layout_file", "only files, block devices and NVMe drives keep a layout", "remove it");
    }
    let wipe = read_wipe(sink, section, word);
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
        discard_content: false,
    })
}

fn read_wipe(sink: &mut Sink<'_>, section: &Section<'_, '_>, word: Option<BackendWord>) -> Option<WipeBy> {
    const NO_WORD: &str = "nothing says what a drive reads as after a discard; write \"write-zeroes\" to have the \
                           drive itself make zeros, or \"overwrite\"";
    let words = [("overwrite", WipeBy::Overwrite), ("write-zeroes", WipeBy::WriteZeroes)];
    let wipe =
        or(sink, section, "wipe", WipeBy::Overwrite, choice(&words, &[("discard", NO_WORD), ("unmap", NO_WORD)]));
    if let (Some(WipeBy::WriteZeroes), Some(BackendWord::File), Some((_, value))) = (wipe, word, section.entry("wipe"))
    {
        let what = "`wipe` is \"write-zeroes\", by which a file system only marks the blocks of an image: what they \
                    held stays on its drive";
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
    let has_path = matches!(word, BackendWord::File | BackendWord::Block);
    if !has_path {
        section.forbid(sink, "path", "only file and block back ends have one", "remove it");
    }
    if !matches!(word, BackendWord::File) {
        section.forbid(sink, "create", "only a file can be created", "remove it");
    }
    if matches!(word, BackendWord::Memory | BackendWord::Null) {
        let remedy = "remove it, or set rate_iops and min_latency under [policy]";
        section.forbid(sink, "profile", "memory and null imitate no drive", remedy);
    }
    let path = if has_path {
        let example = if matches!(word, BackendWord::File) { "/srv/evenkeel/drive.img" } else { "/dev/nvme0n1" };
        let found = section.require(sink, "path", &format!("add path = \"{example}\""), absolute);
        marks.path = found.as_ref().map(Spanned::span);
        found.map(Spanned::into_inner)
    } else {
        None
    };
    let nvme = read_nvme(sink, section, word, marks);
    if !matches!(word, BackendWord::Model) {
        section.forbid(sink, "memory_backed", "only the drive model can do without", "remove it");
    }
    let memory_backed = or(sink, section, "memory_backed", true, boolean);
    if !matches!(word, BackendWord::Block) {
        section.forbid(sink, "nvme_commands", "only a block device gets them through the kernel", "remove it");
    }
    let nvme_commands = or(sink, section, "nvme_commands", false, boolean);
    let create = or(sink, section, "create", false, boolean);
    let needs_size = !has_layout(Some(word)) || create == Some(true);
    if needs_size && section.lacks("size") {
        let why = if has_path { " to create the file with" } else { "" };
        let what = format!("{} has no `size`{why}", section.label);
        sink.maybe_at(section.span.as_ref(), what, "add size = \"64GiB\" (the room for all tenants)");
    }
    match word {
        BackendWord::File => Some(Backend::File { path: path?, create: create? }),
        BackendWord::Block => Some(Backend::Block { path: path?, nvme_commands: nvme_commands? }),
        BackendWord::Nvme => nvme,
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
    let address = section.require(sink, "address", "add address = \"0000:03:00.0\" (`lspci -D` has it)", pci_address);
    marks.path = address.as_ref().map(Spanned::span);
    let nsid = or(sink, section, "nsid", 1, small_integer(1..=u16::MAX));
    let limits = Nanos(1_000_000_000)..=Nanos(3_600_000_000_000);
    let command_timeout = or(sink, section, "command_timeout", Nanos(30_000_000_000), span_in(limits));
    Some(Backend::Nvme { address: address?.into_inner(), nsid: u32::from(nsid?), command_timeout: command_timeout? })
}

/// A PCI function, in the kernel's words.
pub(crate) fn pci_address(value: &DeValue<'_>) -> Result<String, Wrong> {
    let found = text(value)?;
    let parsed: Result<PciAddress, _> = found.parse();
    parsed.map(|address| address.to_string()).map_err(|_| Wrong {
        what: format!("is {found:?}, which is no PCI address"),
        remedy: "write it as \"0000:03:00.0\"; `lspci -D` lists the devices".into(),
    })
}

fn read_pollers(sink: &mut Sink<'_>, section: &Section<'_, '_>, marks: &mut Marks) -> Option<Pollers> {
    section.reject_unknown(sink);
    let layouts = [("per-guaranteed", PollerLayout::PerGuaranteed), ("shared", PollerLayout::Shared)];
    let layout = or(sink, section, "layout", PollerLayout::PerGuaranteed, choice(&layouts, &[]));
    let best_effort = or(sink, section, "best_effort", 1, small_integer(1..=64));
    let cpus = section.get(sink, "cpus", integers(0..=8191));
    marks.cpus = cpus.as_ref().map(Spanned::span);
    let idle = Nanos(1_000_000)..=Nanos(3_600_000_000_000);
    let idle_after = or(sink, section, "idle_after", Nanos(500_000_000), span_in(idle));
    Some(Pollers {
        layout: layout?,
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
    items.map(|(span, table)| Section::new(DAEMON, "[[tenant]]", section::TENANT, Some(span), Some(table))).collect()
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
    let name = section.require(sink, "name", "add name = \"db\": it names the socket and the place on the drive", name);
    if let Some(name) = &name {
        section.label = format!("tenant {:?}", name.get_ref());
    }
    let section = section;
    section.reject_unknown(sink);
    let size = section.require(sink, "size", "add size = \"16GiB\"", size);
    let offset = section.get(sink, "offset", size_or_zero);
    let frontend = read_frontend(sink, &section);
    let lba_size = (or(sink, &section, "lba_size", LBA_BYTES, lba_size), section.mark("lba_size"));
    let terms = read_terms(sink, &section, rules, no_client(&frontend));
    let queues = read_queues(sink, &section, &frontend, &terms);
    let memory = read_memory(sink, &section, tenants);
    let overcommit = read_overcommit(sink, &section, &terms);
    let demand = read_demand(sink, &section);
    refuse_above_limits(sink, &section, &terms, demand.as_ref().and_then(Option::as_ref));
    let socket = read_socket(sink, &section);
    TenantDraft { span, name, size, offset, frontend, terms, memory, overcommit, demand, lba_size, queues, socket }
}

fn read_overcommit(sink: &mut Sink<'_>, section: &Section<'_, '_>, terms: &TermsDraft) -> Option<bool> {
    let is_guaranteed = terms.class.is_none_or(Class::is_guaranteed);
    if !is_guaranteed && terms.floor.is_some_and(|floor| floor.is_empty()) {
        let why = "only a guaranteed tenant has a promise that may be broken, or one with a min_iops or min_bandwidth";
        section.forbid(sink, "overcommit", why, "remove it, or add class = \"guaranteed\" and a latency_target");
        return Some(false);
    }
    or(sink, section, "overcommit", false, boolean)
}

/// Why a tenant's guest can't ask for priorities, if it can't, and what to do.
fn no_client(frontend: &FrontendDraft) -> Option<(&'static str, &'static str)> {
    matches!(frontend.frontend, Some(Frontend::Ublk(..))).then_some((
        "Linux does not tell who serves a block device what priority (`ionice`) a request has",
        "write urgent, high, medium or low, or another frontend",
    ))
}

/// The most queues of a virtio-blk disk whose requests go by priority.
pub const MAX_VIRTQUEUES_BY_PRIORITY: u16 = 42;

/// A block device has memory of its own for each request of each queue; guests' queues cost nothing.
fn read_queues(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    frontend: &FrontendDraft,
    terms: &TermsDraft,
) -> Option<u16> {
    let by_priority = terms.priority == Some(TenantPriority::OfQueue);
    let (default, most) = match frontend.frontend {
        Some(Frontend::Ublk(..)) => (4, 64),
        Some(Frontend::VhostUserBlk(_)) if by_priority => (MAX_VIRTQUEUES_BY_PRIORITY, MAX_VIRTQUEUES_BY_PRIORITY),
        _ => (64, 64),
    };
    or(sink, section, "queues", default, small_integer(1..=most))
}

/// What has a place in `runtime_dir`, where each tenant has its own: the keeper's socket, the API's token.
const OWN_NAMES: [&str; 2] = ["keeper", "token"];

/// A tenant's name.
pub fn name(value: &DeValue<'_>) -> Result<String, Wrong> {
    let found = text(value)?;
    let shown: String = found.chars().take(80).collect();
    if OWN_NAMES.contains(&found.as_str()) {
        let what = format!("is {found:?}, which is the daemon's own in the directory of its sockets");
        return Err(Wrong { what, remedy: "choose another name".into() });
    }
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let valid = (1..=63).contains(&found.len())
        && found.starts_with(letter)
        && found.chars().all(|c| letter(c) || c == '_' || c == '-');
    let remedy = "use 1 to 63 of a-z, 0-9, _ and -, and start with a letter or digit";
    valid.then_some(found).ok_or_else(|| Wrong { what: format!("is {shown:?}"), remedy: remedy.into() })
}

fn size_or_zero(value: &DeValue<'_>) -> Result<Size, Wrong> {
    size(value).map_err(|w| Wrong { remedy: format!("{}; \"0\" is the drive's start", w.remedy), ..w })
}

pub(crate) fn lba_size(value: &DeValue<'_>) -> Result<u32, Wrong> {
    match size(value) {
        Ok(Size(512)) => Ok(512),
        Ok(Size(4096)) => Ok(4096),
        Ok(other) => Err(Wrong { what: format!("is {}", other.0), remedy: "expected 512 or 4096".into() }),
        Err(wrong) => Err(Wrong { remedy: "expected 512 or 4096".into(), ..wrong }),
    }
}
