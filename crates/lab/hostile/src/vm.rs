//! A victim whose virtqueue and log of requests in flight outlive the daemon: whatever was in flight completes with the
//! next one, and nothing else is excused.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use test_clients::virtio::{FREE_AT, IN, OUT, RING, Virtio};

use crate::victim::{Lane, MAX_BYTES, Plan};

/// The driver of one virtqueue.
pub struct Vm {
    virtio: Virtio,
    /// Never read: it polls.
    call: OwnedFd,
}

fn buffer_at(tag: u16) -> u64 {
    FREE_AT + u64::from(tag) * MAX_BYTES
}

impl Vm {
    /// Attaches for the first time.
    pub fn attach(plan: &Plan) -> Result<Self> {
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { virtio: Virtio::start_logged(&plan.directory, call.as_fd())?, call })
    }
}

impl Lane for Vm {
    fn send(&mut self, tag: u16, offset_bytes: u64, len_bytes: u64, data: Option<&[u8]>) -> Result<()> {
        let at = buffer_at(tag);
        data.map_or(Ok(()), |data| self.virtio.memory.write_all_at(data, at))?;
        let kind = if data.is_some() { OUT } else { IN };
        Ok(self.virtio.request(tag, kind, offset_bytes / 512, RING + at, len_bytes as u32)?)
    }

    fn ring(&mut self) -> Result<()> {
        Ok(self.virtio.kick()?)
    }

    fn take_done(&mut self) -> Result<Vec<(u16, Result<()>)>> {
        let mut done = Vec::new();
        while let Some(head) = self.virtio.take_used()? {
            ensure!(head % 3 == 0, "chain {head} came back, which was not in flight");
            let tag = head / 3;
            let status = self.virtio.status(tag)?;
            let outcome = if status == 0 { Ok(()) } else { Err(anyhow::anyhow!("its status is {status}")) };
            done.push((tag, outcome));
        }
        Ok(done)
    }

    fn data(&self, tag: u16, out: &mut [u8]) -> Result<()> {
        Ok(self.virtio.memory.read_exact_at(out, buffer_at(tag))?)
    }

    fn attach_again(&mut self, plan: &Plan) -> Result<bool> {
        self.virtio.reconnect(&plan.directory, self.call.as_fd())?;
        Ok(true)
    }
}
