//! I/O commands: what passes, what is refused and with which status.

use bytemuck::Zeroable;
use io_model::{DeviceError, Op, Source};
use nvme_spec::data::{DsmRange, SglDescriptor, sgl_type};
use nvme_spec::opcode::{dsm, nvm, rw as dword12};
use nvme_spec::{NSID_ALL, Sqe, Status};

use crate::host::{BASE_BYTES, Host, PLACE, RAM_BYTES, RAM_IOVA, SIZE_BYTES, config, flush, rw};

const BLOCKS: u64 = SIZE_BYTES / 512;
/// An address that no guest memory is behind.
const NOWHERE: u64 = RAM_IOVA + RAM_BYTES;

/// A pattern that differs from byte to byte and page to page.
fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ salt).collect()
}

fn read_from(dptr: [u64; 2]) -> Sqe {
    Sqe { dptr, ..rw(nvm::READ, 0, 8) }
}

fn sgl(descriptor: SglDescriptor, len_blocks: u32) -> Sqe {
    Sqe { flags: 0x40, dptr: bytemuck::cast(descriptor), ..rw(nvm::READ, 0, len_blocks) }
}

#[test]
fn every_bad_field_gets_its_status() {
    let mut host = Host::ready();
    let page = host.alloc(8192);
    let good = read_from([page, 0]);
    let list = host.alloc(4096);
    host.write(list, bytemuck::cast_slice(&[page, page + 8]));
    let long = |dptr| Sqe { dptr, ..rw(nvm::READ, 0, 24) };
    let cases: Vec<(&str, Sqe, Status)> = vec![
        ("opcode", Sqe { opc: 0x7f, ..good }, Status::INVALID_OPCODE),
        ("write uncorrectable", Sqe { opc: 0x04, ..good }, Status::INVALID_OPCODE),
        ("namespace 0", Sqe { nsid: 0, ..good }, Status::INVALID_NAMESPACE),
        ("namespace 2", Sqe { nsid: 2, ..good }, Status::INVALID_FIELD),
        ("namespace 32", Sqe { nsid: 32, ..good }, Status::INVALID_FIELD),
        ("namespace 33", Sqe { nsid: 33, ..good }, Status::INVALID_NAMESPACE),
        ("flush of namespace 2", Sqe { nsid: 2, ..flush() }, Status::INVALID_FIELD),
        ("flush of namespace 33", Sqe { nsid: 33, ..flush() }, Status::INVALID_NAMESPACE),
        ("all namespaces", Sqe { nsid: NSID_ALL, ..good }, Status::INVALID_FIELD),
        ("fused", Sqe { flags: 1, ..good }, Status::INVALID_FIELD),
        ("metadata SGL", Sqe { flags: 0x80, ..good }, Status::INVALID_FIELD),
        ("reserved PSDT", Sqe { flags: 0xc0, ..good }, Status::INVALID_FIELD),
        ("directive", Sqe { opc: nvm::WRITE, cdw12: 7 | 1 << 20, ..good }, Status::INVALID_FIELD),
        ("end", Sqe { cdw10: BLOCKS as u32 - 7, ..good }, Status::LBA_OUT_OF_RANGE),
        ("far", Sqe { cdw11: 1, ..good }, Status::LBA_OUT_OF_RANGE),
        ("wrapping", Sqe { cdw10: u32::MAX, cdw11: u32::MAX, ..good }, Status::LBA_OUT_OF_RANGE),
        ("MDTS", Sqe { cdw12: 2048, ..good }, Status::INVALID_FIELD),
        ("MDTS of compare", Sqe { opc: nvm::COMPARE, cdw12: 2048, ..good }, Status::INVALID_FIELD),
        ("VSL", Sqe { opc: nvm::VERIFY, cdw12: 2048, ..good }, Status::INVALID_FIELD),
        ("zeroes out of range", rw(nvm::WRITE_ZEROES, BLOCKS, 1), Status::LBA_OUT_OF_RANGE),
        ("verify out of range", rw(nvm::VERIFY, BLOCKS, 1), Status::LBA_OUT_OF_RANGE),
        ("PRP1 odd", read_from([page + 2, 0]), Status::PRP_OFFSET_INVALID),
        ("PRP2 offset", read_from([page + 512, page + 4]), Status::PRP_OFFSET_INVALID),
        ("list not on 8 bytes", long([page, list + 4]), Status::PRP_OFFSET_INVALID),
        ("list entry with offset", long([page, list]), Status::PRP_OFFSET_INVALID),
        ("list nowhere", long([page, NOWHERE]), Status::DATA_TRANSFER_ERROR),
        ("PRP1 nowhere", read_from([NOWHERE, 0]), Status::DATA_TRANSFER_ERROR),
        ("PRP1 at the very end", read_from([u64::MAX - 3, 0]), Status::DATA_TRANSFER_ERROR),
        ("PRP2 nowhere", read_from([page + 512, NOWHERE]), Status::DATA_TRANSFER_ERROR),
        (
            "ranges nowhere",
            Sqe { dptr: [NOWHERE, 0], cdw11: dsm::AD, ..rw(nvm::DATASET_MANAGEMENT, 0, 1) },
            Status::DATA_TRANSFER_ERROR,
        ),
    ];
    let before = host.controller.stats();
    for (name, sqe, expected) in &cases {
        let status = host.io(*sqe).status();
        assert_eq!(status.code(), *expected, "{name}");
        let final_one = *expected != Status::DATA_TRANSFER_ERROR;
        assert_eq!(status.0 & Status::DNR != 0, final_one, "{name}");
    }
    let stats = host.controller.stats();
    assert_eq!(stats.rejected - before.rejected, cases.len() as u64);
    assert!(host.seen.is_empty(), "a refused command reached the device");
    assert_eq!(host.io(good).status(), Status::SUCCESS);
}

