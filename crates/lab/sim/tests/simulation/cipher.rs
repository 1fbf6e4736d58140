//! What the cipher's time does to an encrypted tenant.

use sim::workload::{Access, BlockSize, Fio, Workload};
use sim::{Scenario, Tenant};
use ssd_model::{Cipher, Profile};

use crate::common::{BEST_EFFORT, clean, reader, scenario, steady};

/// Mean latency of one command of this size at a time, in ns.
fn mean_ns(encrypted_sector_bytes: Option<u32>, read_percent: u8, bytes: u32) -> f64 {
    let access = Access { block_sizes: vec![BlockSize { bytes, weight: 1 }], ..Access::random_4k(read_percent) };
    let workload = Workload::Fio(Fio { jobs: 1, iodepth: 1, access });
    let tenant = Tenant { encrypted_sector_bytes, workload, ..reader(BEST_EFFORT, 1, 1) };
    let cipher = Some(Cipher { sector_512_ns: 400, sector_4096_ns: 1_000 });
    let profile = Profile { cipher, ..Profile::p5800x() };
    clean(&Scenario { profile, costs: steady(), ..scenario(vec![tenant]) }).tenants[0].latency.mean_ns
}

/// A cipher that costs nothing, one that is charged twice, or one that a direction or a size escapes.
#[test]
fn an_encrypted_tenant_waits_for_the_cipher_once() {
    for read_percent in [0, 100] {
        for bytes in [4_096, 16_384] {
            let added_ns = |sectors| mean_ns(Some(sectors), read_percent, bytes) - mean_ns(None, read_percent, bytes);
            for (sectors, block_ns) in [(4_096, 1_000), (512, 3_200)] {
                let wanted_ns = f64::from(bytes / 4_096 * block_ns);
                let found_ns = added_ns(sectors);
                let what = format!("{read_percent} % reads of {bytes} bytes in sectors of {sectors}");
                assert!((found_ns - wanted_ns).abs() < 1.0, "{what}: {found_ns} ns and {wanted_ns} ns");
            }
        }
    }
}
