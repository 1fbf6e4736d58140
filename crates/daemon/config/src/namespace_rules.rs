//! Rules between a namespace and the tenants that have it.

use std::collections::HashMap;

use toml::Spanned;

use crate::draft::Draft;
use crate::namespace::{NSIDS, NamespaceDraft};
use crate::nearest::nearest;
use crate::problem::Sink;

/// Rules between a namespace and the tenants that have it.
pub(crate) fn check(sink: &mut Sink<'_>, draft: &Draft) {
    let tenants: HashMap<&str, bool> = draft
        .tenants
        .iter()
        .filter_map(|tenant| Some((tenant.name.as_ref()?.get_ref().as_str(), tenant.frontend.frontend.as_ref()?)))
        .map(|(name, frontend)| (name, frontend.is_controller()))
        .collect();
    // What could not be read is told already, and may be a tenant.
    let are_all_known = tenants.len() == draft.tenants.len();
    let mut taken: HashMap<(&str, u32), &NamespaceDraft> = HashMap::new();
    for namespace in &draft.namespaces {
        for (at, tenant) in namespace.tenants().enumerate() {
            let name = tenant.get_ref().as_str();
            if namespace.tenants().take(at).any(|other| other.get_ref() == name) {
                let what = format!("{} names tenant {name:?} twice", namespace.title());
                sink.at(&tenant.span(), what, "name it once, under `tenants` or under `read_only`");
                continue;
            }
            match tenants.get(name) {
                Some(true) => once_on_a_controller(sink, namespace, name, &mut taken),
                Some(false) => no_controller(sink, namespace, tenant),
                None if draft.undecided.iter().any(|undecided| undecided == name) => {}
                None if are_all_known => no_tenant(sink, namespace, tenant, tenants.keys().copied().collect()),
                None => {}
            }
        }
        one_writer(sink, namespace);
    }
}

fn once_on_a_controller<'d>(
    sink: &mut Sink<'_>,
    namespace: &'d NamespaceDraft,
    tenant: &'d str,
    taken: &mut HashMap<(&'d str, u32), &'d NamespaceDraft>,
) {
    let Some(nsid) = &namespace.nsid else { return };
    let Some(other) = taken.insert((tenant, *nsid.get_ref()), namespace) else { return };
    let what = format!("tenant {tenant:?} has {} as its nsid {} already", other.title(), nsid.get_ref());
    let remedy =
        format!("write another nsid, {} to {}, that is free on each of its tenants", NSIDS.start(), NSIDS.end());
    sink.at(&nsid.span(), what, remedy);
}

fn no_controller(sink: &mut Sink<'_>, namespace: &NamespaceDraft, tenant: &Spanned<String>) {
    let title = namespace.title();
    let what = format!("{title} can't be attached to {:?}, which has no NVMe controller", tenant.get_ref());
    sink.at(&tenant.span(), what, "write frontend = \"vfio-user\" for that tenant, or remove it here");
}

fn no_tenant(sink: &mut Sink<'_>, namespace: &NamespaceDraft, tenant: &Spanned<String>, mut known: Vec<&str>) {
    let shown: String = tenant.get_ref().chars().take(80).collect();
    known.sort_unstable();
    let remedy = match nearest(tenant.get_ref(), &known) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => "write the name of a [[tenant]] that is on it, or say which drive the namespace is on".to_owned(),
    };
    sink.at(
        &tenant.span(),
        format!("{} is attached to {shown:?}, and its drive has no such tenant", namespace.title()),
        remedy,
    );
}

fn one_writer(sink: &mut Sink<'_>, namespace: &NamespaceDraft) {
    let (Some(tenants), Some(false)) = (&namespace.tenants, namespace.shared) else { return };
    if tenants.len() > 1 {
        let title = namespace.title();
        let what =
            format!("{} tenants may write to {title}, and most file systems are not made for that", tenants.len());
        let remedy = "put all but one under `read_only`, or write shared = true if they coordinate their writes";
        sink.maybe_at(namespace.tenants_mark.as_ref(), what, remedy);
    }
}
