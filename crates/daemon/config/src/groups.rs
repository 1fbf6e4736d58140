//! Groups: ceilings that several disks share, on whichever drives they are.

use policy::Limits;
use toml::Spanned;

use crate::keys::{SCHEMA, group, tenant};
use crate::nearest::nearest;
use crate::problem::Sink;
use crate::section::{self, Items, Section};
use crate::terms::{LIMITS, read_limits};

/// The most groups of a file.
pub const MOST_GROUPS: usize = 1_024;

/// A ceiling for several disks together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Unique among groups; tenants' `group` has it.
    pub name: String,
    /// At least one limit.
    pub limits: Limits,
}

/// Reads all groups of a file. `None`: a problem was noted.
pub(crate) fn read_groups(sink: &mut Sink<'_>, top: &Section<'_, '_>) -> Option<Vec<Group>> {
    let words = Items {
        one: "group",
        each: "each ceiling that several disks share",
        keys: "name and a limit",
        most: MOST_GROUPS,
        why: "can share a host",
    };
    let tables = top.tables(sink, "group", &words);
    let count = tables.len();
    let mut names: Vec<Spanned<String>> = Vec::new();
    let mut groups = Vec::new();
    for (span, table) in tables {
        let section = &Section::new(SCHEMA, "[[group]]", group::NAMES, Some(span), Some(table));
        section.reject_unknown(sink);
        let name = group::NAME.require(sink, section, "add name = \"vm7\": `group` of its disks has it");
        let limits = read_limits(sink, section);
        if limits.is_some_and(|limits| limits.is_empty()) {
            let remedy = format!("add one of {}", section::list(&LIMITS));
            sink.maybe_at(section.span.as_ref(), "the group has no limit", remedy);
            continue;
        }
        let Some(name) = name else { continue };
        if let Some(first) = names.iter().find(|first| first.get_ref() == name.get_ref()) {
            let what = format!("group {:?} is already on line {}", name.get_ref(), sink.text.line(first.span().start));
            sink.at(&name.span(), what, "give each group a name of its own");
            continue;
        }
        groups.extend(limits.map(|limits| Group { name: name.get_ref().clone(), limits }));
        names.push(name);
    }
    (groups.len() == count).then_some(groups)
}

/// A tenant's group. `None`: a problem was noted.
pub(crate) fn read_group(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Option<Spanned<String>>> {
    let found = tenant::GROUP.get(sink, section);
    (found.is_some() || section.lacks(tenant::GROUP.name)).then_some(found)
}

/// Refuses groups that the file does not have. `named`: a tenant, and its group.
pub(crate) fn refuse_unknown<'g>(
    sink: &mut Sink<'_>,
    groups: &[Group],
    named: impl Iterator<Item = (&'g str, &'g Spanned<String>)>,
) {
    let known: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    for (tenant, group) in named.filter(|(_, group)| !known.contains(&group.get_ref().as_str())) {
        let name = group.get_ref().as_str();
        let remedy = match nearest(name, &known) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("add a [[group]] with name = {name:?} and a limit, or remove the line"),
        };
        sink.at(&group.span(), format!("there is no group {name:?} for tenant {tenant:?}"), remedy);
    }
}
