//! What a policy costs per command: arrived, next, sent and completed, without any drive.
//!
//! `cargo bench -p policy --bench policy_cost [-- --json]`. With a row of its table and a number of tenants as
//! arguments (`-- "lpns, one guaranteed" 16`) it does that one alone, in the same way each time: to be counted by
//! `valgrind --tool=callgrind --toggle-collect='*::run*'`. Every VQ has commands all the time; 64 are in flight, and
//! each completion is followed by one new command in the same VQ. Every 2000 commands (as many as take 10 ms at
//! 200K/s, so more often than in use) an interval is reported, and its cost counts too. The best of many
//! short runs is shown, since whatever else the machine does only adds.

use std::hint::black_box;
use std::time::Instant;

use io_model::{HwqId, Nanos, Op, TenantId, VqId};
use policy::{
    AnyPolicy, Class, EvenkeelConfig, FairConfig, Limits, LpnsConfig, Next, Policy, PolicyConfig, PollerShape,
    TenantReport, TenantSlot, Terms, Variant, VqSlot,
};

const VQS_PER_TENANT: u16 = 4;
const IN_FLIGHT: usize = 64;
const BACKLOG: u32 = 32;
const COMMANDS: u32 = 20_000;
const COMMANDS_PER_INTERVAL: u32 = 2_000;
const RUNS: u32 = 200;

/// So high that nobody is held.
const LIMITS: Limits = Limits {
    rw_ios_per_sec: 100_000_000,
    rw_mbytes_per_sec: 100_000,
    r_mbytes_per_sec: 100_000,
    w_mbytes_per_sec: 100_000,
    r_ios_per_sec: 100_000_000,
    w_ios_per_sec: 100_000_000,
    burst: Nanos(0),
};

/// A row.
struct Row {
    name: &'static str,
    config: PolicyConfig,
    /// Whether the first tenant is guaranteed.
    guaranteed: bool,
    /// Everybody's.
    limits: Limits,
}

struct Load {
    reports: Vec<TenantReport>,
    flights: [(VqSlot, HwqId); IN_FLIGHT],
    now: Nanos,
}

fn class(tenant: u16, guaranteed: bool) -> Class {
    if guaranteed && tenant == 0 {
        Class::guaranteed(Some(Nanos::from_micros(100)))
    } else {
        Class::BestEffort { weight: u32::from(tenant % 4) + 1 }
    }
}

impl Load {
    /// Attaches everyone and fills the drive.
    fn start<P: Policy>(policy: &mut P, tenants: u16, row: &Row) -> Self {
        let &Row { guaranteed, limits, .. } = row;
        let now = Nanos(1);
        for slot in 0..tenants * VQS_PER_TENANT {
            let tenant = slot / VQS_PER_TENANT;
            let vq = VqId { tenant: TenantId(tenant.into()), index: slot % VQS_PER_TENANT + 1 };
            let terms = Terms { limits, ..class(tenant, guaranteed).into() };
            policy.attach(VqSlot(slot), vq, TenantSlot(tenant), &terms, now);
            // Among others the guaranteed tenant is busy at a poller of its own: its neighbours are measured here.
            if !(guaranteed && tenant == 0) || tenants == 1 {
                policy.arrived(VqSlot(slot), BACKLOG, now);
            }
        }
        let reports = (0..tenants).map(|tenant| TenantReport {
            mean_latency: Nanos::from_micros(20),
            ..TenantReport::new(TenantId(tenant.into()), class(tenant, guaranteed))
        });
        let mut load = Self { reports: reports.collect(), flights: [(VqSlot(0), HwqId(0)); IN_FLIGHT], now };
        for at in 0..IN_FLIGHT {
            load.send(policy, at);
        }
        load
    }

    fn send<P: Policy>(&mut self, policy: &mut P, at: usize) {
        let (vq, hwq) = loop {
            match policy.next(self.now) {
                Next::Send { vq, hwq } => break (vq, hwq),
                Next::WaitUntil(Nanos::MAX) => panic!("the policy holds fewer commands in flight than the bench"),
                Next::WaitUntil(later) => self.now = later,
                Next::Idle => unreachable!("every VQ has a backlog"),
            }
        };
        policy.sent(vq, hwq, Op::Read, 4096, self.now);
        self.flights[at] = (vq, hwq);
    }

