//! A tenant's block device as the owner sees it: created with the tenant and deleted with it.
//!
//! If the device is open when the daemon ends, it is left to the next daemon.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use client_socket::Log;
use config::Tenant;
use io_model::units::Size;
use layout::Placement;
use ublk::{Device, Helper, Queue, Ring, Shape, Wanted, buffers};

use super::Port;
use super::ublk::{Order, Starting};
use crate::drive_trait::Facts;

/// A poller that has not taken its queues on by then is stuck. The owner waits: the kernel starts a device only once
/// its queues are served, and the answer to a create says whether it did.
const START_LIMIT: Duration = Duration::from_secs(5);

/// Requests of each queue that the kernel hands over at a time.
const QUEUE_DEPTH: u16 = 128;

/// Settings of a tenant's block device.
///
/// # Errors
/// No block device can be so.
pub fn shape(tenant: &Tenant, placement: &Placement, drive: &Facts) -> Result<Shape> {
    let shape = Shape {
        size_bytes: placement.served_bytes(),
        block_bytes: placement.lba_bytes,
        queues: tenant.queues,
        depth: QUEUE_DEPTH,
        read_only: tenant.frontend.is_read_only(),
        discard: drive.discard,
        write_cache: drive.write_cache,
    };
    shape.check()?;
    Ok(shape)
}

/// A device that is served. Dropping it deletes it, even if it is open.
pub struct BlockDevice {
    name: Arc<str>,
    mark: u64,
    id: u32,
    helper: Arc<Helper>,
    /// It stays when this is dropped: it is open, and the next daemon serves it.
    stays: bool,
    log: Log,
}

impl BlockDevice {
    /// Makes the device of a disk, or takes over the one that an earlier daemon left, and has it appear.
    ///
    /// # Errors
    /// The driver is not there or refuses, or a poller does not serve it. One that was made for this is deleted again.
    pub fn start(
        name: Arc<str>,
        mark: u64,
        shape: Shape,
        ports: &[Port<Order>],
        helper: Arc<Helper>,
        log: Log,
    ) -> Result<Self> {
        let device = helper.open(&Wanted { name: &name, mark, shape })?;
        // What is in use already must not go because this daemon has a problem.
        let mut started = Self { name, mark, id: device.id, helper, stays: device.is_recovered, log };
        started.begin(&device, shape, ports)?;
        started.stays = false;
        Ok(started)
    }

    fn begin(&mut self, device: &Device, wanted: Shape, ports: &[Port<Order>]) -> Result<()> {
        let shape = device.shape;
        let queue = |queue: u16| -> Result<Queue<Ring>> {
            Ok(Queue::new(Ring::new(device.file.as_fd(), queue, &shape)?, buffers(&shape)?, &shape))
        };
        for port in ports {
            let given = port.queues.clone().filter(|it| *it < shape.queues);
            let queues = given.map(queue).collect::<Result<Vec<_>>>().context("can't open its queues")?;
            let (done, started) = channel();
            port.order(Order::Start(Starting { queues, is_recovered: device.is_recovered, done }));
            started.recv_timeout(START_LIMIT).map_err(|_| anyhow!("a poller does not serve its queues"))??;
        }
        self.helper.begin(&self.name, self.mark, self.id, device.is_recovered)?;
        self.tell(device, wanted);
        Ok(())
    }

    fn tell(&mut self, Device { id, shape, is_recovered, .. }: &Device, wanted: Shape) {
        let path = Helper::path(&self.name);
        let what = if *is_recovered { "goes on as" } else { "is" };
        self.log.info(&format!("{}: {what} {} (/dev/ublkb{id})", self.name, path.display()));
        if shape.queues < wanted.queues {
            let (has, asked) = (shape.queues, wanted.queues);
            self.log.info(&format!("{}: {has} queues instead of {asked}: no more than there are CPUs", self.name));
        }
        if shape.size_bytes < wanted.size_bytes {
            let (has, grown) = (Size(shape.size_bytes), Size(wanted.size_bytes));
            let line = "unmount it, and start the daemon again to use all of it";
            self.log.info(&format!("{}: it is open with {has}, and the disk has {grown} by now: {line}", self.name));
        }
    }

    /// Whether the device is open.
    pub fn is_open(&self) -> bool {
        self.helper.is_open(&self.name, self.mark, self.id).unwrap_or(false)
    }

    /// The daemon ends, and its pollers have ended: deletes the device, unless it is open. Then requests wait for the
    /// next daemon.
    pub fn part(mut self) {
        self.stays = true;
        let name = Arc::clone(&self.name);
        match self.helper.part(&name, self.mark, self.id) {
            Ok(false) => {}
            Ok(true) => {
                let path = Helper::path(&name);
                let line = format!("{name}: {} is in use: its requests wait for the next daemon", path.display());
                self.log.warn(&line);
            }
            Err(error) => self.log.warn(&error.to_string()),
        }
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        if !self.stays {
            self.helper.delete(&self.name, self.mark, self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_names_are_where_the_configuration_says() {
        assert_eq!(ublk::DIRECTORY, config::DEVICE_DIR);
    }
}
