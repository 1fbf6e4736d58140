//! Every command's way from its VQ to the drive and back.

use io_model::{Command, Nanos, Op};
use policy::{Cost, Terms};

use super::bound::{BoundCounts, Bounds, Fetched};
use super::limits::Buckets;
use super::space::Space;
use super::{Book, Rule, Served, Violation};

/// What one tenant got. Commands count when they are fetched: that is what a policy decides.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Service {
    pub(crate) commands: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// As the policy reckons it; 0 if it does not.
    pub(crate) cost: u64,
    /// The dearest command so far.
    pub(crate) most_cost: u64,
}

#[derive(Debug)]
struct Account {
    start_bytes: u64,
    end_bytes: u64,
    service: Service,
    buckets: Buckets,
    completed: u64,
    /// The guest's own commands, their bytes, and those of what went to the drive for them.
    asked: u64,
    asked_bytes: u64,
    sent_bytes: u64,
}

/// A command that was fetched and not submitted yet.
#[derive(Debug)]
struct InHand {
    tenant: u16,
    serial: u64,
    command: Command,
}

/// What every command's way is checked against. Each fetched command has a serial number, which goes to the drive and
/// comes back beside the poller's own tag.
#[derive(Debug)]
pub(crate) struct Ledger {
    now_ns: u64,
    accounts: Vec<Account>,
    cost: Option<Cost>,
    serial: u64,
    in_hand: Option<InHand>,
    /// The drive just gave this one back to a poller, which must complete it before the next.
    returned: Option<u64>,
    /// If the policy vouches for any.
    bounds: Option<Bounds>,
    /// The owner of each byte of the drive, if disks come, grow and go.
    space: Option<Space>,
    /// All tenants together.
    served: Served,
    book: Book,
}

impl Ledger {
    /// `cost` is what commands cost to the policy, if its shares are to be checked; `bound_cost` if its bounds are.
    pub(crate) fn new(cost: Option<Cost>, bound_cost: Option<Cost>) -> Self {
        Self {
            now_ns: 0,
            accounts: Vec::new(),
            cost,
            serial: 0,
            in_hand: None,
            returned: None,
            bounds: bound_cost.map(Bounds::new),
            space: None,
            served: Served::default(),
            book: Book::default(),
        }
    }

    /// `pollers`: how many serve it.
    pub(crate) fn add_tenant(&mut self, terms: &Terms, pollers: u16, start_bytes: u64, size_bytes: u64) {
        if let Some(bounds) = &mut self.bounds {
            bounds.set_class(self.accounts.len() as u16, terms.class.is_guaranteed());
        }
        let end_bytes = start_bytes.saturating_add(size_bytes);
        let buckets = Buckets::new(terms.limits, pollers);
        let (completed, asked, asked_bytes, sent_bytes) = (0, 0, 0, 0);
        let service = Service::default();
        let account = Account { start_bytes, end_bytes, service, buckets, completed, asked, asked_bytes, sent_bytes };
        self.accounts.push(account);
    }

    /// Disks come, grow and go on a drive of that size; the wiper is the only tenant without one.
    pub(crate) fn disks_move(&mut self, drive_bytes: u64, wiper: u16) {
        self.space = Some(Space::new(drive_bytes, wiper));
    }

    /// A tenant's disk is these ranges of the drive now, each a start and a length.
    pub(crate) fn gives(&mut self, tenant: u16, extents: impl Iterator<Item = (u64, u64)>) {
        let wrong = self.space.as_mut().and_then(|space| space.give(tenant, extents));
        self.judge(wrong);
    }

    /// A deleted tenant is gone; its disk is the wiper's.
    pub(crate) fn releases(&mut self, tenant: u16) {
        let wrong = self.space.as_mut().and_then(|space| space.release(tenant));
        self.judge(wrong);
    }

    /// Bytes of deleted disks that others got, overwritten.
    pub(crate) fn reused_bytes(&self) -> u64 {
        self.space.as_ref().map_or(0, |space| space.reused_bytes)
    }

    /// Commands that went to the drive beyond the guests' own.
    pub(crate) fn further_parts(&self) -> u64 {
        self.accounts.iter().map(|account| account.service.commands - account.asked).sum()
    }

    fn judge(&mut self, wrong: Option<(Rule, String)>) {
        if let Some((rule, what)) = wrong {
            self.violate(rule, || what);
        }
    }

    /// A tenant's front end took a command from its guest.
    pub(crate) fn asked(&mut self, tenant: u16, len_bytes: u64) {
        let account = &mut self.accounts[usize::from(tenant)];
        account.asked += 1;
        account.asked_bytes += len_bytes;
    }

    /// A tenant has other terms.
    pub(crate) fn set_terms(&mut self, tenant: u16, terms: &Terms) {
        if let Some(bounds) = &mut self.bounds {
            bounds.set_class(tenant, terms.class.is_guaranteed());
        }
        self.accounts[usize::from(tenant)].buckets.set_limits(terms.limits);
    }

    /// The tenants or their terms changed now: bounds given before did not count that.
    pub(crate) fn unsettle(&mut self) {
        if let Some(bounds) = &mut self.bounds {
            bounds.unsettle(self.now_ns);
        }
    }

    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    pub(crate) fn violate(&mut self, rule: Rule, what: impl FnOnce() -> String) {
        self.violate_of(rule, None, what);
    }

    /// Records a violation about a tenant that waits.
    pub(crate) fn violate_of(&mut self, rule: Rule, tenant: Option<u16>, what: impl FnOnce() -> String) {
        self.book.write(self.now_ns, rule, tenant, what);
    }