#[test]
fn optional_commands_are_refused_where_the_device_lacks_them() {
    let mut lacking = config();
    (lacking.discard, lacking.write_zeroes) = (false, false);
    let mut host = Host::ready_with(lacking);
    for opc in [nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT] {
        assert_eq!(host.io(rw(opc, 0, 1)).status().code(), Status::INVALID_OPCODE);
    }
}

#[test]
fn device_errors_become_nvme_statuses() {
    let mut host = Host::ready();
    let page = host.alloc(4096);
    let write = |sqe: Sqe| Sqe { opc: nvm::WRITE, ..sqe };
    for (error, sqe, expected) in [
        (DeviceError::Medium, read_from([page, 0]), Status::UNRECOVERED_READ),
        (DeviceError::Medium, write(read_from([page, 0])), Status::WRITE_FAULT),
        (DeviceError::NoSpace, write(read_from([page, 0])), Status::CAPACITY_EXCEEDED),
        (DeviceError::OutOfRange, read_from([page, 0]), Status::LBA_OUT_OF_RANGE),
        (DeviceError::Memory, read_from([page, 0]), Status::DATA_TRANSFER_ERROR),
        (DeviceError::Unsupported, rw(nvm::WRITE_ZEROES, 0, 1), Status::INVALID_OPCODE),
        (DeviceError::Gone, flush(), Status::NAMESPACE_NOT_READY),
    ] {
        host.fail = Some(error);
        assert_eq!(host.io(sqe).status(), expected, "{error:?}");
    }
}

#[test]
fn data_moves_through_every_shape_of_prp() {
    let mut host = Host::ready();
    // (first byte of the data in its page, blocks of 512)
    for (n, (offset, blocks)) in
        [(0, 1), (0, 8), (512, 8), (4092, 1), (4, 2), (0, 16), (2048, 17), (0, 256), (512, 2048), (0, 2048)]
            .into_iter()
            .enumerate()
    {
        let len = blocks as usize * 512;
        let source = host.alloc(len as u64 + 4096) + offset;
        let data = pattern(len, n as u8);
        host.write(source, &data);
        let write = host.rw(nvm::WRITE, 100, blocks, source, len as u64);
        assert_eq!(host.io(write).status(), Status::SUCCESS, "{offset} {blocks}");
        assert_eq!(host.tenant()[100 * 512..][..len], data);
        let target = host.alloc(len as u64 + 4096) + offset;
        let read = host.rw(nvm::READ, 100, blocks, target, len as u64);
        assert_eq!(host.io(read).status(), Status::SUCCESS, "{offset} {blocks}");
        assert_eq!(host.read(target, len), data);
    }
    host.check_guards();
}

