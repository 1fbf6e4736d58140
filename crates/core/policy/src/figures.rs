//! What policies have inside that an operator may want to see, by name: told now and then, never per command.

/// How a figure goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureKind {
    /// Up and down.
    Gauge,
    /// From 0 on, up alone.
    Counter,
}

/// A list of figures, each with its name as metrics have it (with its unit, without a prefix), and what it says.
macro_rules! figures {
    ($(#[$doc:meta])* $list:ident {
        $($(#[$of_one:meta])* $figure:ident = $name:literal, $kind:ident, $help:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $list {
            $($(#[$of_one])* #[doc = $help] $figure,)*
        }

        impl $list {
            /// All, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$figure),*];
            /// How many.
            pub const COUNT: usize = Self::ALL.len();

            /// As metrics have it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$figure => $name),* }
            }

            /// What it says, as one sentence without its full stop.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$figure => $help),* }
            }

            /// How it goes on.
            pub const fn kind(self) -> FigureKind {
                match self { $(Self::$figure => FigureKind::$kind),* }
            }
        }
    };
}

figures! {
    /// A figure of a policy's at one poller; see [`Policy::figures`](crate::Policy::figures).
    PolicyFigure {
        LpnsEngaged = "lpns_engaged", Gauge,
            "1 while lpns holds best-effort tenants back for a guaranteed one, else 0";
        LpnsOmega = "lpns_omega", Gauge,
            "Ω of lpns in force: what may be in flight together, in multiples of the depth d; as configured where \
             nothing is fed back";
        LpnsCap = "lpns_best_effort_cap_commands", Gauge,
            "Commands of 4 KiB that lpns lets all best-effort tenants of the drive have in flight together";
        LpnsRate = "lpns_best_effort_commands_per_second", Gauge,
            "Commands of 4 KiB per second that lpns lets all best-effort tenants of the drive send together";
        LpnsSwitches = "lpns_hwq_switches", Counter,
            "How often lpns moved a queue to an exclusive HWQ";
        Window = "policy_window_commands", Gauge,
            "Commands that fair, wrr or drr lets be with the drive at a time; of 4 KiB under fair, wrr and \
             drr; where several pollers part that, this one's part. \
             Of best-effort tenants alone, and of 4 KiB, under evenkeel";
    }
}

figures! {
    /// A figure of a policy's about one tenant; see [`Policy::tenant_figures`](crate::Policy::tenant_figures).
    TenantFigure {
        FairState = "fair_state", Gauge,
            "State under fair: 0 idle, 1 balanced, 2 unbalanced, 3 saturated";
        FairThreshold = "fair_threshold_seconds", Gauge,
            "Latency from which fair takes the tenant for unbalanced";
        FairWeight = "fair_weight_factor", Gauge,
            "By how much fair has raised or lowered the tenant's weight; 1 at rest";
        FairBudget = "fair_budget_seconds", Gauge,
            "Time of one of the drive's units that fair leaves the tenant in this epoch; negative: it is ahead of its \
             share";
        Floor = "tenant_floor_ratio", Gauge,
            "What a tenant gets of its min_iops or min_bandwidth while it asks for all of it; from 1 on it is kept";
        Held = "tenant_held_by_limits", Gauge,
            "1 while the tenant waits for its own limits, else 0";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_they_count() {
        let all = PolicyFigure::ALL.iter().map(|it| it.name()).chain(TenantFigure::ALL.iter().map(|it| it.name()));
        let mut names: Vec<&str> = all.collect();
        assert_eq!(names.len(), PolicyFigure::COUNT + TenantFigure::COUNT);
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PolicyFigure::COUNT + TenantFigure::COUNT);
        assert!((0..).zip(TenantFigure::ALL).all(|(at, figure)| *figure as usize == at));
    }
}
