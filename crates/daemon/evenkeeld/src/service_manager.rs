//! What a service manager is told by the protocol of sd_notify(3): that the daemon serves, what, and that it lives.
//!
//! By hand, since what crates offer opens a socket for each message, which no confined thread may: this one is opened
//! before the walls go up, and one thread writes to it.

use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use client_socket::notify_socket;
use confine::ThreadKind;
use io_model::Nanos;
use rustix::time::{ClockId, clock_gettime};

use observe::clock::Clock;
use runtime::poller_watchdog::{Pulses, Stuck};
use runtime::{panics, threads};

/// The watchdog is fed so often in its interval.
const FEEDS: u32 = 4;

/// A service manager that waits to be told.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
    /// It ends the daemon if it does not hear for so long that it lives.
    watchdog: Option<Duration>,
}

/// What it is told.
#[derive(Debug)]
enum Notice {
    /// The daemon serves, or has read its file again.
    Ready,
    /// It reads its file again.
    Reloading,
    /// It ends.
    Stopping,
    /// What it serves, for people.
    Status(String),
}

/// Tells the service manager, from any thread and without waiting; or nobody where there is none.
#[derive(Debug, Clone, Default)]
pub struct Notices(Option<Sender<Notice>>);

impl Notices {
    /// The daemon serves, or has read its file again.
    pub fn ready(&self) {
        self.tell(Notice::Ready);
    }

    /// It reads its file again, and will be [ready](Self::ready) after that.
    pub fn reloading(&self) {
        self.tell(Notice::Reloading);
    }

    /// It ends.
    pub fn stopping(&self) {
        self.tell(Notice::Stopping);
    }

    /// What it serves, in words, one line.
    pub fn status(&self, text: String) {
        self.tell(Notice::Status(text));
    }

    /// Whether there is a service manager that wants messages.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    fn tell(&self, notice: Notice) {
        if let Some(manager) = &self.0 {
            // Its thread ends only after all of these.
            let _ = manager.send(notice);
        }
    }
}

impl Manager {
    /// The one that started this process, by its environment.
    ///
    /// # Errors
    /// It can't be reached.
    pub fn find() -> std::io::Result<Option<Self>> {
        let Some(socket) = notify_socket()? else { return Ok(None) };
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| for_us && *usec > 0).map(Duration::from_micros);
        Ok(Some(Self { socket, watchdog }))
    }

    /// Starts the thread that tells it. While all `pollers` make progress it feeds the manager's watchdog, too.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(self, pollers: Pulses, clock: Clock) -> std::io::Result<Notices> {
        let (sender, notices) = channel();
        let run = move || self.run(&notices, &pollers, clock);
        std::thread::Builder::new().name("manager".into()).spawn(run)?;
        Ok(Notices(Some(sender)))
    }

    fn run(self, notices: &Receiver<Notice>, pollers: &Pulses, clock: Clock) {
        threads::enter(ThreadKind::Manager);
        let mut feeding = self.watchdog.map(Feeding::start);
        let mut status = String::new();
        loop {
            let next = match &feeding {
                Some(feeding) => notices.recv_timeout(feeding.next.saturating_duration_since(Instant::now())),
                None => notices.recv().map_err(RecvTimeoutError::from),
            };
            match next {
                Ok(notice) => {
                    self.say(&in_words(&notice));
                    if let Notice::Status(text) = notice {
                        status = text;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(feeding) = feeding.as_mut().filter(|feeding| feeding.next <= Instant::now()) {
                panics::drill();
                self.say(&feeding.look(pollers, clock.now(), &status));
            }
        }
    }

    fn say(&self, text: &str) {
        // A manager that is gone, or does not read, can't be told that.
        let _ = self.socket.send(text.as_bytes());
    }
}

fn in_words(notice: &Notice) -> String {
    match notice {
        Notice::Ready => "READY=1".to_owned(),
        Notice::Reloading => {
            // The manager holds it against the time at which it asked.
            let now = clock_gettime(ClockId::Monotonic);
            let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
            format!("RELOADING=1\nMONOTONIC_USEC={usec}")
        }
        Notice::Stopping => "STOPPING=1\nSTATUS=Completing commands in flight".to_owned(),
        Notice::Status(text) => format!("STATUS={text}"),
    }
}

/// When the watchdog is fed, and with what.
struct Feeding {
    interval: Duration,
    next: Instant,
    /// The poller that was last reported as stuck.
    told: Option<usize>,
}

impl Feeding {
    fn start(interval: Duration) -> Self {
        Self { interval, next: Instant::now(), told: None }
    }

    /// The next message: that the daemon lives, or which poller is stuck. The latter starves the watchdog, and the
    /// manager acts. `status`: the last message about what is served.
    fn look(&mut self, pollers: &Pulses, now: Nanos, status: &str) -> String {
        self.next = Instant::now() + self.interval / FEEDS;
        // By half the interval: a look that just missed it still comes in time for the next.
        let limit = Nanos(u64::try_from(self.interval.as_nanos() / 2).unwrap_or(u64::MAX));
        match pollers.stuck(now, limit) {
            None => match self.told.take() {
                None => "WATCHDOG=1".to_owned(),
                Some(poller) => {
                    tracing::info!("poller {poller} makes progress again");
                    format!("WATCHDOG=1\nSTATUS={status}")
                }
            },
            Some(Stuck { poller, lasts }) => {
                let line = format!("poller {poller} is stuck: it has been in one iteration for {lasts}");
                if self.told.replace(poller) != Some(poller) {
                    tracing::error!("{line}; the service manager ends the daemon if that lasts");
                }
                format!("STATUS={line}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use poller::{Inside, Iterations};

    use super::*;

    #[test]
    fn the_watchdog_starves_while_a_poller_is_stuck_and_the_status_comes_back_after() {
        let pollers = Pulses::default();
        let [one, other] = [0, 1].map(|poller| Arc::new(Iterations::new(poller, Arc::new(Inside::new(1, 1)))));
        [&one, &other].into_iter().for_each(|it| pollers.add(it));
        let mut feeding = Feeding::start(Duration::from_secs(4));
        let mut told = |now_ms| feeding.look(&pollers, Nanos::from_millis(now_ms), "Serving 1 disk on 1 drive");
        one.begins(Nanos::from_millis(1000));
        assert_eq!(told(2999), "WATCHDOG=1");
        for now_ms in [3000, 4000, 9000] {
            let told = told(now_ms);
            assert!(told.starts_with("STATUS=poller 0 is stuck: it has been in one iteration for"), "{told}");
        }
        one.begins(Nanos::from_millis(9500));
        assert_eq!(told(10_000), "WATCHDOG=1\nSTATUS=Serving 1 disk on 1 drive");
        assert_eq!(told(11_000), "WATCHDOG=1");
    }
}
