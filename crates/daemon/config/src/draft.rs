//! A configuration as far as it could be read: `None` where a problem was noted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use io_model::units::Size;
use policy::Settings;
use toml::Spanned;

use crate::access::{ApiSection, DaemonSection, KeysSection, SocketSection};
use crate::config::{Config, Device, Image, Marks, Pollers, Tenant, TenantMarks};
use crate::demand::Demand;
use crate::frontend::FrontendDraft;
use crate::groups::Group;
use crate::memory::MemoryDraft;
use crate::namespace::NamespaceDraft;
use crate::problem::Text;
use crate::terms::TermsDraft;
use crate::values::Encryption;
use crate::view::View;

/// What was read so far: `None` where a problem was noted.
pub(crate) struct Draft {
    pub runtime_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    pub daemon: DaemonSection,
    pub api: ApiSection,
    pub keys: KeysSection,
    pub device: Option<Device>,
    pub has_own_pollers: bool,
    pub policy: Option<Settings>,
    /// R and L_h are the profile's, and nobody said that the drive is one.
    pub drive_assumed: bool,
    pub pollers: Option<Pollers>,
    pub groups: Option<Vec<Group>>,
    pub tenants: Vec<TenantDraft>,
    /// Tenants that may be on this drive or not.
    pub undecided: Vec<String>,
    pub namespaces: Vec<NamespaceDraft>,
    pub marks: Marks,
    pub policy_mark: Option<Range<usize>>,
}

/// A tenant as far as it could be read.
pub(crate) struct TenantDraft {
    pub span: Range<usize>,
    pub name: Option<Spanned<String>>,
    pub labels: Option<BTreeMap<String, String>>,
    /// `Some(None)`: it is in none.
    pub group: Option<Option<Spanned<String>>>,
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
    /// `Some(None)`: the drive's.
    pub encryption: Option<Option<Encryption>>,
    /// And what is kept for it.
    pub thin: (Option<bool>, Option<Size>),
    /// `Some(None)`: it is no image. Its paths are as written.
    pub image: Option<Option<Image>>,
    pub image_mark: Option<Range<usize>>,
    pub queues: Option<u16>,
    pub socket: Option<SocketSection>,
}

impl Draft {
    pub fn finish(self) -> Option<Config> {
        let device = self.device?;
        let of_drive = device.encryption;
        let tenant = |tenant: TenantDraft| tenant.finish(&device);
        let namespace = |namespace: NamespaceDraft| namespace.finish(of_drive);
        Some(Config {
            tenants: self.tenants.into_iter().map(tenant).collect::<Option<_>>()?,
            namespaces: self.namespaces.into_iter().map(namespace).collect::<Option<_>>()?,
            runtime_dir: self.runtime_dir?,
            state_dir: self.state_dir?,
            daemon: self.daemon,
            api: self.api,
            keys: self.keys,
            device,
            has_own_pollers: self.has_own_pollers,
            policy: self.policy?,
            pollers: self.pollers?,
            groups: self.groups?,
            warnings: Vec::new(),
            text: Text { file: PathBuf::new(), text: String::new() },
            view: View::only(0),
            marks: self.marks,
        })
    }
}

impl TenantDraft {
    /// `drive`: says what new disks of it have, and where its images are.
    pub fn finish(self, drive: &Device) -> Option<Tenant> {
        let directory = drive.backend.path().unwrap_or(Path::new("/"));
        let (name, size) = (self.name?, self.size?);
        let FrontendDraft { frontend, doorbells, marks } = self.frontend;
        let has_memory = self.memory.is_written;
        let memory = self.memory.finish()?;
        let offset = self.offset.as_ref().map(Spanned::span);
        let encryption = self.encryption?.unwrap_or(drive.encryption);
        let lba_bytes = encryption.lba_bytes(self.lba_size.0?, self.lba_size.1.is_some());
        let marks = TenantMarks {
            name: name.span(),
            size: size.span(),
            offset,
            image: self.image_mark,
            target: self.terms.target_mark.clone(),
            lba_size: self.lba_size.1,
            has_memory,
            frontend: marks,
        };
        Some(Tenant {
            name: name.into_inner(),
            labels: self.labels?,
            group: self.group?.map(Spanned::into_inner),
            size: size.into_inner(),
            offset: self.offset.map(Spanned::into_inner),
            frontend: frontend?,
            terms: self.terms.finish()?,
            memory,
            overcommit: self.overcommit?,
            demand: self.demand?,
            lba_bytes,
            encryption,
            is_thin: self.thin.0?,
            piece_bytes: drive.pool.map_or(0, |pool| pool.piece_bytes),
            reserve: self.thin.1?,
            image: self.image?.map(|image| image.within(directory)),
            doorbells: doorbells?,
            queues: self.queues?,
            socket: self.socket?,
            marks,
        })
    }
}
