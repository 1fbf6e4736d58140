//! The limits of a disk, as numbers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The limits of a disk. An absent limit is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ceilings {
    /// Reads, writes and all other commands per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_iops: Option<u64>,
    /// Reads per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_iops: Option<u64>,
    /// Writes and all other commands except reads per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_iops: Option<u64>,
    /// Bytes read and written per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_bytes_per_second: Option<u64>,
    /// Bytes read per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_bytes_per_second: Option<u64>,
    /// Bytes written per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_bytes_per_second: Option<u64>,
    /// How long unused quota is kept, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst_ms: Option<f64>,
}
