//! What a disk may do at most, in numbers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a disk may do at most; what is left out has no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ceilings {
    /// Commands per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_iops: Option<u64>,
    /// Reads per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_iops: Option<u64>,
    /// Commands per second that are no reads.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_iops: Option<u64>,
    /// Bytes per second, both ways.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rw_bytes_per_second: Option<u64>,
    /// Bytes per second read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub r_bytes_per_second: Option<u64>,
    /// Bytes per second written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub w_bytes_per_second: Option<u64>,
    /// For how long unused quota is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub burst_ms: Option<f64>,
}
