//! The cause of a broken promise over a span of the probes.

use std::cell::Cell;

use api::BlameRow;
use io_model::{Nanos, TenantId};
use planner::{Planner, Unmodelled};

use crate::ceilings::Loads;
use crate::cpu_waits::CpuUse;
use crate::foresight::{Foresight, Observed};
use crate::usual::Usuals;
use crate::verdict::{self, Host, Model, Party, Situation};

/// The cause of a tenant's broken promise, and whether a forecast that is not there yet may change it. `cpu`: what
/// pollers used of the span.
pub fn blame(
    foresight: &Foresight,
    observed: &[Observed],
    cpu: &CpuUse,
    usuals: &Usuals,
    broken: TenantId,
) -> (Option<BlameRow>, bool) {
    let is_missing = Cell::new(false);
    let model = foresight.model();
    let planner = model.map(|(site, _)| {
        Planner::with_model(site, |_, tenants| {
            let known = foresight.forecasts().outcome(&foresight.question(tenants));
            is_missing.set(is_missing.get() || known.is_none());
            known.unwrap_or(Err(Unmodelled::TooLong)).map(|outcome| outcome.forecast)
        })
    });
    let usual = |id| usuals.of(id).map(|usual| usual.measured());
    let loads = Loads::observed(observed, cpu);
    let party = |tenant: &Observed| Some(Party { usual: usual(tenant.id), ..foresight.party(tenant, &loads)? });
    let found = || {
        let own = observed.iter().find(|it| it.id == broken)?;
        let usual = usuals.of(broken);
        let outage_ms = own.outage.as_micros_f64() / 1e3;
        let situation = Situation {
            model: planner.as_ref().zip(model).map(|(planner, (_, policy))| Model { planner, policy }),
            own: party(own)?,
            neighbours: observed.iter().filter(|it| it.id != broken).filter_map(party).collect(),
            host: Host {
                cpu_waited: cpu.most(&own.row.pollers).waited,
                cpu_waited_usually: usual.map(|usual| usual.cpu_waited()),
                restart: (own.outage > Nanos(0)).then(|| format!("for {outage_ms:.0} ms no daemon served it")),
            },
            span: own.span,
            overdue: own.row.overdue,
            usual_time: usual.map_or(Nanos(0), |usual| usual.time()),
        };
        Some(verdict::cause(&situation)?.row(&situation))
    };
    (found(), is_missing.get())
}
