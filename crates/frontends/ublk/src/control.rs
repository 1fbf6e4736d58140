//! Commands to `/dev/ublk-control`. Each waits for its end.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use bytemuck::{Zeroable, bytes_of, bytes_of_mut};
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};

use crate::spec::{CtrlCmd, DevInfo, Params, op};

/// The driver's own device.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// Whether the driver is there.
pub fn is_there() -> bool {
    Path::new(CONTROL_PATH).exists()
}

/// The control device, open. One thread's.
pub(crate) struct Control {
    device: File,
    uring: IoUring<Entry128, cqueue::Entry>,
}

impl Control {
    /// # Errors
    /// There is no such device, or no right to it.
    pub fn open() -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(CONTROL_PATH)?;
        Ok(Self { device, uring: IoUring::builder().dontfork().build(4)? })
    }

    /// A command about a device, with what it reads or writes.
    fn run(&mut self, op: u32, dev_id: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        let command = CtrlCmd {
            dev_id,
            queue_id: u16::MAX,
            len: buffer.len() as u16,
            addr: if buffer.is_empty() { 0 } else { buffer.as_mut_ptr() as u64 },
            data,
            ..CtrlCmd::zeroed()
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<CtrlCmd>()].copy_from_slice(bytes_of(&command));
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), op).cmd(bytes).build();
        // SAFETY: the buffer is ours alone until the completion is here, which is waited for below.
        unsafe { self.uring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            // Interrupted: it goes on all the same.
            let _ = self.uring.submit_and_wait(1);
            if let Some(end) = self.uring.completion().next() {
                let result = end.result();
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }

    /// What the driver can do: [`feature`](crate::spec::feature).
    pub fn features(&mut self) -> io::Result<u64> {
        let mut features = 0_u64;
        self.run(op::GET_FEATURES, u32::MAX, 0, bytes_of_mut(&mut features))?;
        Ok(features)
    }

    /// Makes a device with a number of the driver's choice, and says what became of it.
    pub fn add(&mut self, mut info: DevInfo) -> io::Result<DevInfo> {
        self.run(op::ADD_DEV, info.dev_id, 0, bytes_of_mut(&mut info))?;
        Ok(info)
    }

    pub fn info(&mut self, id: u32) -> io::Result<DevInfo> {
        let mut info = DevInfo::zeroed();
        self.run(op::GET_DEV_INFO, id, 0, bytes_of_mut(&mut info))?;
        Ok(info)
    }

    pub fn set_params(&mut self, id: u32, mut params: Params) -> io::Result<()> {
        self.run(op::SET_PARAMS, id, 0, &mut bytes_of_mut(&mut params)[..Params::LEN_BYTES as usize])
    }

    pub fn params(&mut self, id: u32) -> io::Result<Params> {
        let mut params = Params { len: Params::LEN_BYTES, ..Params::zeroed() };
        self.run(op::GET_PARAMS, id, 0, &mut bytes_of_mut(&mut params)[..Params::LEN_BYTES as usize])?;
        Ok(params)
    }

    /// Has it appear, served by the process `pid`; waits until that wants requests of all queues.
    pub fn start(&mut self, id: u32, pid: i32) -> io::Result<()> {
        self.run(op::START_DEV, id, pid as u64, &mut [])
    }

    pub fn stop(&mut self, id: u32) -> io::Result<()> {
        self.run(op::STOP_DEV, id, 0, &mut [])
    }

    /// Waits until nobody has it open.
    pub fn delete(&mut self, id: u32) -> io::Result<()> {
        self.run(op::DEL_DEV, id, 0, &mut [])
    }

    /// `EBUSY`: its former server is not gone yet.
    pub fn begin_recovery(&mut self, id: u32) -> io::Result<()> {
        self.run(op::START_USER_RECOVERY, id, 0, &mut [])
    }

    /// As [`start`](Self::start).
    pub fn end_recovery(&mut self, id: u32, pid: i32) -> io::Result<()> {
        self.run(op::END_USER_RECOVERY, id, pid as u64, &mut [])
    }
}
