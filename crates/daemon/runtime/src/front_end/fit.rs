//! Which front end a tenant has, and what it takes to serve one.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use backend_nvme::Pins;
use client_socket::{Listener, Log, Surroundings};
use config::{Frontend, Tenant};
use io_model::{Extents, Place, Placed, TenantId};
use layout::Placement;
use nvme_controller::EraseRecord;
use policy::PolicyKind;
use ublk::{Helper, Queues};

use super::block_device::{self, BlockDevice};
use super::nvme_client::NvmeClient;
use super::ublk::UblkQueues;
use super::virtio::VirtioQueues;
use super::virtio_client::{self, VirtioClient};
use super::virtio_lasting::Lasting;
use super::{OwnPromise, Port, Reached, Served, nvme};
use crate::drive_trait::Facts;
use crate::poller_thread::PollerSender;

/// Has a guest's Format or Sanitize recorded; the answer is an order, [`recorded`](super::recorded).
pub type OnErase = Box<dyn Fn(EraseRecord) + Send>;

/// Some of a tenant's queues, and where they are served.
pub type ServedAt = (Range<u16>, PollerSender<Served>);

/// A tenant's front end, before it is anywhere.
pub struct Fitted {
    /// For each of the tenant's pollers, in the order of its queues.
    pub parts: Vec<Served>,
    /// Lets clients come, once each part is with its poller.
    pub serve: Box<dyn FnOnce(Vec<ServedAt>) -> Result<Reached> + Send>,
}

/// What a front end is made of.
pub struct Making<'a> {
    /// The tenant's identifier; not reused.
    pub id: TenantId,
    /// As configured.
    pub tenant: &'a Tenant,
    /// Its disk.
    pub placement: &'a Placement,
    /// Where that lies.
    pub extents: Extents,
    /// What the drive can do.
    pub drive: &'a Facts,
    /// What pins guests' memory for the drive, where it needs that.
    pub pins: Option<Pins>,
    /// The policy in force.
    pub policy: PolicyKind,
    /// The queues of each part; one part for a front end that can't be split.
    pub queues: &'a [Range<u16>],
    /// Where clients connect, once it is served, if it has a socket.
    pub listener: Option<Listener>,
    /// What its guest may read of its promise, if the front end can show it.
    pub promise: Arc<OwnPromise>,
    /// What makes block devices, if this host has any.
    pub helper: Option<Arc<Helper>>,
    /// Identifies the drive to a later daemon that finds its block devices.
    pub drive_mark: &'a str,
    /// What the threads of all clients have.
    pub around: Surroundings,
    /// See [`OnErase`].
    pub on_erase: OnErase,
}

/// Makes a tenant's front end.
///
/// # Errors
/// A disk that this front end can't present, or no memory for it.
pub fn fit(making: Making<'_>) -> Result<Fitted> {
    match making.tenant.frontend {
        Frontend::VfioUser(_) => nvme(making),
        Frontend::VhostUserBlk(_) => virtio(making),
        Frontend::Ublk(..) => block_device(making),
    }
}

fn nvme(making: Making<'_>) -> Result<Fitted> {
    let (id, around, pins) = (making.id, making.around.clone(), making.pins.clone());
    let log = Log::new(Arc::clone(&around.sink), &making.tenant.name);
    let (parts, spec, doorbells, listener) = nvme::build(making)?;
    let serve = move |places: Vec<ServedAt>| {
        let port = |(queues, poller): &ServedAt| Port::new(queues.clone(), poller.clone(), id);
        let Some((first, others)) = places.split_first() else { bail!("{}: no poller serves it", spec.name) };
        let (first_port, other_ports) = (port(first), others.iter().map(port).collect::<Vec<Port<nvme::Order>>>());
        other_ports.iter().for_each(|other| other.order(nvme::Order::Parts(vec![port(first)])));
        if !others.is_empty() {
            first_port.order(nvme::Order::Parts(others.iter().map(port).collect()));
        }
        let client = NvmeClient::new(first_port, other_ports, doorbells, pins, log);
        Ok(Reached::Socket(vfio_user::serve(spec, listener, Box::new(client), around)?))
    };
    Ok(Fitted { parts: parts.into_iter().map(Into::into).collect(), serve: Box::new(serve) })
}

fn virtio(making: Making<'_>) -> Result<Fitted> {
    let Making { id, tenant, placement, extents, drive, pins, queues, listener, around, .. } = making;
    let mut listener = listener.context("it has no socket")?;
    if placement.formatting_to_lba_bytes.is_some() {
        bail!("{CUT_SHORT}");
    }
    let disk = Arc::new(virtio_client::disk(id, tenant, placement, drive)?);
    let lasting = Lasting::with(&mut listener, tenant.queues)?;
    let is_kept = lasting.is_some();
    let name: Arc<str> = tenant.name.as_str().into();
    let part = |queues: &Range<u16>| {
        let queues = Placed::new(vhost_blk::Queues::new(Arc::clone(&disk), queues.clone()), vec![extents.clone()]);
        VirtioQueues::new(Arc::clone(&name), queues, is_kept, Log::new(Arc::clone(&around.sink), &name)).into()
    };
    let parts = queues.iter().map(part).collect();
    let budget = super::budget(tenant);
    let serve = move |places: Vec<ServedAt>| {
        let ports = places.into_iter().map(|(queues, poller)| Port::new(queues, poller, id)).collect();
        let log = Log::new(Arc::clone(&around.sink), &name);
        let client = VirtioClient::new(name, disk, ports, (budget, pins), lasting, log);
        Ok(Reached::Socket(vhost_user::serve(client.spec(), listener, Box::new(client), around)?))
    };
    Ok(Fitted { parts, serve: Box::new(serve) })
}

fn block_device(making: Making<'_>) -> Result<Fitted> {
    let Making { id, tenant, placement, extents, drive, queues, around, helper, drive_mark, .. } = making;
    if placement.formatting_to_lba_bytes.is_some() {
        bail!("{CUT_SHORT}");
    }
    let helper = helper.context(
        "this host's kernel had no ublk driver when the daemon started, or the daemon is not root: load it (`modprobe \
         ublk_drv`), and start the daemon again as root (it may drop to `user` under [daemon])",
    )?;
    let shape = block_device::shape(tenant, placement, drive)?;
    let name: Arc<str> = tenant.name.as_str().into();
    let part = |queues: &Range<u16>| {
        let queues = Queues::new(shape, Place::whole_drive(id), queues.clone());
        let placed = Placed::new(queues, vec![extents.clone()]);
        UblkQueues::new(Arc::clone(&name), placed, Log::new(Arc::clone(&around.sink), &name)).into()
    };
    let parts = queues.iter().map(part).collect();
    let mark = ublk::mark(drive_mark, &name);
    let serve = move |places: Vec<ServedAt>| {
        let ports: Vec<_> = places.into_iter().map(|(queues, poller)| Port::new(queues, poller, id)).collect();
        let log = Log::new(Arc::clone(&around.sink), &name);
        Ok(Reached::Device(BlockDevice::start(name, mark, shape, &ports, helper, log)?))
    };
    Ok(Fitted { parts, serve: Box::new(serve) })
}

/// Why a disk can be served as a controller alone.
const CUT_SHORT: &str = "its last Format was cut short; serve it as vfio-user, and have its guest format it again";
