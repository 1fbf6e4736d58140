//! What it costs that a disk may lie in ranges, or be thin: a fetch and a completion through [`Placed`], and without
//! it.
//!
//! `cargo bench -p io-model --bench placed [-- --json]`. Both sides take turns in one run, 4 KiB at random places; the
//! best of many short runs of each is shown, since whatever else the machine does only adds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use io_model::{Extents, Fetch, IoBuf, Op, Outcome, Piece, PieceMap, Place, Placed, Source, TenantId, Token};

const DISK_BYTES: u64 = 1 << 40;
const PIECE_BYTES: u64 = 1 << 20;
const COMMANDS: u32 = 20_000;
const RUNS: u32 = 300;

/// A front end that always has a command.
struct Front {
    random: u64,
    ended: u32,
}

impl Source for Front {
    fn live_vqs(&self) -> u128 {
        2
    }

    fn backlog(&mut self, _vq: u16) -> u32 {
        32
    }

    #[inline]
    fn fetch(&mut self, vq: u16) -> Fetch {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset_bytes = (self.random >> 20) % (DISK_BYTES / 4096) * 4096;
        let command = Place::whole_drive(TenantId(0)).command(Op::Read, offset_bytes, 4096);
        Fetch::Command(command, IoBuf::default(), Token::new(vq, 0, 7))
    }

    #[inline]
    fn complete(&mut self, token: Token, _outcome: Outcome, _buf: IoBuf) {
        self.ended += token.spend().2;
    }

    fn notify(&mut self) {}

    fn set_wakeup(&mut self, _wanted: bool) {}
}

#[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
fn run(source: &mut impl Source) -> f64 {
    let start = Instant::now();
    for _ in 0..COMMANDS {
        if black_box(source.live_vqs()) != 0
            && black_box(source.backlog(1)) > 0
            && let Fetch::Command(command, buf, token) = source.fetch(1)
        {
            black_box(&command);
            source.complete(token, Ok(()), buf);
        }
    }
    start.elapsed().as_nanos() as f64 / f64::from(COMMANDS)
}

/// Equal ranges, each somewhere else.
fn ranges(count: u64) -> Extents {
    let each = DISK_BYTES / count;
    Extents::new((0..count).map(|at| ((count - at) * 2 * each, each)))
}

/// A thin disk, written everywhere, backwards.
fn thin() -> Extents {
    let map = PieceMap::new(PIECE_BYTES, DISK_BYTES, drop);
    (0..map.count()).for_each(|at| assert!(map.set(at, Piece::Own(map.count() - at))));
    Extents::thin(Arc::new(map))
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let mut plain = Front { random: 1, ended: 0 };
    let disks = [("1 range", ranges(1)), ("4 ranges", ranges(4)), ("16 ranges", ranges(16)), ("thin", thin())];
    let mut sources = disks.map(|(name, disk)| {
        let source = Placed::new(Front { random: 1, ended: 0 }, vec![disk]);
        (name, source, f64::INFINITY)
    });
    let mut without = f64::INFINITY;
    for _ in 0..RUNS {
        without = run(black_box(&mut plain)).min(without);
        for (_, source, best) in &mut sources {
            *best = run(black_box(source)).min(*best);
        }
    }
    if json {
        let row = |(name, _, best): &(&str, Placed<Front>, f64)| {
            format!(r#"{{"disk":"{name}","added_ns_per_command":{:.2}}}"#, best - without)
        };
        println!(r#"{{"placed":[{}]}}"#, sources.iter().map(row).collect::<Vec<_>>().join(","));
        return;
    }
    println!("{:>9} {:>12} {:>12}", "disk", "ns/command", "added");
    println!("{:>9} {without:>12.2} {:>12}", "-", "-");
    for (name, _, best) in &sources {
        println!("{name:>9} {best:>12.2} {:>12.2}", best - without);
    }
}
