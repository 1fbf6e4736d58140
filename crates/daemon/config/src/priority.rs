//! A tenant's priority under `wrr` and `drr`. The daemon's file and a scenario share it.

use crate::problem::Sink;
use crate::section::{Section, choice, or};

/// What a tenant's commands count for under `wrr` and `drr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Before all others, without limit.
    Urgent,
    /// By the policy's `high_weight`.
    High,
    /// By its `medium_weight`.
    Medium,
    /// By its `low_weight`.
    Low,
    /// What the guest asked for each of its queues, `urgent` counting as `high`.
    Client,
}

impl Priority {
    /// What a tenant has that nobody gave one.
    pub(crate) const DEFAULT: Self = Self::Medium;

    const WORDS: [(&'static str, Self); 5] = [
        ("urgent", Self::Urgent),
        ("high", Self::High),
        ("medium", Self::Medium),
        ("low", Self::Low),
        ("client", Self::Client),
    ];

    /// As a file names it.
    pub fn name(self) -> &'static str {
        Self::WORDS.iter().find(|(_, class)| *class == self).map_or("", |(word, _)| word)
    }
}

/// `counted`: whether a policy of the file arbitrates by priority. `no_client`: why guests can't ask here, if they
/// can't, and what to do.
pub(crate) fn read_priority(
    sink: &mut Sink<'_>,
    section: &Section<'_, '_>,
    counted: bool,
    no_client: Option<(&str, &str)>,
) -> Option<Priority> {
    if !counted {
        let remedy = "write name = \"wrr\" or \"drr\" under [policy], or remove it";
        section.forbid(sink, "priority", "only the wrr and drr policies have priorities", remedy);
        return Some(Priority::DEFAULT);
    }
    let found = or(sink, section, "priority", Priority::DEFAULT, choice(&Priority::WORDS, &[]))?;
    match no_client.filter(|_| found == Priority::Client) {
        Some((why, remedy)) => {
            let span = section.entry("priority").map(|(_, value)| value.span());
            sink.maybe_at(span.as_ref(), format!("priority = \"client\" does not apply: {why}"), remedy);
            None
        }
        None => Some(found),
    }
}
