//! Namespaces on their way to controllers and from them.

use anyhow::Result;
use client_socket::Level;
use config::Config;
use io_model::TenantId;
use io_model::units::Size;
use state::{At, NamespaceOrder};

use crate::served_drive::ServedDrive;
use runtime::front_end::{self, NvmeOrder};
use runtime::happening::Happening;
use runtime::poller_thread::Message;

/// What is done later, with the drive.
pub(crate) type Then = Box<dyn FnOnce(&mut ServedDrive) + Send>;

impl ServedDrive {
    /// All namespaces of a configuration; none of their tenants has a client yet.
    pub(crate) fn start_namespaces(&mut self, config: &Config) -> Result<()> {
        config.namespaces.iter().try_for_each(|namespace| self.create(namespace.into(), None).map(drop))
    }

    /// Orders go to a controller in the sequence in which they are given.
    pub(crate) fn order_namespace(&mut self, controller: TenantId, asked: NamespaceOrder) {
        let Some(order) = self.nvme_order(controller, asked) else { return };
        if !self.tenants.contains_key(&controller) {
            return;
        }
        if let NamespaceOrder::Attach { nsid, namespace, .. } = asked
            && let Some(name) = self.state.disks().get(namespace).map(|disk| disk.name.clone())
        {
            self.tell_key(controller, (nsid - 1) as u16, &name);
        }
        let Some(live) = self.tenants.get(&controller) else { return };
        let orders = front_end::for_controller_parts(order, live.pollers.len());
        for (poller, order) in live.pollers.iter().zip(orders) {
            self.pollers.send(*poller, Message::Order(controller, order.into()));
        }
    }

    fn nvme_order(&self, controller: TenantId, order: NamespaceOrder) -> Option<NvmeOrder> {
        let placement = |namespace| self.state.placement(&self.state.disks().get(namespace)?.name);
        Some(match order {
            NamespaceOrder::Attach { nsid, namespace, read_only, elsewhere } => {
                let facts = self.pollers.drive_facts();
                let placement = placement(namespace)?;
                let lies = (placement, self.extents(placement));
                front_end::attach_namespace(nsid, lies, &facts, read_only, elsewhere)
            }
            NamespaceOrder::Detach(nsid) => {
                let teller = self.teller.clone();
                NvmeOrder::Detach(nsid, Box::new(move || teller.tell(Happening::NamespaceLeft(controller, nsid))))
            }
            NamespaceOrder::Elsewhere(nsid, elsewhere) => NvmeOrder::Elsewhere(nsid, elsewhere),
            NamespaceOrder::Grow(nsid, namespace) => {
                let placement = placement(namespace)?;
                let (name, size_bytes) = (&placement.name, placement.size_bytes());
                let line = format!("{name}: it has {} now", Size(size_bytes));
                (self.around.sink)(Level::Info.of_tenant(name), &line);
                NvmeOrder::Grow(nsid, size_bytes, self.extents(placement))
            }
        })
    }

    /// A controller has let go of a namespace: nothing of it is in flight there.
    pub(crate) fn tell_detached(&mut self, at: At) {
        let (controller, nsid) = at;
        if self.pollers.keys().forget_disk(controller, (nsid - 1) as u16) {
            self.pollers.take_keys(|| ());
        }
        self.detaching.remove(&at).into_iter().flatten().for_each(|then| then(self));
    }

    /// Calls `then` once a controller that was to let go of a namespace has done so, or at once.
    pub(crate) fn when_namespace_left(&mut self, at: At, then: impl FnOnce(&mut Self) + Send + 'static) {
        if self.state.attachments().is_leaving(at) {
            self.detaching.entry(at).or_default().push(Box::new(then));
        } else {
            then(self);
        }
    }
}