#[test]
fn a_prp_list_goes_on_in_the_next_list_page() {
    let mut host = Host::ready();
    let data = host.alloc(16 * 4096);
    // The list starts 3 entries before the end of its page: two pages, then the pointer to the rest.
    let (first, second) = (host.alloc(4096), host.alloc(4096));
    // Pages in reverse, so that nothing merges.
    let page = |n: u64| data + (15 - n) * 4096;
    let entries: Vec<u64> = (1..16).map(page).collect();
    host.write(first + 4096 - 24, bytemuck::cast_slice(&[entries[0], entries[1], second]));
    host.write(second, bytemuck::cast_slice(&entries[2..]));
    let expected = pattern(16 * 4096, 9);
    for n in 0..16 {
        host.write(page(n), &expected[n as usize * 4096..][..4096]);
    }
    let write = Sqe { dptr: [page(0), first + 4096 - 24], ..rw(nvm::WRITE, 0, 128) };
    // More than once: buffers with many segments are used again.
    for _ in 0..3 {
        host.disk[BASE_BYTES as usize..][..16 * 4096].fill(0);
        assert_eq!(host.io(write).status(), Status::SUCCESS);
        assert_eq!(host.tenant()[..16 * 4096], expected);
    }
    // A list that just fits has no pointer at its end.
    host.write(first + 4096 - 24, bytemuck::cast_slice(&entries[..3]));
    let four = Sqe { cdw12: 31, ..write };
    host.disk[BASE_BYTES as usize..][..4 * 4096].fill(0);
    assert_eq!(host.io(four).status(), Status::SUCCESS);
    assert_eq!(host.tenant()[..4 * 4096], expected[..4 * 4096]);
    host.write(first + 4096 - 24, bytemuck::cast_slice(&[entries[0], entries[1], second]));
    // A list pointer that is not a page's start is as invalid as any other entry.
    host.write(first + 4096 - 8, bytemuck::bytes_of(&(second + 8)));
    assert_eq!(host.io(write).status().code(), Status::PRP_OFFSET_INVALID);
    // Buffers that are kept for reuse pin no memory.
    host.controller.dma_unmap(RAM_IOVA, RAM_BYTES).expect("mapped");
    assert_eq!(host.controller.take_unmapped(&mut ()), Some((RAM_IOVA, RAM_BYTES)));
}

#[test]
fn data_moves_through_sgls() {
    let mut host = Host::ready();
    let data = host.alloc(4 * 4096);
    let expected = pattern(8192, 3);
    host.disk[BASE_BYTES as usize..][..8192].copy_from_slice(&expected);
    let block = |at, len| SglDescriptor::new(sgl_type::DATA_BLOCK, at, len);

    assert_eq!(host.io(sgl(block(data + 4, 4096), 8)).status(), Status::SUCCESS);
    assert_eq!(host.read(data + 4, 4096), expected[..4096]);

    let (first, last) = (host.alloc(4096), host.alloc(4096));
    let pieces = [block(data, 100), block(data + 9000, 0), SglDescriptor::new(sgl_type::LAST_SEGMENT, last, 32)];
    host.write(first, bytemuck::cast_slice(&pieces));
    host.write(last, bytemuck::cast_slice(&[block(data + 4096, 8000), block(data + 200, 92)]));
    assert_eq!(host.io(sgl(SglDescriptor::new(sgl_type::SEGMENT, first, 48), 16)).status(), Status::SUCCESS);
    assert_eq!(host.read(data, 100), expected[..100]);
    assert_eq!(host.read(data + 4096, 8000), expected[100..8100]);
    assert_eq!(host.read(data + 200, 92), expected[8100..]);
}

