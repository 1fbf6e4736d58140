//! `GET /v1/hour`: the last hour of all tenants, minute by minute.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Minutes that the answer covers.
pub const HOUR_MINUTES: usize = 60;

/// The last hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastHour {
    /// End of the last minute, in milliseconds since 1970.
    pub to_unix_ms: u64,
    /// Every tenant that completed commands in that hour, by name.
    pub tenants: Vec<TenantHour>,
}

/// One tenant's last hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantHour {
    /// The tenant's name.
    pub name: String,
    /// Sixty values, the oldest first: the highest 99th percentile among the ten-second summaries of each minute, in
    /// nanoseconds. Null: no command completed in that minute.
    pub p99_ns: Vec<Option<u64>>,
}
