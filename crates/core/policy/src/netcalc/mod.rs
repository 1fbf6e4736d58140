//! The arithmetic of deterministic network calculus, as far as one drive needs it.
//!
//! Work is counted in reference commands (4 KiB random writes), rates in commands per second, spans in ns.
//!
//! | file | what |
//! | --- | --- |
//! | `single` | one token bucket at one rate-latency server, in closed form; LPNS's published rule |
//! | `curve` | piecewise-linear curves: [`Envelope`] (concave, what may arrive), [`Service`] (convex, what is served at least) |
//! | `bounds` | sums, servers in a row, what is left beside others, delay, backlog, output |
//!
//! Whether a bound holds is checked where the curves can tell, and is an error with its reason ([`NoBound`]) where it
//! does not: a curve of the wrong shape, figures that are no numbers, arrivals that outrun the service, a service
//! that is not strict where only a strict one will do. What curves can't tell is said at the operation: above all,
//! a delay bound is for commands of one flow served in the order that they came.
//!
//! Not implemented: curves that are neither concave nor convex, packet sizes (add the largest command to the burst), stochastic bounds.

mod bounds;
mod curve;
mod single;

pub use bounds::NoBound;
pub use curve::{Envelope, Segment, Service};
pub use single::{
    ArrivalCurve, ServiceCurve, Unstable, backlog_bound, delay_bound, in_flight_for, omega_for, published_bound,
    published_burst, published_rate,
};

const NANOS_PER_SECOND: f64 = 1e9;