#[test]
fn every_bad_sgl_gets_its_status() {
    let mut host = Host::ready();
    let (data, segment, last) = (host.alloc(4096), host.alloc(65536), host.alloc(4096));
    let block = |len| SglDescriptor::new(sgl_type::DATA_BLOCK, data, len);
    let of = |kind, len| SglDescriptor::new(kind, segment, len);
    let link = |kind| SglDescriptor::new(kind, last, 16);
    let cases = [
        ("short", block(4092), vec![], Status::SGL_DATA_LENGTH_INVALID),
        ("long", block(4100), vec![], Status::SGL_DATA_LENGTH_INVALID),
        ("odd length", block(4095), vec![], Status::SGL_GRANULARITY_INVALID),
        ("odd address", SglDescriptor { address: data + 1, ..block(4096) }, vec![], Status::SGL_GRANULARITY_INVALID),
        ("sub type", SglDescriptor { kind: 1, ..block(4096) }, vec![], Status::SGL_TYPE_INVALID),
        ("bit bucket", of(sgl_type::BIT_BUCKET, 4096), vec![], Status::SGL_TYPE_INVALID),
        ("keyed", of(sgl_type::KEYED_DATA_BLOCK, 4096), vec![], Status::SGL_TYPE_INVALID),
        ("nowhere", SglDescriptor { address: NOWHERE, ..block(4096) }, vec![], Status::DATA_TRANSFER_ERROR),
        ("empty segment", of(sgl_type::SEGMENT, 0), vec![], Status::INVALID_SGL_SEGMENT),
        ("segment of 20 bytes", of(sgl_type::LAST_SEGMENT, 20), vec![], Status::INVALID_SGL_SEGMENT),
        ("huge segment", of(sgl_type::LAST_SEGMENT, 0xffff_fff0), vec![], Status::INVALID_SGL_COUNT),
        (
            "segment nowhere",
            SglDescriptor { address: NOWHERE, ..of(sgl_type::LAST_SEGMENT, 16) },
            vec![],
            Status::DATA_TRANSFER_ERROR,
        ),
        (
            "segment at the very end",
            SglDescriptor { address: u64::MAX - 15, ..of(sgl_type::LAST_SEGMENT, 1024) },
            vec![],
            Status::DATA_TRANSFER_ERROR,
        ),
        (
            "last ends in a link",
            of(sgl_type::LAST_SEGMENT, 32),
            vec![block(4096), link(sgl_type::LAST_SEGMENT)],
            Status::INVALID_SGL_SEGMENT,
        ),
        (
            "segment ends in data",
            of(sgl_type::SEGMENT, 32),
            vec![block(2048), block(2048)],
            Status::INVALID_SGL_SEGMENT,
        ),
        (
            "link in the middle",
            of(sgl_type::SEGMENT, 32),
            vec![link(sgl_type::LAST_SEGMENT), block(4096)],
            Status::INVALID_SGL_COUNT,
        ),
        (
            "bucket inside",
            of(sgl_type::LAST_SEGMENT, 16),
            vec![of(sgl_type::BIT_BUCKET, 4096)],
            Status::SGL_TYPE_INVALID,
        ),
        ("too little inside", of(sgl_type::LAST_SEGMENT, 16), vec![block(512)], Status::SGL_DATA_LENGTH_INVALID),
        ("an endless chain", of(sgl_type::SEGMENT, 16), vec![of(sgl_type::SEGMENT, 16)], Status::INVALID_SGL_COUNT),
    ];
    for (name, descriptor, content, expected) in cases {
        host.write(segment, bytemuck::cast_slice(&content));
        assert_eq!(host.io(sgl(descriptor, 8)).status().code(), expected, "{name}");
    }
    assert!(host.seen.is_empty());
}

