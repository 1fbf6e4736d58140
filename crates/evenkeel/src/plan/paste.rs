//! A policy as a configuration spells it, to be pasted.

use config::Config;
use io_model::units::Rate;
use planner::Tenant;
use policy::{ArbitratedConfig, LpnsConfig, PolicyConfig, Settings};

use super::report::PriorityRow;

/// The `[policy]` section. What `policy` does not show (thresholds of `fair`) is the configuration's.
pub fn section(policy: &PolicyConfig, config: &Config) -> String {
    let mut lines = vec![format!("name = {:?}", policy.name())];
    match policy {
        PolicyConfig::Lpns(lpns) => lpns_lines(&mut lines, lpns),
        PolicyConfig::Wrr(arbitrated) => {
            arbitrated_lines(&mut lines, arbitrated);
            lines.push(format!("arbitration_burst = {}", arbitrated.arbitration_burst));
        }
        PolicyConfig::Drr(arbitrated) => arbitrated_lines(&mut lines, arbitrated),
        PolicyConfig::Fair(_) => fair_lines(&mut lines, config),
        _ => {}
    }
    format!("[policy]\n{}\n", lines.join("\n"))
}

fn arbitrated_lines(lines: &mut Vec<String>, policy: &ArbitratedConfig) {
    lines.push(format!("high_weight = {}", policy.high_weight));
    lines.push(format!("medium_weight = {}", policy.medium_weight));
    lines.push(format!("low_weight = {}", policy.low_weight));
    lines.push(format!("max_in_flight = {}", policy.max_in_flight));
}

fn lpns_lines(lines: &mut Vec<String>, lpns: &LpnsConfig) {
    lines.push(format!("rate_iops = \"{}\"", Rate(lpns.r_iops.round() as u64)));
    lines.push(format!("min_latency = \"{}\"", lpns.l_h));
}

fn fair_lines(lines: &mut Vec<String>, config: &Config) {
    let Settings::Fair(fair) = &config.policy else { return };
    let spans = [("min_latency", fair.min_latency), ("max_latency", fair.max_latency), ("epoch", fair.epoch)];
    lines.extend(spans.iter().filter_map(|(key, span)| Some(format!("{key} = \"{}\"", (*span)?))));
}

/// Priorities that the `[[tenant]]` sections do not have yet; none under a policy without classes.
pub fn priorities(policy: &PolicyConfig, config: &Config, tenants: &[Tenant]) -> Vec<PriorityRow> {
    if !policy.kind().has_priorities() {
        return Vec::new();
    }
    let pairs = config.tenants.iter().zip(tenants);
    // A tenant whose queues have priorities of their own was planned as medium: it keeps them.
    let changed = pairs.filter(|(configured, tenant)| configured.terms.priority.unasked() != tenant.priority);
    let row = |tenant: &Tenant| PriorityRow { tenant: tenant.name.clone(), priority: tenant.priority.name() };
    changed.map(|(_, tenant)| row(tenant)).collect()
}

/// Whether tenants' `priority` lines must go: a policy without classes refuses them.
pub fn must_lose_priorities(policy: &PolicyConfig, config: &Config) -> bool {
    config.policy.kind().has_priorities() && !policy.kind().has_priorities()
}
