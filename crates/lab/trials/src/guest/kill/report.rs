//! What a kill test found, for people, for programs, and judged.

use serde::Serialize;

/// One guest's part of a run.
#[derive(Debug, Serialize)]
pub struct GuestReport {
    /// Its tenant.
    pub tenant: String,
    /// The version of the QEMU that it ran in.
    pub qemu: String,
    /// Lives of the daemon after the first that took up all of its queues.
    pub reconnects: u64,
    /// Rounds of writing and verifying.
    pub rounds: u64,
    /// Reads, writes, discards and flushes that its kernel saw completed.
    pub requests_of_guest: u64,
    /// Requests that the daemon's lives completed, by the rings' used indices; a controller logs none.
    pub requests_of_daemon: Option<u64>,
    /// Requests that a life found unfinished and took over.
    pub taken_over: u64,
    /// The most requests that the guest saw completed in one life.
    pub most_requests_in_a_life: u64,
    /// Queues that the daemon did not report as stopped in the end.
    pub queues_not_stopped: usize,
    /// Requests that the kernel still had in flight in the end.
    pub in_flight: u64,
    /// The longest time from a kill until requests were seen to complete again. Looking takes time too: under
    /// emulation, most of it.
    pub longest_outage_ms: u64,
    /// Complaints of the guest's kernel.
    pub kernel_complaints: Vec<String>,
    /// What QEMU printed.
    pub qemu_said: Vec<String>,
    /// What fio printed of mismatches and errors; empty where it succeeded.
    pub fio_complaints: Vec<String>,
}

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Replays the moments of the kills.
    pub seed: u64,
    /// What ended the daemon's lives under load: SIGKILLs, or upgrades.
    pub by: &'static str,
    /// How many did.
    pub ends_under_load: u64,
    /// SIGKILLs sent to the daemon at rest, before all was read back.
    pub kills_at_rest: u64,
    /// Each guest.
    pub guests: Vec<GuestReport>,
}

/// See [`Report::by`].
pub const SIGKILLS: &str = "SIGKILLs";
/// See [`Report::by`].
pub const UPGRADES: &str = "upgrades";

/// A used index tells lives apart only below this.
const REQUESTS_OF_A_LIFE_MAX: u64 = 65535;

impl Report {
    /// What must not be; empty when the test was passed.
    pub fn problems(&self) -> Vec<String> {
        self.guests.iter().flat_map(|guest| self.problems_of(guest)).collect()
    }

    fn problems_of(&self, guest: &GuestReport) -> Vec<String> {
        let kills = self.ends_under_load + self.kills_at_rest;
        let rules = [
            (guest.reconnects == kills, format!("{kills} kills, but {} reconnects", guest.reconnects)),
            (
                guest.requests_of_daemon.is_none_or(|count| count == guest.requests_of_guest),
                format!(
                    "the guest counts {} requests, the daemon {:?}",
                    guest.requests_of_guest, guest.requests_of_daemon
                ),
            ),
            (
                guest.requests_of_daemon.is_none() || guest.most_requests_in_a_life <= REQUESTS_OF_A_LIFE_MAX,
                format!("{} requests in one life can't be told from fewer", guest.most_requests_in_a_life),
            ),
            (guest.queues_not_stopped == 0, format!("{} queues were not stopped", guest.queues_not_stopped)),
            (guest.in_flight == 0, format!("{} requests never completed", guest.in_flight)),
            (guest.rounds > 0, "nothing was verified".into()),
        ];
        let broken = rules.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what);
        let said = guest.kernel_complaints.iter().chain(&guest.fio_complaints).chain(&guest.qemu_said).cloned();
        broken.chain(said).map(|what| format!("{}: {what}", guest.tenant)).collect()
    }

    /// Whether lives ended in order, with nothing in flight.
    pub fn was_upgraded(&self) -> bool {
        self.by == UPGRADES
    }

    /// Prints a table, a guest a column.
    pub fn print(&self) {
        let row = |title: &str, value: &dyn Fn(&GuestReport) -> String| {
            let values: String = self.guests.iter().map(|guest| format!("{:>14}", value(guest))).collect();
            println!("{title:<40}{values}");
        };
        let kills = format!("{} + {}", self.ends_under_load, self.kills_at_rest);
        println!("kill test, seed {}", self.seed);
        row("", &|guest| format!("{} ({})", guest.tenant, guest.qemu));
        row(&format!("{} under load + SIGKILLs at rest", self.by), &|_| kills.clone());
        row("reconnects", &|guest| guest.reconnects.to_string());
        row("rounds of writing and verifying", &|guest| guest.rounds.to_string());
        row("requests completed, the guest's count", &|guest| guest.requests_of_guest.to_string());
        row("requests completed, the daemon's count", &|guest| {
            guest.requests_of_daemon.map_or("-".into(), |count| count.to_string())
        });
        row("requests taken over by a new life", &|guest| guest.taken_over.to_string());
        row("longest outage, ms", &|guest| guest.longest_outage_ms.to_string());
        row("requests never completed", &|guest| guest.in_flight.to_string());
        row("errors in the guest's kernel", &|guest| guest.kernel_complaints.len().to_string());
        row("lines of QEMU", &|guest| guest.qemu_said.len().to_string());
        row("errors and mismatches of fio", &|guest| guest.fio_complaints.len().to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::{GuestReport, Report, SIGKILLS};

    fn report() -> Report {
        let guest = GuestReport {
            tenant: "web".into(),
            qemu: "11.1".into(),
            reconnects: 3,
            rounds: 1,
            requests_of_guest: 10,
            requests_of_daemon: Some(10),
            taken_over: 1,
            qemu_said: vec![],
            most_requests_in_a_life: 4,
            queues_not_stopped: 0,
            in_flight: 0,
            longest_outage_ms: 200,
            kernel_complaints: vec![],
            fio_complaints: vec![],
        };
        Report { seed: 1, by: SIGKILLS, ends_under_load: 2, kills_at_rest: 1, guests: vec![guest] }
    }

    #[test]
    fn each_count_is_judged() {
        assert_eq!(report().problems(), Vec::<String>::new());
        let spoilers: [fn(&mut GuestReport); 8] = [
            |guest| guest.qemu_said.push("vfio-user: closed".into()),
            |guest| guest.reconnects = 2,
            |guest| guest.requests_of_daemon = Some(11),
            |guest| guest.most_requests_in_a_life = 65536,
            |guest| guest.queues_not_stopped = 1,
            |guest| guest.in_flight = 1,
            |guest| guest.rounds = 0,
            |guest| guest.fio_complaints.push("verify: bad".into()),
        ];
        for spoil in spoilers {
            let mut report = report();
            spoil(&mut report.guests[0]);
            assert_eq!(report.problems().len(), 1, "{:?}", report.problems());
        }
    }
}
