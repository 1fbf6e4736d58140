//! Makes a tenant's controller: one part for each of its pollers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use client_socket::{Listener, Log};
use config::Tenant;
use guest_memory::Mapping;
use io_model::{Extents, Placed, TenantId};
use layout::Placement;
use nvme_controller::{
    Controller, ControllerConfig, Doorbells, NamespaceConfig, Part, Sanitize, SanitizeState, VECTORS,
};
use policy::TenantPriority;
use vfio_user::{DeviceSpec, IrqSpec, MmapSpec, RegionSpec};

use super::{
    BAR0, BAR4, CONFIG_SPACE, DOORBELLS_END, DOORBELLS_START, ERROR, EventFds, INTX, IRQ_TYPES, Lasting, MSIX, NSID,
    NvmeDevice, Order, REGIONS,
};
use crate::drive_trait::Facts;
use crate::front_end::{Making, budget};

/// Data of one command at most (MDTS).
pub(super) const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// The largest transfer if tenants take turns. A command can't be interrupted, and all that the arbiter lets into the
/// drive at a time is hardly more than one large command. Guests split larger transfers.
const MAX_TRANSFER_IN_TURN_BYTES: u32 = 128 << 10;

/// Why a tenant can't be served in parts.
const CUT_SHORT: &str = "its last Format was cut short, and a disk on several pollers can't be formatted; write \
                         threads = \"shared\", and have its guest format it again";

/// As for [`CUT_SHORT`].
const NOT_SANITIZED: &str = "its guest's last Sanitize has not ended well, and a disk on several pollers can't be \
                             sanitized; write threads = \"shared\", and have its guest sanitize it";