#[test]
fn writes_are_durable_as_the_guest_asks() {
    let mut host = Host::ready();
    let page = host.alloc(4096);
    let write = Sqe { opc: nvm::WRITE, ..read_from([page, 0]) };
    let fua = Sqe { cdw12: write.cdw12 | dword12::FUA, ..write };
    host.io(write);
    host.io(fua);
    host.io(flush());
    assert_eq!(host.io(Sqe { nsid: NSID_ALL, ..flush() }).status(), Status::SUCCESS);
    let seen: Vec<_> = std::mem::take(&mut host.seen).iter().map(|command| (command.op, command.fua)).collect();
    assert_eq!(seen, [(Op::Write, false), (Op::Write, true), (Op::Flush, false), (Op::Flush, false)]);

    // Cache disabled: every write is durable. A flush goes out all the same, for writes of before.
    let off = Sqe { opc: nvme_spec::opcode::admin::SET_FEATURES, cdw10: 6, cdw11: 0, ..Sqe::zeroed() };
    assert_eq!(host.admin(off).status(), Status::SUCCESS);
    host.io(write);
    host.io(rw(nvm::WRITE_ZEROES, 8, 1));
    assert_eq!(host.io(flush()).status(), Status::SUCCESS);
    let seen: Vec<_> = host.seen.iter().map(|command| (command.op, command.fua)).collect();
    assert_eq!(seen, [(Op::Write, true), (Op::WriteZeroes, true), (Op::Flush, false)]);
}

#[test]
fn zeroes_are_written_without_data() {
    let mut host = Host::ready();
    let sqe = rw(nvm::WRITE_ZEROES, 8, 0x4000 - 8);
    assert_eq!(host.io(sqe).status(), Status::SUCCESS);
    assert!(host.tenant()[8 * 512..].iter().all(|byte| *byte == 0));
    assert!(host.tenant()[..8 * 512].iter().all(|byte| *byte != 0));
    host.check_guards();
}

fn ranges(host: &mut Host, ranges: &[(u64, u32)], attributes: u32) -> Sqe {
    let data = host.alloc(4096);
    let ranges: Vec<_> = ranges.iter().map(|(slba, nlb)| DsmRange { cattr: 0, nlb: *nlb, slba: *slba }).collect();
    host.write(data, bytemuck::cast_slice(&ranges));
    let count = ranges.len() as u32 - 1;
    Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 1, dptr: [data, 0], cdw10: count, cdw11: attributes, ..Sqe::zeroed() }
}

#[test]
fn each_range_of_a_deallocation_is_one_discard() {
    let mut host = Host::ready();
    let sqe = ranges(&mut host, &[(0, 8), (100, 0), (64, 16), (BLOCKS - 1, 1)], dsm::AD);
    host.submit(1, sqe);
    host.submit(1, flush());
    assert_eq!(host.controller.backlog(1), 2);
    host.fetch_all();
    let discard = |slba: u64, blocks: u64| PLACE.command(Op::Discard, slba * 512, blocks * 512);
    assert_eq!(host.seen[..3], [discard(0, 8), discard(64, 16), discard(BLOCKS - 1, 1)]);
    assert_eq!(host.seen[3].op, Op::Flush);
    // It completes with its last range only.
    host.in_flight.rotate_right(1);
    for _ in 0..3 {
        host.finish_one();
    }
    assert!(!host.controller.is_idle(), "the last range is in flight");
    assert!(host.next_completion(1).is_some(), "the flush");
    assert_eq!(host.peek_completion(1), None);
    host.finish_all();
    assert!(host.controller.is_idle());
    assert_eq!(host.completions(1).len(), 1);
}

#[test]
fn a_deallocation_fails_as_a_whole() {
    let mut host = Host::ready();
    let outside = ranges(&mut host, &[(0, 8), (BLOCKS - 1, 2)], dsm::AD);
    assert_eq!(host.io(outside).status().code(), Status::LBA_OUT_OF_RANGE);
    let hint = ranges(&mut host, &[(0, 8)], dsm::IDR);
    assert_eq!(host.io(hint).status(), Status::SUCCESS);
    assert!(host.seen.is_empty());
    // The first error of a range is the command's.
    let sqe = ranges(&mut host, &[(0, 8), (8, 8), (16, 8)], dsm::AD);
    host.submit(1, sqe);
    host.fetch_all();
    host.finish_one();
    host.fail = Some(DeviceError::Medium);
    host.finish_one();
    host.fail = None;
    host.finish_all();
    assert_eq!(host.next_completion(1).map(|cqe| cqe.status()), Some(Status::WRITE_FAULT));
}

