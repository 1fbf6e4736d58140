//! `evenkeel top`: shows in a terminal what each tenant gets, and what harms it.

mod app;
mod draw;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use api::{EventsAfter, Rest, Snapshot, StatsAsked};
use app::{App, Does};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::disk::Figures;

/// The longest time before a key is noticed or an answer shown.
const LOOK: Duration = Duration::from_millis(50);

/// Time between attempts to reach a daemon that went away.
const RETRY: Duration = Duration::from_secs(1);

/// Watch each tenant's throughput and latency; broken promises come first.
#[derive(Debug, clap::Args)]
#[command(after_help = "Keys: q quits, ↑ ↓ select a tenant, Enter shows or hides its details, s changes the order, \
                        space freezes the screen.")]
pub struct Args {
    #[command(flatten)]
    daemon: Figures,

    /// Seconds per measurement, 1 to 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,

    /// Show only the tenants of this drive.
    #[arg(long, value_name = "NAME")]
    drive: Option<String>,
}

/// Messages of the thread that asks the daemon.
enum Told {
    Snapshot(Box<Snapshot>, Vec<api::Event>),
    Lost(String),
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    ensure!(has_terminal, "top needs a terminal; `evenkeel stats` prints the same, and --json for programs");
    let daemon = args.daemon.daemon();
    // Asked before the screen is taken: errors belong in the shell.
    let now = daemon.stats(StatsAsked::default())?;
    if let Some(drive) = &args.drive {
        let drives: Vec<String> = now.drives.into_iter().map(|it| it.drive).collect();
        ensure!(drives.contains(drive), "there is no drive {drive:?}; there are: {}", drives.join(", "));
    }
    let is_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&is_to_end))?;
    }
    let told = ask(daemon, StatsAsked { span_ms: args.interval * 1000 })?;
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, &told, App::new(args.drive.clone()), &is_to_end);
    ratatui::try_restore()?;
    ended
}

/// Asks on a thread of its own, which ends with this process. An answer takes as long as its span.
fn ask(daemon: Rest, asked: StatsAsked) -> Result<Receiver<Told>> {
    let (sender, told) = sync_channel(1);
    let work = move || {
        let mut after = EventsAfter::default();
        loop {
            let answer = daemon.stats(asked).and_then(|snapshot| Ok((snapshot, daemon.events(after)?)));
            let is_lost = answer.is_err();
            let news = match answer {
                Ok((snapshot, told)) => {
                    after.since = told.next;
                    Told::Snapshot(Box::new(snapshot), told.events)
                }
                Err(error) => Told::Lost(format!("{error:#}")),
            };
            if sender.send(news).is_err() {
                return;
            }
            if is_lost {
                thread::sleep(RETRY);
            }
        }
    };
    thread::Builder::new().name("stats".into()).spawn(work)?;
    Ok(told)
}

/// Waits a while for an event. `None`: the terminal is gone. The event library would then read it for ever.
fn wait_for_event() -> Result<Option<bool>> {
    let stdin = std::io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let look = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
    match poll(&mut polled, Some(&look)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Ok(None);
    }
    Ok(Some(event::poll(Duration::ZERO)?))
}

/// Runs until a key or a signal ends it. Restores the terminal in both cases.
fn show(terminal: &mut DefaultTerminal, told: &Receiver<Told>, mut app: App, is_to_end: &AtomicBool) -> Result<()> {
    let mut is_stale = true;
    while !is_to_end.load(Ordering::Relaxed) {
        for news in told.try_iter() {
            is_stale |= match news {
                Told::Snapshot(snapshot, events) => app.take(*snapshot, events),
                Told::Lost(why) => app.lost(why),
            };
        }
        if is_stale && terminal.draw(|frame| draw::draw(frame, &mut app)).is_err() {
            // The terminal is gone here, too.
            std::process::exit(1);
        }
        let Some(is_there) = wait_for_event()? else {
            // The terminal is gone: an attempt to restore it would fail in a drop.
            std::process::exit(1);
        };
        is_stale = is_there;
        if !is_stale {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && app.key(key) == Does::End
        {
            break;
        }
    }
    Ok(())
}