/// Makes the device's parts and says how the server is to present it. The mapping is its doorbell page.
pub fn build(making: Making<'_>) -> Result<(Vec<NvmeDevice>, DeviceSpec, Arc<Mapping>, Listener)> {
    let Making { id, tenant, placement, extents, drive, policy, queues, listener, promise, around, on_erase, .. } =
        making;
    let mut listener = listener.context("it has no socket")?;
    let of = queues.len() as u16;
    ensure!(of == 1 || placement.formatting_to_lba_bytes.is_none(), CUT_SHORT);
    let latest = placement.sanitize.map(sanitize);
    let is_over = |it: Sanitize| matches!(it.state, SanitizeState::Completed | SanitizeState::Exited);
    ensure!(of == 1 || latest.is_none_or(is_over), NOT_SANITIZED);
    let doorbells = match tenant.doorbells {
        config::Doorbells::Mapped => Doorbells::Mapped,
        config::Doorbells::Trapped => Doorbells::Trapped,
    };
    let in_turn = policy.has_priorities();
    let config = ControllerConfig {
        max_transfer_bytes: if in_turn { MAX_TRANSFER_IN_TURN_BYTES } else { MAX_TRANSFER_BYTES },
        ..controller_config(id, tenant, placement, drive, doorbells)
    };
    let (fd, page, lasting) = memory(&mut listener, &config)?;
    let mut on_erase = Some(on_erase);
    let parts = (0..of).map(|index| {
        let config = ControllerConfig { part: Part { index, of }, ..config.clone() };
        let mut controller = Controller::new(config, Arc::clone(&page), EventFds::default())?;
        controller.show_promise(Some(Arc::clone(&promise) as _));
        let controller = Placed::new(controller, vec![extents.clone()]);
        let log = Log::new(Arc::clone(&around.sink), &tenant.name);
        // The first part's alone: others erase nothing.
        let on_erase = on_erase.take().unwrap_or_else(|| Box::new(|_| ()));
        Ok(NvmeDevice::new(tenant.name.clone(), controller, lasting.clone(), log, on_erase))
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let mut regions: Vec<RegionSpec> = (0..REGIONS).map(|_| RegionSpec::default()).collect();
    for (index, size_bytes) in [(BAR0, 0x4000), (BAR4, 0x1000), (CONFIG_SPACE, 0x1000)] {
        regions[index as usize] = RegionSpec { size_bytes, readable: true, writable: true, mmap: None };
    }
    if doorbells == Doorbells::Mapped {
        let areas = vec![(DOORBELLS_START, DOORBELLS_END - DOORBELLS_START)];
        regions[BAR0 as usize].mmap = Some(MmapSpec { fd: Arc::new(fd), file_offset_bytes: 0, areas });
    }
    let mut irqs = vec![IrqSpec::default(); IRQ_TYPES];
    irqs[INTX as usize] = IrqSpec { maskable: true, automasked: true, ..IrqSpec::eventfds(1) };
    // As the table in configuration space has: Cloud Hypervisor gives eventfds for all of it.
    irqs[MSIX as usize] = IrqSpec { maskable: true, ..IrqSpec::eventfds(VECTORS.into()) };
    // Never raised; QEMU warns where it is missing.
    irqs[ERROR as usize] = IrqSpec::eventfds(1);
    let spec = DeviceSpec { name: tenant.name.clone(), regions, irqs, resettable: true, budget: budget(tenant) };
    Ok((parts, spec, page, listener))
}

/// A controller's doorbell page, its file, and what must outlive this process where clients are kept: as an earlier
/// process left it, if a client of that one is held.
fn memory(listener: &mut Listener, config: &ControllerConfig) -> Result<(OwnedFd, Arc<Mapping>, Option<Lasting>)> {
    let doorbells_in = |fd: &OwnedFd| {
        // Clients map a region's file at the same offsets as the region: the page lies where BAR 0 has it.
        Mapping::shared(fd.as_fd(), DOORBELLS_START, DOORBELLS_END - DOORBELLS_START, true)
    };
    let journal_bytes = nvme_controller::journal_bytes(config);
    let mut earlier = None;
    if let Some((true, [doorbells, journal])) = listener.held() {
        let earlier_bytes = rustix::fs::fstat(journal).context("can't look at a journal")?.st_size as u64;
        let journal = Mapping::shared(journal.as_fd(), 0, earlier_bytes, true).context("can't map a journal")?;
        if earlier_bytes == journal_bytes {
            let doorbells = doorbells.try_clone()?;
            let page = doorbells_in(&doorbells)?;
            return Ok((
                doorbells,
                Arc::clone(&page),
                Some(Lasting { doorbells: page, journal, earlier, is_held: true }),
            ));
        }
        // That of a controller with other queues: its client is told so, and sent away.
        earlier = Some(journal);
    }
    let (_, fd) = Mapping::memfd("evenkeel-doorbells", DOORBELLS_END as usize).context("can't make a doorbell page")?;
    let page = doorbells_in(&fd)?;
    if listener.held().is_none() {
        return Ok((fd, page, None));
    }
    let (journal, file) = Mapping::memfd("evenkeel-journal", journal_bytes as usize).context("can't make a journal")?;
    listener.keep_memory(vec![fd.try_clone()?, file]);
    let is_held = earlier.is_some();
    Ok((fd, Arc::clone(&page), Some(Lasting { doorbells: page, journal, earlier, is_held })))
}

fn controller_config(
    id: TenantId,
    tenant: &Tenant,
    placement: &Placement,
    drive: &Facts,
    doorbells: Doorbells,
) -> ControllerConfig {
    ControllerConfig {
        serial: placement.serial.clone(),
        model: "Evenkeel virtual NVMe disk".into(),
        firmware: env!("CARGO_PKG_VERSION").chars().take(8).collect(),
        subnqn: format!("nqn.2026-11.evenkeel:{}", tenant.name),
        tenant: id,
        namespaces: vec![(NSID, own_disk(placement, drive))],
        sanitize: placement.sanitize.map(sanitize),
        discard: drive.discard,
        write_zeroes: true,
        volatile_write_cache: drive.write_cache,
        max_io_queues: tenant.queues,
        max_depth: 1024,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        doorbells,
        part: Part::WHOLE,
        queues_singly: tenant.terms.priority == TenantPriority::OfQueue,
    }
}

/// As the controller knows it.
fn sanitize(it: layout::Sanitize) -> Sanitize {
    let state = match it.state {
        layout::SanitizeState::Running => SanitizeState::Running,
        layout::SanitizeState::Completed => SanitizeState::Completed,
        layout::SanitizeState::Failed => SanitizeState::Failed,
        layout::SanitizeState::Exited => SanitizeState::Exited,
    };
    Sanitize { cdw10: it.dword_10, pattern: it.pattern, state }
}

/// A tenant's own disk.
fn own_disk(placement: &Placement, drive: &Facts) -> NamespaceConfig {
    NamespaceConfig {
        // Where it lies is looked up.
        base_bytes: 0,
        size_bytes: placement.served_bytes(),
        lba_bytes: placement.lba_bytes,
        lba_sizes: [512, 4096].into_iter().filter(|size| *size >= drive.block_bytes).collect(),
        read_only: false,
        shared: false,
        elsewhere: false,
        nguid: None,
        format_cut_short: placement.formatting_to_lba_bytes.is_some(),
        erases_by_key: placement.key.as_ref().is_some_and(|key| key.is_of_host()),
    }
}

/// The order that attaches a namespace of several tenants.
pub fn attach(
    nsid: u32,
    (placement, extents): (&Placement, Extents),
    drive: &Facts,
    read_only: bool,
    elsewhere: bool,
) -> Order {
    let nguid = nvme_controller::nguid(&format!("nqn.2026-11.evenkeel:namespace:{}", placement.name));
    let own = own_disk(placement, drive);
    let namespace = NamespaceConfig { read_only, shared: true, elsewhere, nguid: Some(nguid), ..own };
    Order::Attach(nsid, namespace, extents)
}
