//! Detects queues that wait while others are served.

/// How many of its turns a waiting queue may miss. A turn takes everyone's queues once, by weight: in commands, and in
/// as many blocks as its own next command has, for a policy may go by either.
const TURNS: u64 = 32;

/// What everybody was served since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    pub(crate) commands: u64,
    /// Of 4 KiB, a smaller command counting as one.
    pub(crate) blocks: u64,
}

/// One VQ at a look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    /// Blocks of the command that is next; 0 if none waits.
    pub(crate) next_blocks: u64,
    /// Blocks of the largest command that its tenant was served since it was last served itself, that one included: by
    /// so much its tenant may be ahead of its turn, whose other VQs are served for the same weight.
    pub(crate) ahead_blocks: u64,
    /// Commands fetched from it since the start, and such that came back: who sent much at once has its turn until that
    /// is done.
    pub(crate) served: u64,
}

/// Since when a VQ waits.
#[derive(Debug, Clone, Copy, Default)]
struct Since {
    waiting: bool,
    own: u64,
    at_ns: u64,
    others: Served,
}

/// Looks at a tenant's VQs now and then. A VQ starves if none of its commands was fetched or came back for longer than
/// the scenario's limit *and* the others were served many times what its turn takes meanwhile; so a drive that stalls
/// starves nobody, nor does a small weight.
#[derive(Debug)]
pub(crate) struct Watch {
    limit_ns: u64,
    /// Commands that everybody has fetched in one turn of a VQ of this tenant's.
    turn: u64,
    queues: Vec<Since>,
}

impl Watch {
    /// `turn`: see [`turns`](super::turns()).
    pub(crate) fn new(limit_ns: u64, turn: u64) -> Self {
        Self { limit_ns, turn, queues: Vec::new() }
    }

    /// The first VQ that starves, and for how long; each is reported once, until it is served again.
    pub(crate) fn look(
        &mut self,
        queues: impl Iterator<Item = Queue>,
        now_ns: u64,
        served: Served,
    ) -> Option<(usize, u64)> {
        let mut starving = None;
        for (at, queue) in queues.enumerate() {
            if self.queues.len() <= at {
                self.queues.push(Since::default());
            }
            let since = &mut self.queues[at];
            let waiting = queue.next_blocks > 0;
            if !waiting || !since.waiting || queue.served != since.own {
                *since = Since { waiting, own: queue.served, at_ns: now_ns, others: served };
                continue;
            }
            let waited_ns = now_ns - since.at_ns;
            let fair = TURNS * self.turn;
            let passed_over = served.commands - since.others.commands > fair
                && served.blocks - since.others.blocks > fair * queue.next_blocks.max(queue.ahead_blocks);
            if waited_ns > self.limit_ns && passed_over {
                since.waiting = false;
                starving = starving.or(Some((at, waited_ns)));
            }
        }
        starving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_passed_over_starves() {
        let mut watch = Watch::new(100, 2);
        let mut look = |waiting: bool, own, now_ns, served| {
            let queue = Queue { next_blocks: waiting.into(), ahead_blocks: 0, served: own };
            watch.look([queue].into_iter(), now_ns, Served { commands: served, blocks: served })
        };
        assert_eq!(look(true, 0, 10, 0), None);
        assert_eq!(look(true, 0, 1_000, 20), None, "the drive did next to nothing meanwhile");
        assert_eq!(look(true, 0, 1_100, 200), Some((0, 1_090)));
        assert_eq!(look(true, 0, 1_110, 210), None, "told already");
        assert_eq!(look(true, 5, 2_000, 1_000), None, "served again");
        assert_eq!(look(false, 5, 3_000, 2_000), None);
        assert_eq!(look(true, 5, 3_010, 3_000), None, "it waits anew");
        assert_eq!(look(true, 5, 3_020, 4_000), None, "not for long");
    }

    #[test]
    fn small_weights_wait_for_large_ones() {
        let watch = Watch::new(100, 1_001);
        let mut watches = [watch, Watch::new(100, 1_001)];
        // One whose next command is large, and one that pays for a sibling's.
        let mut look = |now_ns, commands, blocks| {
            let queues =
                [(8, 0), (1, 8)].map(|(next_blocks, ahead_blocks)| Queue { next_blocks, ahead_blocks, served: 0 });
            let mut each = watches
                .iter_mut()
                .zip(queues)
                .map(|(watch, queue)| watch.look([queue].into_iter(), now_ns, Served { commands, blocks }));
            let [large, ahead] = [each.next(), each.next()];
            assert_eq!(large, ahead);
            large.flatten()
        };
        assert_eq!(look(0, 0, 0), None);
        assert_eq!(look(1_000, 30_000, 300_000), None);
        assert_eq!(look(2_000, 33_000, 250_000), None, "its next command is large");
        assert_eq!(look(3_000, 33_000, 300_000), Some((0, 3_000)));
    }
}
