//! What shape each poller has.

use std::ops::Range;

use config::{Config, Tenant};
use policy::PollerShape;

/// What one of `pollers` pollers has that is to serve these queues of these tenants, on a drive whose queues may have
/// weights.
pub fn shape(config: &Config, pollers: usize, serves: &[(&Tenant, Range<u16>)], weighted: bool) -> PollerShape {
    let guaranteed = serves.iter().filter(|(tenant, _)| tenant.is_guaranteed());
    PollerShape {
        hwqs: config.hwqs(pollers, serves),
        hwq_depth: u32::from(config::HWQ_DEPTH),
        guaranteed_vqs: guaranteed.map(|(tenant, queues)| tenant.vqs(queues)).fold(0, u16::saturating_add),
        weighted,
    }
}
