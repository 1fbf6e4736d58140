//! How many requests a tenant's rings completed over several lives of the daemon, by its log.
//!
//! A ring's used index lies in the guest's memory and counts, modulo 65536, what was completed since the
//! driver set the ring up. The daemon logs it where it takes a ring up and where it lays one down; a killed
//! daemon does only the former, and the next life's first index tells how far it came.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// What one line of the log says of a ring.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Resumes { used: u16, taken_over: u64 },
    Stopped { used: u16 },
}

/// One ring, as far as the log has been read.
#[derive(Debug, Default)]
struct Ring {
    used: u16,
    runs: bool,
    completed: u64,
}

/// All rings of one tenant.
#[derive(Debug, Default)]
pub struct Ledger {
    tenant: String,
    /// An NVMe client that a keeper has: its rings' indices are not logged.
    is_kept: bool,
    rings: BTreeMap<u32, Ring>,
    /// Lives of the daemon that took up every ring.
    pub lives: u64,
    /// Requests that a life found unfinished and took over.
    pub taken_over: u64,
}

impl Ledger {
    /// An empty ledger; the first index that it sees of a ring counts as its start.
    pub fn new(tenant: &str) -> Self {
        Self { tenant: tenant.to_owned(), ..Self::default() }
    }

    /// For an NVMe controller whose client a keeper has.
    pub fn of_controller(tenant: &str) -> Self {
        Self { is_kept: true, ..Self::new(tenant) }
    }

    /// What was entered so far; the next one begins empty.
    pub fn begin_anew(&mut self) -> Self {
        let (tenant, is_kept) = (self.tenant.clone(), self.is_kept);
        std::mem::replace(self, Self { tenant, is_kept, ..Self::default() })
    }

    /// Whether a life has taken up what there is of the tenant.
    ///
    /// # Errors
    /// When a line of the tenant's can't be read.
    pub fn is_taken_up(&self, log: &str, queues: u32) -> Result<bool> {
        if self.is_kept {
            return Ok(controller_taken_up(log, &self.tenant)?.is_some());
        }
        Ok(taken_up(log, &self.tenant)? >= queues)
    }

    /// Enters the whole log of one life of the daemon.
    ///
    /// # Errors
    /// When a line can't be read, or a ring's used index is none that follows from what was before.
    pub fn enter(&mut self, log: &str, queues: u32) -> Result<()> {
        if self.is_kept {
            let taken_up = controller_taken_up(log, &self.tenant)?;
            self.lives += u64::from(taken_up.is_some());
            self.taken_over += taken_up.unwrap_or(0);
            return Ok(());
        }
        for line in log.lines() {
            if let Some((queue, event)) = parse(line, &self.tenant).with_context(|| line.to_owned())? {
                self.apply(queue, &event).with_context(|| line.to_owned())?;
            }
        }
        if taken_up(log, &self.tenant)? == queues {
            self.lives += 1;
        }
        Ok(())
    }

    /// Requests completed in all rings. Right as long as no ring completes 65536 in one life. `None`: not logged.
    pub fn completed(&self) -> Option<u64> {
        (!self.is_kept).then(|| self.rings.values().map(|ring| ring.completed).sum())
    }

    /// Rings that the last life did not lay down.
    pub fn still_running(&self) -> usize {
        self.rings.values().filter(|ring| ring.runs).count()
    }

    fn apply(&mut self, queue: u32, event: &Event) -> Result<()> {
        let is_new = !self.rings.contains_key(&queue);
        let ring = self.rings.entry(queue).or_default();
        match *event {
            Event::Resumes { used, taken_over } => {
                self.taken_over += taken_over;
                if ring.runs {
                    // The life before was killed.
                    ring.completed += u64::from(used.wrapping_sub(ring.used));
                } else if !is_new && used != ring.used {
                    if used != 0 {
                        bail!("queue {queue} stopped at {} and resumes at {used}", ring.used);
                    }
                    // Another driver has set the ring up anew: after the firmware, the kernel.
                    ring.completed = 0;
                }
                ring.used = used;
                ring.runs = true;
            }
            Event::Stopped { used } => {
                if !ring.runs {
                    bail!("queue {queue} stopped but had not started");
                }
                ring.completed += u64::from(used.wrapping_sub(ring.used));
                ring.used = used;
                ring.runs = false;
            }
        }
        Ok(())
    }
}

/// How many different rings of a tenant a life has taken up, by its log.
///
/// # Errors
/// When a line of the tenant's can't be read.
fn taken_up(log: &str, tenant: &str) -> Result<u32> {
    let mut queues = std::collections::BTreeSet::new();
    for line in log.lines() {
        if let Some((queue, Event::Resumes { .. })) = parse(line, tenant)? {
            queues.insert(queue);
        }
    }
    Ok(queues.len() as u32)
}