    /// One command's whole way.
    fn turn<P: Policy>(&mut self, policy: &mut P, at: usize) {
        let (vq, hwq) = self.flights[at];
        let tenant = TenantSlot(vq.0 / VQS_PER_TENANT);
        self.now += Nanos(1_300);
        policy.completed(vq, hwq, tenant, Op::Read, 4096, Nanos::from_micros(20), self.now);
        policy.arrived(vq, BACKLOG, self.now);
        self.send(policy, at);
    }

    /// What is counted.
    #[inline(never)]
    #[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
    fn run<P: Policy>(&mut self, policy: &mut P) -> f64 {
        let start = Instant::now();
        for command in 0..COMMANDS {
            self.turn(policy, command as usize % IN_FLIGHT);
            if command % COMMANDS_PER_INTERVAL == 0 {
                for report in &mut self.reports {
                    report.submitted += 50;
                    report.completed += 50;
                }
                policy.demand();
                policy.interval(&self.reports, self.now);
            }
        }
        start.elapsed().as_nanos() as f64 / f64::from(COMMANDS)
    }
}

fn measure(row: &Row, tenants: u16, runs: u32) -> f64 {
    let mut policy = black_box(build(&row.config));
    let mut load = Load::start(&mut policy, tenants, row);
    (0..runs).map(|_| load.run(&mut policy)).fold(f64::INFINITY, f64::min)
}

/// Every policy without limits, and two with.
fn rows() -> Vec<Row> {
    // A drive large enough that the throttles are asked every time but seldom say no.
    let lpns = |variant| {
        let config = LpnsConfig { variant, r_iops: 4_000_000.0, parallelism: 64, ..LpnsConfig::p5800x() };
        PolicyConfig::Lpns(config)
    };
    let evenkeel = || PolicyConfig::Evenkeel(EvenkeelConfig { rate_iops: 4_000_000.0, ..EvenkeelConfig::p5800x() });
    let fair = |variant| PolicyConfig::Fair(FairConfig { variant, parallel_units: 256, ..FairConfig::p5800x() });
    let row = |name, config| Row { name, config, guaranteed: false, limits: Limits::default() };
    vec![
        row("passthrough", PolicyConfig::Passthrough),
        Row { limits: LIMITS, ..row("passthrough, limits", PolicyConfig::Passthrough) },
        row("lpns, nobody guaranteed", lpns(Variant::Corrected)),
        Row { guaranteed: true, ..row("lpns, one guaranteed", lpns(Variant::Corrected)) },
        row("lpns as published", lpns(Variant::Published)),
        row("evenkeel, nobody guaranteed", evenkeel()),
        Row { guaranteed: true, ..row("evenkeel, one guaranteed", evenkeel()) },
        row("fair", fair(Variant::Corrected)),
        row("fair as published", fair(Variant::Published)),
    ]
}

fn build(config: &PolicyConfig) -> AnyPolicy {
    config.build(&PollerShape { hwqs: 16, hwq_depth: 256, guaranteed_vqs: 0, weighted: false }).expect("valid settings")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [name, tenants] = &arguments[..] {
        let row = rows().into_iter().find(|row| row.name == name.as_str()).expect("a row of the table");
        measure(&row, tenants.parse().expect("a number of tenants"), 1);
        return;
    }
    let json = arguments.iter().any(|argument| argument == "--json");
    let mut measured = Vec::new();
    for tenants in [1, 16, 1024] {
        for row in rows() {
            measured.push((row.name, tenants, measure(&row, tenants, RUNS)));
        }
    }
    if json {
        let row = |(policy, tenants, ns): &(&str, u16, f64)| {
            format!(r#"{{"policy":"{policy}","tenants":{tenants},"vqs":{},"ns_per_command":{ns:.1}}}"#, tenants * 4)
        };
        println!(r#"{{"policy_cost":[{}]}}"#, measured.iter().map(row).collect::<Vec<_>>().join(","));
        return;
    }
    println!("{:<28} {:>8} {:>6} {:>12}", "policy", "tenants", "VQs", "ns/command");
    for (policy, tenants, ns) in measured {
        println!("{policy:<28} {tenants:>8} {:>6} {ns:>12.1}", tenants * VQS_PER_TENANT);
    }
}
