//! What the ublk driver and its servers say to each other: `include/uapi/linux/ublk_cmd.h` as of Linux 6.12.

use bytemuck::{Pod, Zeroable};

/// Bytes of a sector, whatever the block size.
pub const SECTOR_BYTES: u64 = 512;

/// The most requests of one queue (`UBLK_MAX_QUEUE_DEPTH`).
pub const MAX_QUEUE_DEPTH: u16 = 4096;

/// A command for `/dev/ublk-control`, in the second part of a 128-byte entry (`ublksrv_ctrl_cmd`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CtrlCmd {
    /// Which device; all ones: one that is to be given a number.
    pub dev_id: u32,
    /// All ones: no queue in particular.
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// What the command reads or writes.
    pub addr: u64,
    /// The server's process, where one is started.
    pub data: u64,
    /// Bytes of the character device's path in front of what `addr` points to.
    pub dev_path_len: u16,
    /// Zero.
    pub pad: u16,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<CtrlCmd>() == 32);

/// A device (`ublksrv_ctrl_dev_info`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub struct DevInfo {
    /// Queues; the driver gives no more than there are CPUs.
    pub nr_hw_queues: u16,
    /// Requests of each.
    pub queue_depth: u16,
    /// See [`state`].
    pub state: u16,
    /// Zero.
    pub pad0: u16,
    /// Bytes of a request at most.
    pub max_io_buf_bytes: u32,
    /// Its number.
    pub dev_id: u32,
    /// The process that serves it; -1: none.
    pub ublksrv_pid: i32,
    /// Zero.
    pub pad1: u32,
    /// See [`feature`].
    pub flags: u64,
    /// For the server's own use: the driver stores it and returns it.
    pub ublksrv_flags: u64,
    /// User that created it.
    pub owner_uid: u32,
    /// Group of that user.
    pub owner_gid: u32,
    /// Zero.
    pub reserved1: u64,
    /// Zero.
    pub reserved2: u64,
}

const _: () = assert!(size_of::<DevInfo>() == 64);

/// `UBLK_S_DEV_*`.
pub mod state {
    /// Not started, or stopped.
    pub const DEAD: u16 = 0;
    /// Served.
    pub const LIVE: u16 = 1;
    /// Its server is gone; requests wait for the next one.
    pub const QUIESCED: u16 = 2;
}

/// `UBLK_F_*`.
pub mod feature {
    /// The device survives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// And what that server had not answered is given to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are encoded as ioctls are.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
}

/// What a block device is like (`ublk_params`, of which we know the first two parts).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Params {
    /// [`Params::LEN_BYTES`].
    pub len: u32,
    /// Which parts mean something.
    pub types: u32,
    /// `UBLK_ATTR_*`, see [`attr`].
    pub attrs: u32,
    /// log2 of the logical block's bytes.
    pub logical_bs_shift: u8,
    /// log2 of the physical block's bytes.
    pub physical_bs_shift: u8,
    /// log2 of the best transfer's bytes.
    pub io_opt_shift: u8,
    /// log2 of the smallest good transfer's bytes.
    pub io_min_shift: u8,
    /// Sectors of a request at most.
    pub max_sectors: u32,
    /// 0.
    pub chunk_sectors: u32,
    /// How long it is.
    pub dev_sectors: u64,
    /// 0.
    pub virt_boundary_mask: u64,
    /// 0.
    pub discard_alignment: u32,
    /// Bytes.
    pub discard_granularity: u32,
    /// Sectors of one discard at most; 0: there is none.
    pub max_discard_sectors: u32,
    /// Sectors of one write zeroes at most; 0: there is none.
    pub max_write_zeroes_sectors: u32,
    /// Ranges of one discard.
    pub max_discard_segments: u16,
    /// 0.
    pub reserved0: u16,
    /// Behind what the driver is told of.
    pub pad: u32,
}

impl Params {
    /// What the driver is told of it.
    pub const LEN_BYTES: u32 = 60;
    /// `UBLK_PARAM_TYPE_BASIC`.
    pub const BASIC: u32 = 1 << 0;
    /// `UBLK_PARAM_TYPE_DISCARD`.
    pub const DISCARD: u32 = 1 << 1;
}

const _: () = assert!(size_of::<Params>() == 64 && std::mem::offset_of!(Params, dev_sectors) == 24);
const _: () = assert!(std::mem::offset_of!(Params, pad) == Params::LEN_BYTES as usize);