/// Commands that a life took over of a controller, if it came by one: none of a client's that came new.
fn controller_taken_up(log: &str, tenant: &str) -> Result<Option<u64>> {
    for line in log.lines() {
        let line = line.strip_prefix("evenkeeld: ").unwrap_or(line);
        let Some(text) = line.strip_prefix(tenant).and_then(|text| text.strip_prefix(": ")) else { continue };
        if text.starts_with("a client attached") {
            return Ok(Some(0));
        }
        if let Some(text) = text.strip_prefix("its controller goes on, ") {
            let count = text.strip_suffix(" commands taken over").context("no count of commands")?;
            return Ok(Some(count.parse()?));
        }
    }
    Ok(None)
}

/// The ring and event of a line; none where the line is about something else.
fn parse(line: &str, tenant: &str) -> Result<Option<(u32, Event)>> {
    let line = line.strip_prefix("evenkeeld: ").unwrap_or(line);
    let Some(text) = line.strip_prefix(tenant).and_then(|text| text.strip_prefix(": queue ")) else { return Ok(None) };
    let Some((queue, text)) = text.split_once(' ') else { return Ok(None) };
    let event = if let Some(text) = text.strip_prefix("resumes at used index ") {
        let (used, text) = text.split_once(", ").context("no count of requests")?;
        let taken_over = text.strip_suffix(" requests taken over").context("no count of requests")?;
        Event::Resumes { used: used.parse()?, taken_over: taken_over.parse()? }
    } else if let Some(used) = text.strip_prefix("stopped at used index ") {
        Event::Stopped { used: used.parse()? }
    } else {
        return Ok(None);
    };
    Ok(Some((queue.parse()?, event)))
}

#[cfg(test)]
mod tests {
    use super::Ledger;

    const FIRST: &str = "\
evenkeeld: web: queue 0 resumes at used index 0, 0 requests taken over
evenkeeld: web: queue 0 stopped at used index 7
evenkeeld: web: queue 0 resumes at used index 0, 0 requests taken over
evenkeeld: web: queue 1 resumes at used index 0, 0 requests taken over
evenkeeld: mail: queue 1 resumes at used index 9, 0 requests taken over
";
    const SECOND: &str = "\
evenkeeld: web: queue 0 resumes at used index 65000, 3 requests taken over
evenkeeld: web: queue 1 resumes at used index 10, 0 requests taken over
";
    const LAST: &str = "\
evenkeeld: web: queue 0 resumes at used index 500, 1 requests taken over
evenkeeld: web: queue 1 resumes at used index 10, 0 requests taken over
evenkeeld: web: queue 0 stopped at used index 600
evenkeeld: web: queue 1 stopped at used index 10
";

    #[test]
    fn lives_are_summed_over_the_index_and_the_firmware_is_left_out() {
        let mut ledger = Ledger::new("web");
        for life in [FIRST, SECOND, LAST] {
            ledger.enter(life, 2).unwrap();
        }
        assert_eq!(ledger.completed(), Some(65000 + (65536 - 65000 + 500) + 100 + 10));
        assert_eq!((ledger.lives, ledger.taken_over, ledger.still_running()), (3, 4, 0));
    }

    #[test]
    fn a_controller_is_taken_up_once_in_each_life() {
        let mut ledger = Ledger::of_controller("db");
        let first = "evenkeeld: db: listening on /run/db/cntrl\nevenkeeld: db: a client attached (process 7)\n";
        let next = "evenkeeld: db: a client goes on (process 7)\n";
        let taken_up = "evenkeeld: db: its controller goes on, 3 commands taken over\n";
        assert!(!ledger.is_taken_up(next, 2).unwrap());
        for life in [first, &format!("{next}{taken_up}"), next] {
            ledger.enter(life, 2).unwrap();
        }
        assert_eq!((ledger.lives, ledger.taken_over, ledger.completed()), (2, 3, None));
        assert!(ledger.enter("db: its controller goes on, many commands taken over", 2).is_err());
    }

    #[test]
    fn an_index_that_follows_from_nothing_is_refused() {
        let mut ledger = Ledger::new("web");
        ledger.enter(LAST, 2).unwrap();
        assert!(ledger.enter(SECOND, 2).is_err());
        assert!(Ledger::new("web").enter("web: queue 0 stopped at used index 1", 1).is_err());
        assert!(Ledger::new("web").enter("web: queue 0 stopped at used index 70000", 1).is_err());
    }
}
