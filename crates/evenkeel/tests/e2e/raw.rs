//! A vfio-user client of a tenant that sends what it likes.

use std::path::Path;

use test_clients::socket::patiently;
use test_clients::vfio::Client;

use crate::harness::HANG;

pub fn connect(directory: &Path) -> Client {
    Client::connect(&directory.join("cntrl"), HANG).unwrap()
}

/// A client that agreed on a version. Refused at first: as with `Guest::attach`.
pub fn ready(directory: &Path) -> Client {
    patiently(HANG, || Client::greet(&directory.join("cntrl"), HANG)).unwrap()
}
