//! The host's part: pollers and guests' CPUs.

use super::{Flow, Model, WRITE};
use crate::Host;

impl Model<'_> {
    /// How busy pollers are and how long their passes take.
    pub(super) fn reckon_pollers(&mut self) {
        let host = self.host;
        for pool in &mut self.pools {
            let (mut work, mut jobs, mut sends) = (0.0, 0.0, 0.0);
            for &at in &pool.members {
                let flow = &self.flows[at];
                work += flow.x * service(host, flow);
                jobs += 2.0 * flow.x;
                sends += flow.x;
            }
            pool.work_rate = work;
            pool.sends_rate = sends;
            let batch = f64::from(host.poller_batch);
            let per_command = if sends > 0.0 { work / sends } else { 0.0 };
            let longest = host.poller_pass_ns + host.poller_doorbell_ns * pool.hwqs.min(batch) + batch * per_command;
            let mean_job = if jobs > 0.0 { work / jobs } else { 0.0 };
            let (mut busy, mut pass) = (work.min(1.0), host.poller_pass_ns + mean_job);
            for _ in 0..20 {
                let sent = 0.5 + sends * busy * pass;
                let doorbells = host.poller_doorbell_ns * touched(pool.hwqs, sent);
                let fixed = host.poller_pass_ns + doorbells;
                pass = (fixed + mean_job + busy * work.min(1.0) * pass).min(longest);
                let jobs_in_pass = 1.0 + jobs * busy * pass;
                let target = (jobs / jobs_in_pass * pass).min(1.0);
                busy = 0.5 * (busy + target);
            }
            pool.busy = busy;
            pool.pass_ns = pass;
        }
    }

    /// From a job's arrival at its poller until the pass that does it has done all of its work.
    pub(super) fn visit_ns(&self, flow: &Flow, own_ns: f64) -> f64 {
        let (pool, host) = (&self.pools[flow.pool], self.host);
        let own = if pool.sends_rate > 0.0 { flow.x / flow.population / pool.sends_rate } else { 1.0 };
        let others = (1.0 - own).max(0.0);
        let busy = pool.busy * others;
        let start = (1.0 - busy) * host.poller_pass_ns / 2.0 + busy * pool.pass_ns / 2.0;
        start + own_ns + busy * pool.work_rate.min(1.0) * others * pool.pass_ns
    }
}

/// The poller's time for a command.
pub(super) fn service(host: &Host, flow: &Flow) -> f64 {
    host.poller_fetch_ns
        + host.poller_write_ns * flow.works[WRITE].part
        + host.poller_complete_ns
        + host.poller_interrupt_ns
}

/// The number of HWQs that this many sends touch.
fn touched(hwqs: f64, sends: f64) -> f64 {
    hwqs * (1.0 - (1.0 - 1.0 / hwqs).powf(sends))
}

pub(super) struct GuestTimes {
    pub(super) latency_ns: f64,
    pub(super) wait_ns: f64,
    pub(super) think_ns: f64,
    pub(super) backlog: [f64; 2],
}

/// A vCPU: completions first, then submissions.
pub(super) fn guest(host: &Host, flow: &Flow) -> GuestTimes {
    let writes = flow.works[WRITE].part;
    let varying = |ns: f64| (ns * host.guest_varies).powi(2);
    let submit = host.guest_app_ns + host.guest_submit_ns + host.guest_write_ns * writes;
    let submit_square = submit * submit + varying(host.guest_app_ns);
    let complete = host.guest_complete_ns;
    let complete_square = complete * complete + varying(complete);
    let x = flow.x / flow.vcpus;
    let irq = host.guest_irq_ns * (1.0 - x * complete).clamp(0.0, 1.0);
    let complete = complete + irq;
    let own = if flow.rate.is_some() { 1.0 } else { (1.0 - flow.vcpus / flow.population).max(0.0) };
    let [complete_backlog, submit_backlog] = flow.guest;
    let complete_wait = own * (complete_backlog + x * submit_square / 2.0);
    let submit_wait = own * (complete_backlog + submit_backlog) / (1.0 - own * x * complete).max(0.05);
    let backlog =
        [x * (complete_wait * complete + complete_square / 2.0), x * (submit_wait * submit + submit_square / 2.0)];
    let done = complete_wait + complete;
    match flow.rate {
        None => GuestTimes {
            wait_ns: complete_wait,
            latency_ns: host.guest_submit_ns + done,
            think_ns: submit_wait + host.guest_app_ns,
            backlog,
        },
        Some(_) => GuestTimes {
            wait_ns: complete_wait + submit_wait + host.guest_app_ns,
            latency_ns: submit_wait + host.guest_app_ns + host.guest_submit_ns + done,
            think_ns: 0.0,
            backlog,
        },
    }
}
