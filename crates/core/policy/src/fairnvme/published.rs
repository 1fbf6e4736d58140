//! Algorithm 1 as printed, with the least that makes it run.
//!
//! | printed | here |
//! | --- | --- |
//! | `request_processing` returns a latency at once | commands are sent one after another; the state moves when one completes |
//! | `return` after an unbalanced or saturated command | budgets are allocated anew and the scan starts at the first tenant again |
//! | line 27, "all tenants run out": lines 25 to 26 leave the loop before it | reached when a scan finds nobody with both a command and budget |
//! | `cost[i]` of the first request (Eq. 6, 7) | the calibrated cost; later the tenant's mean measured time for that kind |
//! | Req_i of Eq. 6 and 7, over no stated span | everything since the tenant was attached, so that nobody's budget is 0 for ever |
//! | B_total of Eq. 5 | epoch × parallel units |
//! | an idle tenant with weight ≤ β falls through to line 18 and is treated as saturated | it keeps its weight, as §3.3 (1) says |
//! | Eq. 3 and 4 move Thresh_min and Thresh_max | they move Thresh_cur; Thresh_min and Thresh_max stay |
//! | Thresh_cur at the start | half way between Thresh_min and Thresh_max |
//! | `predefined weight`, "a default weight of 1" | 1 for everyone |
//!
//! What is printed and not repaired: weights grow by β or 2β with every command of an unfair state and fall only when
//! idle; Eq. 5 multiplies the weight with the demand; a tenant early in the order empties its budget before the next
//! one has a turn, and gets a new one whenever anybody's command was late; Thresh_cur may fall below Thresh_min.

use super::FairNvme;
use crate::{COST_UNIT, Next};

impl FairNvme {
    pub(super) fn next_published(&mut self) -> Next {
        loop {
            let mut starved = false;
            for tenant in self.cursor..self.queues.tenants() {
                if !self.queues.is_ready(tenant) {
                    continue;
                }
                if self.accounts[usize::from(tenant)].budget_ns <= 0.0 {
                    starved = true;
                } else if let Some(send) = self.queues.pick(tenant) {
                    self.cursor = tenant;
                    return send;
                }
            }
            if self.cursor > 0 {
                self.cursor = 0;
            } else if starved {
                self.reallocate();
            } else {
                return self.nothing();
            }
        }
    }

    /// Eq. 5 for every tenant.
    pub(super) fn reallocate(&mut self) {
        let Self { accounts, queues, config, .. } = self;
        let seed_ns = config.cost_ns(u64::from(COST_UNIT));
        let present = |tenant: u16| queues.serves(tenant);
        let claims: f64 = (0..)
            .zip(accounts.iter())
            .filter(|(tenant, _)| present(*tenant))
            .map(|(_, account)| account.weight * account.demand_ns(seed_ns))
            .sum();
        let total_ns = config.total_budget_ns() as f64;
        for (_, account) in (0..).zip(accounts.iter_mut()).filter(|(tenant, _)| present(*tenant)) {
            // Never 0, however small beside the others': a share that rounds to nothing would never be served.
            account.budget_ns =
                (total_ns * account.weight * account.demand_ns(seed_ns) / claims).max(f64::MIN_POSITIVE);
        }
    }
}