/// `UBLK_ATTR_*`.
pub mod attr {
    /// Nobody can write.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Writes may wait for a flush.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Writes may ask not to.
    pub const FUA: u32 = 1 << 3;
}

/// A request, as the driver puts it into memory that we may read (`ublksrv_io_desc`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct IoDesc {
    /// Operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    /// How long.
    pub nr_sectors: u32,
    /// From where.
    pub start_sector: u64,
    /// Where its data is: what the server said when it fetched.
    pub addr: u64,
}

const _: () = assert!(size_of::<IoDesc>() == 24);

/// `UBLK_IO_OP_*`.
pub mod io_op {
    /// Device to memory.
    pub const READ: u32 = 0;
    /// Memory to device.
    pub const WRITE: u32 = 1;
    /// What was completed is to be durable.
    pub const FLUSH: u32 = 2;
    /// Nobody needs the range.
    pub const DISCARD: u32 = 3;
    /// The range is to read as zeros.
    pub const WRITE_ZEROES: u32 = 5;
}

/// `UBLK_IO_F_FUA`: durable before it is answered.
pub const IO_F_FUA: u32 = 1 << 13;

/// What a server says of a request, in an entry for `/dev/ublkcN` (`ublksrv_io_cmd`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct IoCmd {
    /// Which queue.
    pub q_id: u16,
    /// Which of its requests.
    pub tag: u16,
    /// Bytes that were moved, or an error number below 0.
    pub result: i32,
    /// Where the next request's data is to be.
    pub addr: u64,
}

const _: () = assert!(size_of::<IoCmd>() == 16);

/// `UBLK_IO_RES_OK`: a request is there.
pub const IO_RES_OK: i32 = 0;

const fn ioctl(direction: u32, size: usize, number: u32) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn control(direction: u32, number: u32) -> u32 {
    ioctl(direction, size_of::<CtrlCmd>(), number)
}

/// `UBLK_U_CMD_*` and `UBLK_U_IO_*`.
pub mod op {
    use super::{IoCmd, control, ioctl};

    const READ: u32 = 2;
    const READ_WRITE: u32 = 3;

    /// Makes a device.
    pub const ADD_DEV: u32 = control(READ_WRITE, 0x04);
    /// Deletes one, and waits until nobody has it any more.
    pub const DEL_DEV: u32 = control(READ_WRITE, 0x05);
    /// Has it appear.
    pub const START_DEV: u32 = control(READ_WRITE, 0x06);
    /// Has it vanish.
    pub const STOP_DEV: u32 = control(READ_WRITE, 0x07);
    /// Says what it is like.
    pub const SET_PARAMS: u32 = control(READ_WRITE, 0x08);
    /// Asks what it is like.
    pub const GET_PARAMS: u32 = control(READ, 0x09);
    /// Another server begins.
    pub const START_USER_RECOVERY: u32 = control(READ_WRITE, 0x10);
    /// It has all queues.
    pub const END_USER_RECOVERY: u32 = control(READ_WRITE, 0x11);
    /// Asks for its [`DevInfo`](super::DevInfo).
    pub const GET_DEV_INFO: u32 = control(READ, 0x02);
    /// Asks what the driver can do.
    pub const GET_FEATURES: u32 = control(READ, 0x13);

    /// Wants a queue's first request of a tag.
    pub const FETCH_REQ: u32 = ioctl(READ_WRITE, size_of::<IoCmd>(), 0x20);
    /// Answers one, and wants the next.
    pub const COMMIT_AND_FETCH_REQ: u32 = ioctl(READ_WRITE, size_of::<IoCmd>(), 0x21);
}

/// Where a queue's descriptors are in `/dev/ublkcN`, for pages of `page_bytes`.
pub fn descriptors_at(queue: u16, page_bytes: usize) -> u64 {
    let each = (usize::from(MAX_QUEUE_DEPTH) * size_of::<IoDesc>()).next_multiple_of(page_bytes);
    u64::from(queue) * each as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by a C program from the kernel's header.
    #[test]
    fn commands_are_encoded_as_the_driver_wants_them() {
        assert_eq!(op::ADD_DEV, 0xc020_7504);
        assert_eq!(op::GET_DEV_INFO, 0x8020_7502);
        assert_eq!(op::FETCH_REQ, 0xc010_7520);
        assert_eq!(op::COMMIT_AND_FETCH_REQ, 0xc010_7521);
        assert_eq!(descriptors_at(2, 4096), 2 * 98_304);
    }
}
