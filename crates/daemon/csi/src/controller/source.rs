//! What a volume begins as.

use tonic::Status;

use crate::spec::VolumeContentSource;
use crate::spec::volume_content_source::Type;

/// Label of a disk that began as a volume or snapshot: its identifier.
pub const SOURCE: &str = "source";

/// What a volume begins as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// A snapshot, by its identifier `DISK@SNAPSHOT`.
    Snapshot(&'a str),
    /// Another volume as it is now.
    Volume(&'a str),
}

impl Source<'_> {
    /// Its identifier.
    pub fn id(&self) -> &str {
        match self {
            Self::Snapshot(id) | Self::Volume(id) => id,
        }
    }
}

/// What a request names.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is of no known type.
pub fn source(given: Option<&VolumeContentSource>) -> Result<Option<Source<'_>>, Status> {
    let Some(given) = given else { return Ok(None) };
    match &given.r#type {
        Some(Type::Snapshot(it)) => Ok(Some(Source::Snapshot(&it.snapshot_id))),
        Some(Type::Volume(it)) => Ok(Some(Source::Volume(&it.volume_id))),
        None => Err(Status::invalid_argument("volume_content_source has no type")),
    }
}
