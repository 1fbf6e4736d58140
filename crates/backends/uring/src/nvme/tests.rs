use super::*;

#[test]
fn commands_name_their_blocks() {
    let namespace = Namespace::pretended();
    let lba = (1_u64 << 33) + 5;
    let plain = |opcode, data_len, cdws| Passed::plain(IoCommand { opcode, nsid: 3, data: 0, data_len, cdws });
    let read = namespace.transfer(false, false, lba * 512, 4096, Data::One(0));
    assert_eq!(read, plain(opcode::nvm::READ, 4096, [5, 2, 7]), "the number of blocks is 0's based");
    let write = namespace.transfer(true, true, 512, 512, Data::One(0));
    assert_eq!(write, plain(opcode::nvm::WRITE, 512, [1, 0, 1 << 30]), "FUA");
    let zeroing = namespace.zeroing(false, 1024, 65_536 * 512);
    assert_eq!(zeroing, plain(opcode::nvm::WRITE_ZEROES, 0, [2, 0, 0xffff]));
    assert_eq!(namespace.flush(), plain(opcode::nvm::FLUSH, 0, [0; 3]));
}

#[test]
fn data_in_pieces_are_a_list_and_its_length() {
    let iovecs = [Iovec::of(0x1000, 512), Iovec::of(0x3000, 3584)];
    let Passed { request, command } = Namespace::pretended().transfer(true, false, 0, 4096, Data::List(&iovecs));
    assert_eq!(request, NVME_URING_CMD_IO_VEC);
    assert_eq!((command.data, command.data_len), (iovecs.as_ptr().addr() as u64, 2));
    assert_eq!(command.cdws, [0, 0, 7]);
}

#[test]
fn a_discard_carries_its_range() {
    let mut range = DsmRange::default();
    let Passed { request, command } = Namespace::pretended().discard(4096, 1024, &mut range);
    assert_eq!(range, DsmRange { cattr: 0, nlb: 2, slba: 8 });
    assert_eq!((request, command.data, command.data_len), (NVME_URING_CMD_IO, (&raw const range).addr() as u64, 16));
    assert_eq!((command.opcode, command.cdws), (opcode::nvm::DATASET_MANAGEMENT, [0, 4, 0]));
}

#[test]
fn what_one_command_takes_is_what_the_kernel_found_out() {
    let queue = tempfile::tempdir().unwrap();
    let most = |limits: &[(&str, u64)], block_bytes| {
        for (name, limit) in limits {
            std::fs::write(queue.path().join(name), format!("{limit}\n")).unwrap();
        }
        Most::of(queue.path(), block_bytes)
    };
    let unknown = Most { moved: 65_536 * 512, zeroed: 0, discarded: 0 };
    assert_eq!(most(&[], 512), unknown, "a command has no more than 65536 blocks");
    let found = most(&[("max_hw_sectors_kb", 512), ("write_zeroes_max_bytes", 33_553_920)], 512);
    assert_eq!(found, Most { moved: 512 << 10, zeroed: 33_553_920, discarded: 0 });
    let found = most(&[("max_segments", 127), ("discard_max_bytes", 1 << 40)], 4096);
    assert_eq!(found, Most { moved: 126 * 4096, zeroed: 33_550_336, discarded: 1 << 40 });
    assert_eq!(most(&[("max_segments", 1)], 4096).moved, 4096, "never nothing");
}

#[test]
fn what_is_no_nvme_drive_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ng0n1");
    let told = |path: &Path| {
        let block_device = File::open("/dev/null").unwrap();
        Namespace::open(path, &block_device, directory.path()).unwrap_err().to_string()
    };
    assert!(told(&path).contains("takes no NVMe commands: No such file"));
    std::fs::write(&path, "").unwrap();
    assert!(told(&path).contains("it is no namespace of an NVMe drive"));
}
