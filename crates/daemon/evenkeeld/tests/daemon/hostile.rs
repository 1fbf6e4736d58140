//! Every attack on the daemon that there is, beside victims: their data stay right, they and the API are
//! served in time, and the daemon ends when it is told to, with the attack still on.
//!
//! `--nocapture` shows what everybody waited, beside tenants that are merely busy and beside the attack.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use hostile::attacks::{ATTACKS, named};
use hostile::siege;

/// Of busy neighbours, and then of the attack.
const SPAN: Duration = Duration::from_secs(1);

/// One siege at a time, whatever process it is in: they measure. Held until it is dropped.
fn alone() -> File {
    let file = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("siege")).expect("a file to lock");
    file.lock().expect("a lock");
    file
}

fn withstand(attack: &str) {
    let _alone = alone();
    let attack = named(attack).expect("there is such an attack");
    let report = siege::run(Path::new(env!("CARGO_BIN_EXE_evenkeeld")), attack, SPAN).expect("the siege is held");
    println!("{report}");
    if let Some(why) = &report.skipped {
        println!("{}: skipped, {why}", report.attack);
    }
    assert_eq!(report.problems(), Vec::<String>::new(), "{report}");
}

macro_rules! attacks {
    ($($attack:ident)*) => {
        $(
            #[test]
            fn $attack() {
                withstand(stringify!($attack));
            }
        )*

        #[test]
        fn every_attack_is_tried() {
            let tried = [$(stringify!($attack)),*];
            assert_eq!(tried.to_vec(), ATTACKS.iter().map(|attack| attack.name).collect::<Vec<_>>());
        }
    };
}

attacks! {
    fuse_file_as_memory
    fuse_file_as_interrupt
    fuse_file_with_a_message_that_takes_none
    fuse_file_as_memory_table
    fuse_file_as_call
    a_device_as_memory
    an_interrupt_that_blocks
    a_call_that_blocks
    lingering_sockets_for_who_refuses
    lingering_sockets_in_sockets_of_messages
    all_of_the_address_space
    sparse_memory_filled_by_reads
    memory_punched_under_doorbells
    memory_punched_under_shadow_doorbells
    memory_truncated_under_writes
    memory_on_a_full_tmpfs
    memory_tables_replaced_under_reads
    large_log_pages
    empty_scatter_lists
    long_indirect_chains
    register_reads_without_reading
    maps_and_unmaps
    clients_that_come_and_go
}
