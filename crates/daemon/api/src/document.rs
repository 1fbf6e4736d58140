//! JSON as the programs print it.

use serde::Serialize;

/// Version of all documents. It rises when a field is removed, renamed or changes its meaning, not when one is added.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// A list as a document.
#[derive(Debug, Serialize)]
pub struct Items<'a, T> {
    /// The list.
    pub items: &'a [T],
}

/// Writes a struct or map as one line of JSON, without a line end. Its first field is `schema_version`.
///
/// # Errors
/// `content` is neither a struct nor a map.
pub fn document(content: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Document { schema_version: SCHEMA_VERSION, content })
}