#[test]
fn two_hundred_and_fifty_six_ranges_may_cross_a_page() {
    let mut host = Host::ready();
    let list: Vec<_> = (0..256).map(|n| (n * 8, 1)).collect();
    let whole = ranges(&mut host, &list, dsm::AD);
    let data = host.read(whole.dptr[0], 4096);
    let moved = host.alloc(8192) + 2048;
    host.write(moved, &data);
    let sqe = Sqe { dptr: host.prps(moved, 4096), ..whole };
    assert_eq!(host.io(sqe).status(), Status::SUCCESS);
    assert_eq!(host.seen.len(), 256);
}

#[test]
fn compare_and_verify_read_the_device() {
    let mut host = Host::ready();
    let len = 3 * 4096 + 512;
    let expected = pattern(len, 1);
    host.disk[BASE_BYTES as usize..][..len].copy_from_slice(&expected);
    let data = host.alloc(len as u64);
    host.write(data, &expected);
    let compare = host.rw(nvm::COMPARE, 0, 25, data, len as u64);
    assert_eq!(host.io(compare).status(), Status::SUCCESS);
    host.write(data + len as u64 - 1, &[expected[len - 1] ^ 1]);
    assert_eq!(host.io(compare).status(), Status::COMPARE_FAILURE);
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 25)).status(), Status::SUCCESS);
    host.fail = Some(DeviceError::Medium);
    assert_eq!(host.io(compare).status(), Status::UNRECOVERED_READ);
    assert_eq!(host.io(rw(nvm::VERIFY, 0, 25)).status(), Status::UNRECOVERED_READ);
    assert_eq!(host.controller.stats().bounced_bytes, 5 * len as u64);
    assert!(host.seen.iter().all(|command| command.op == Op::Read));
}

#[test]
fn bounce_memory_is_bounded_and_the_rest_waits() {
    let mut host = Host::ready();
    for _ in 0..20 {
        host.submit(1, rw(nvm::VERIFY, 0, 2048));
    }
    host.fetch_all();
    assert_eq!((host.in_flight.len(), host.controller.backlog(1)), (8, 0));
    // One ends, one more may start; other commands behind them keep their order.
    host.finish_one();
    assert_eq!(host.controller.backlog(1), 12);
    host.fetch_all();
    assert_eq!(host.in_flight.len(), 8);
    host.run();
    let completions = host.completions(1);
    assert_eq!(completions.len(), 20);
    assert!(completions.iter().all(|cqe| cqe.status().is_success()));
}

/// Empty descriptors cost the poller time and move nothing: the tenant is charged for them, also for those of a list
/// that is refused.
#[test]
fn long_scatter_lists_are_charged() {
    let mut host = Host::ready();
    let (data, list) = (host.alloc(4096), host.alloc(1024 * 16));
    let block = |len| SglDescriptor::new(sgl_type::DATA_BLOCK, data, len);
    for (empty, last, work, status) in [
        (0, 4096, 0, Status::SUCCESS),
        (31, 4096, 0, Status::SUCCESS),
        (1000, 4096, 1001 - 32, Status::SUCCESS),
        (1000, 512, 1001 - 32, Status::SGL_DATA_LENGTH_INVALID),
    ] {
        let mut descriptors = vec![block(0); empty];
        descriptors.push(block(last));
        host.write(list, bytemuck::cast_slice(&descriptors));
        let all = SglDescriptor::new(sgl_type::LAST_SEGMENT, list, 16 * descriptors.len() as u32);
        assert_eq!(host.io(sgl(all, 8)).status().code(), status, "{empty} empty descriptors");
        assert_eq!(host.controller.take_work(), work, "{empty} empty descriptors");
        assert_eq!(host.controller.take_work(), 0, "told once");
    }
    host.io(sgl(block(4096), 8));
    assert_eq!(host.controller.take_work(), 0);
}
