//! NVMe namespaces without a socket. Each is part of the controllers of one or more NVMe tenants.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A namespace that was created while the daemon ran. Keys are those of a `[[namespace]]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// The namespace's name. No other disk may have it.
    pub name: String,
    /// Size, a multiple of 4096 bytes, such as `16GiB`.
    pub size: String,
    /// The namespace's identifier on every controller, 2 to 32.
    pub nsid: u32,
    /// Tenants that may read and write.
    #[serde(default)]
    pub tenants: Vec<String>,
    /// Tenants that may only read.
    #[serde(default)]
    pub read_only: Vec<String>,
    /// Several tenants may write.
    #[serde(default)]
    pub shared: bool,
    /// Block size in bytes: 512 or 4096.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lba_size: Option<u32>,
    /// Owner of the key that encrypts it: `host`, `tenant` or `none`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encryption: Option<String>,
}

/// The `[[namespace]]` sections of a configuration.
#[derive(Serialize, Deserialize)]
struct Sections {
    namespace: Vec<Namespace>,
}

impl Namespace {
    /// Writes the namespace as a `[[namespace]]` section of a configuration.
    ///
    /// # Errors
    /// TOML can't represent a value.
    pub fn to_section(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&Sections { namespace: vec![self.clone()] })
    }

    /// Reads what [`Namespace::to_section`] wrote. `None`: the text is not exactly one such section.
    pub fn from_section(section: &str) -> Option<Self> {
        let sections: Sections = toml::from_str(section).ok()?;
        let mut namespaces = sections.namespace.into_iter();
        namespaces.next().filter(|_| namespaces.len() == 0)
    }

    /// Whether this tenant may only read. `None`: the namespace is not attached to it.
    pub fn is_read_only(&self, tenant: &str) -> Option<bool> {
        let is_in = |tenants: &[String]| tenants.iter().any(|it| it == tenant);
        let reads = is_in(&self.read_only);
        (reads || is_in(&self.tenants)).then_some(reads)
    }

    /// Whether no tenant has the namespace attached.
    pub fn is_alone(&self) -> bool {
        self.tenants.is_empty() && self.read_only.is_empty()
    }

    /// Adds a tenant.
    pub fn attach(&mut self, tenant: &str, read_only: bool) {
        let list = if read_only { &mut self.read_only } else { &mut self.tenants };
        list.push(tenant.to_owned());
    }

    /// Removes a tenant.
    pub fn detach(&mut self, tenant: &str) {
        self.tenants.retain(|it| it != tenant);
        self.read_only.retain(|it| it != tenant);
    }
}

/// A namespace to attach to a tenant's controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The NVMe tenant.
    pub tenant: String,
    /// `true`: the tenant's guest can't write.
    #[serde(default)]
    pub read_only: bool,
    /// `true`: several tenants may write, now and later. They must agree among themselves on who writes where.
    #[serde(default)]
    pub shared: bool,
}

/// A tenant that a namespace is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    /// The NVMe tenant.
    pub tenant: String,
    /// `true`: the tenant's guest can't write.
    pub read_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_says_who_has_it() {
        let (name, size) = ("logs".to_owned(), "1GiB".to_owned());
        let (tenants, read_only) = (vec!["db".to_owned()], Vec::new());
        let mut namespace =
            Namespace { name, size, nsid: 2, tenants, read_only, shared: false, lba_size: None, encryption: None };
        namespace.attach("reader", true);
        namespace.attach("web", false);
        let section = namespace.to_section().unwrap();
        assert_eq!(section.matches("[[namespace]]\n").count(), 1, "{section}");
        assert_eq!(Namespace::from_section(&section), Some(namespace.clone()));
        assert_eq!(Namespace::from_section(&section.repeat(2)), None);
        assert_eq!(Namespace::from_section("[[tenant]]\nname = \"a\"\nsize = \"1GiB\"\n"), None);
        assert_eq!(
            ["db", "reader", "web", "other"].map(|it| namespace.is_read_only(it)),
            [Some(false), Some(true), Some(false), None]
        );
        ["db", "reader", "web"].iter().for_each(|tenant| namespace.detach(tenant));
        assert_eq!((namespace.tenants, namespace.read_only), (vec![], vec![]));
    }
}