    /// One of a tenant's VQs is passed over.
    pub(crate) fn starves(&mut self, tenant: u16, vq: usize, waits_ns: u64) {
        let what = || format!("tenant {tenant}: VQ {vq} was not served for {waits_ns} ns, others were");
        self.violate_of(Rule::NoStarvation, Some(tenant), what);
    }

    pub(crate) fn service(&self, tenant: u16) -> Service {
        self.accounts[usize::from(tenant)].service
    }

    /// What all tenants were served.
    pub(crate) fn served(&self) -> Served {
        self.served
    }

    /// A poller fetched a command. Returns its serial number.
    pub(crate) fn fetched(&mut self, by: Fetched, command: &Command) -> u64 {
        let tenant = by.tenant;
        self.serial += 1;
        if let Some(bounds) = &mut self.bounds {
            bounds.fetched(by, self.serial, command, self.now_ns);
        }
        let account = &mut self.accounts[usize::from(tenant)];
        account.sent_bytes += command.len_bytes;
        let service = &mut account.service;
        service.commands += 1;
        match command.op {
            Op::Read => service.read_bytes += command.len_bytes,
            Op::Write | Op::WriteZeroes => service.written_bytes += command.len_bytes,
            Op::Flush | Op::Discard => {}
        }
        if let Some(cost) = &self.cost {
            let cost = u64::from(cost.of(command.op, command.len_bytes));
            service.cost += cost;
            service.most_cost = service.most_cost.max(cost);
        }
        self.served.commands += 1;
        self.served.blocks += (command.len_bytes >> 12).max(1);
        if let Some(what) = account.buckets.fetched(command, self.now_ns) {
            self.violate(Rule::Limits, || format!("tenant {tenant}: {what}"));
        }
        let in_hand = InHand { tenant, serial: self.serial, command: *command };
        if let Some(lost) = self.in_hand.replace(in_hand) {
            let what = || format!("tenant {}: {:?} was fetched and not submitted", lost.tenant, lost.command);
            self.violate(Rule::ExactlyOnce, what);
        }
        self.serial
    }

    /// A command reaches the drive: it must be the one just fetched, inside its tenant's range. Returns its serial
    /// number.
    pub(crate) fn submitted(&mut self, command: &Command) -> u64 {
        let Some(InHand { tenant, serial, command: fetched }) = self.in_hand.take() else {
            self.violate(Rule::ExactlyOnce, || format!("{command:?} was submitted and never fetched"));
            return 0;
        };
        if fetched != *command {
            let what = || format!("tenant {tenant}: {fetched:?} was fetched, {command:?} submitted");
            self.violate(Rule::ExactlyOnce, what);
        }
        if let Some(space) = &mut self.space {
            let wrong = space.submitted(tenant, command);
            self.judge(wrong);
            return serial;
        }
        let Account { start_bytes, end_bytes, .. } = self.accounts[usize::from(tenant)];
        let end = command.offset_bytes.checked_add(command.len_bytes);
        let inside = command.offset_bytes >= start_bytes && end.is_some_and(|end| end <= end_bytes);
        if command.len_bytes > 0 && !inside {
            let what = || format!("tenant {tenant}: {command:?} is outside of {start_bytes}..{end_bytes}");
            self.violate(Rule::InBounds, what);
        }
        serial
    }

    /// The drive gives a command back to its poller.
    pub(crate) fn returned(&mut self, serial: u64) {
        if let Some(serial) = self.returned.replace(serial) {
            self.violate(Rule::ExactlyOnce, || format!("command {serial} came back and was completed for nobody"));
        }
    }

    /// A tenant's front end gets a completion for one of its commands in flight, so long after its fetch.
    pub(crate) fn completed(&mut self, tenant: u16, serial: u64, served: Nanos, command: &Command, is_done: bool) {
        if let Some(space) = &mut self.space {
            space.ended(tenant, command, is_done);
        }
        if let Some(bounds) = &mut self.bounds
            && let Some(what) = bounds.completed(serial, served)
        {
            self.violate(Rule::Bound, || format!("tenant {tenant}: {what}"));
        }
        self.accounts[usize::from(tenant)].completed += 1;
        let returned = self.returned.take();
        if returned != Some(serial) {
            let what =
                || format!("tenant {tenant}: command {serial} completed when the drive had given back {returned:?}");
            self.violate(Rule::ExactlyOnce, what);
        }
    }

    /// A tenant's queue gets a completion that it does not expect.
    pub(crate) fn wrong_completion(&mut self, tenant: u16, vq: u16, id: u32) {
        self.returned = None;
        let what =
            || format!("tenant {tenant}: VQ {vq} got a completion for command {id}, which is not in flight there");
        self.violate(Rule::ExactlyOnce, what);
    }

    /// At the end of a run, with nothing in flight.
    pub(crate) fn close(&mut self) {
        if let Some(serial) = self.returned.take() {
            self.violate(Rule::ExactlyOnce, || format!("command {serial} came back and was completed for nobody"));
        }
        for tenant in 0..self.accounts.len() {
            let account = &self.accounts[tenant];
            let Account { service: Service { commands, .. }, completed, asked_bytes, sent_bytes, .. } = *account;
            if asked_bytes != sent_bytes {
                let what = || {
                    format!("tenant {tenant}: its guest asked for {asked_bytes} bytes, {sent_bytes} went to the drive")
                };
                self.violate(Rule::ExactlyOnce, what);
            }
            if commands != completed {
                let what = || format!("tenant {tenant}: {commands} commands fetched, {completed} completed");
                self.violate(Rule::ExactlyOnce, what);
            }
        }
    }

    pub(crate) fn bounds(&self) -> BoundCounts {
        self.bounds.as_ref().map(Bounds::counts).unwrap_or_default()
    }

    pub(crate) fn take(&mut self) -> (u64, Vec<Violation>) {
        (self.book.count, std::mem::take(&mut self.book.kept))
    }
}
