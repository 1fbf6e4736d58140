//! A limit for each tenant, and nothing else: tenants take turns, whatever their classes and weights. The limits
//! themselves are those that every policy has (see `limits`). Tenants may be with several pollers: each of these takes
//! turns among its own.

use io_model::{Nanos, Op};
use policy::parts::{ByFlow, Flows, Links, List, Standing, Turns};
use policy::{ConfigError, Next, PollerShape, Terms};

/// Tenants that could send, in turns.
#[derive(Debug, Default)]
pub struct Tenants {
    ring: List,
    links: Links,
}

impl Turns for Tenants {
    fn attach(&mut self, tenant: u16, _: &Terms) {
        self.links.grow(usize::from(tenant) + 1);
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        if from == Standing::Ready {
            self.ring.remove(&mut self.links, tenant);
        }
        if to == Standing::Ready {
            self.ring.push_back(&mut self.links, tenant);
        }
    }
}

/// The caps policy of one poller.
#[derive(Debug)]
pub struct Caps {
    flows: Flows<Tenants>,
}

impl Caps {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A shape without HWQs or depth.
    pub fn new(shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        Ok(Self { flows: Flows::new(Tenants::default(), shape.hwqs, shape.hwq_depth) })
    }
}

impl ByFlow for Caps {
    type Turns = Tenants;

    fn flows(&self) -> &Flows<Tenants> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Tenants> {
        &mut self.flows
    }

    #[inline]
    fn pick(&mut self, _: Nanos) -> Next {
        self.flows.next_by(|turns| turns.ring.front())
    }

    #[inline]
    fn sending(&mut self, tenant: u16, _: Op, _: u64) {
        // The next one's turn.
        if self.flows.is_ready(tenant) {
            let Tenants { ring, links } = &mut self.flows.turns;
            ring.rotate(links, tenant);
        }
    }

    fn refusing(&mut self, tenant: u16, consumed: bool) {
        if consumed {
            self.sending(tenant, Op::Flush, 0);
        }
    }
}
