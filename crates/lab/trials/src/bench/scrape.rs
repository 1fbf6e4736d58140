//! What `GET /metrics` and `GET /live` of 1,000 tenants take, and what a poller notices of the former.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::online::{Client, Long, TENANTS, long_iterations, percentile_us, single};
use super::server::Server;
use super::{Figure, Goal, Options};

const SCRAPE_GOAL_MS: f64 = 100.0;
const SIZE_GOAL_MB: f64 = 10.0;
/// No iteration of a poller may take so much longer because of a scrape.
const ITERATION_GOAL_US: f64 = 50.0;

/// Before each scrape: for a second the daemon gives the same answer again.
const PAUSE: Duration = Duration::from_millis(1_100);

/// Single spans differ by what else the host does.
const ROUNDS_MIN: u32 = 9;

/// 1,000 tenants that have all read something are scraped: while nobody does anything, and beside one that reads.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let tenants: String = (0..TENANTS).map(|n| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"4MiB\"\n")).collect();
    let server = Server::start("memory", "lpns", &tenants)?;
    for n in 0..TENANTS {
        let reads = std::cell::Cell::new(0);
        let twice = || reads.replace(reads.get() + 1) >= 2;
        Client::attach(&server.socket(&format!("t{n}")))?.read_until(twice)?;
    }
    let mut size_mb = 0.0;
    let mut scrapes = |rounds: u32| -> Result<Vec<f64>> {
        let mut took_ms = Vec::new();
        for _ in 0..rounds {
            std::thread::sleep(PAUSE);
            let begun = Instant::now();
            let text = server.get("/metrics")?;
            took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            let seen = text.matches("evenkeel_tenant_latency_seconds_count").count();
            ensure!(seen == TENANTS, "the scrape tells of {seen} tenants");
            size_mb = text.len() as f64 / 1e6;
        }
        Ok(took_ms)
    };
    // The first one finds nothing judged.
    scrapes(1)?;
    let rounds = options.rounds.max(ROUNDS_MIN);
    let alone_ms = scrapes(rounds)?;
    let page = page(&server, rounds)?;
    let mut neighbour = Client::attach(&server.socket("t0"))?;
    let (mut calm, mut scraped, mut beside_ms) = (Noticed::default(), Noticed::default(), Vec::new());
    for _ in 0..rounds {
        let pause = || -> Result<()> {
            std::thread::sleep(PAUSE);
            Ok(())
        };
        let ((), read_ns, long) = beside_reads(&server, &mut neighbour, pause)?;
        calm.add(&read_ns, &long);
        let (took_ms, read_ns, long) = beside_reads(&server, &mut neighbour, || scrapes(1))?;
        beside_ms.extend(took_ms);
        scraped.add(&read_ns, &long);
    }
    notes.push(
        "each of the 1,000 tenants has read something, so that each has a histogram; the scraper, the metrics' thread, \
         the poller and the client that reads share two CPUs; spans without and with a scrape take turns, and the \
         client reads from before each until after it, so that the poller neither falls asleep nor wakes in one"
            .to_owned(),
    );
    let at_most = |goal| Some(Goal::AtMost(goal));
    let scrape = format!("a scrape of {TENANTS} tenants");
    let more_us = calm.longest_us.iter().zip(&scraped.longest_us).map(|(calm, scraped)| scraped - calm).collect();
    let mut figures = vec![
        Figure::of(scrape.clone(), alone_ms, "ms", at_most(SCRAPE_GOAL_MS))?,
        Figure::of(format!("{scrape}, one reads at QD1"), beside_ms, "ms", None)?,
        single(format!("{scrape}: size"), size_mb, "MB", at_most(SIZE_GOAL_MB)),
        Figure::of(
            "the poller's longest iteration of a second: more with a scrape",
            more_us,
            "µs",
            at_most(ITERATION_GOAL_US),
        )?,
    ];
    figures.extend(page);
    figures.extend(calm.figures("without a scrape")?);
    figures.extend(scraped.figures("with a scrape")?);
    Ok(figures)
}

/// Does something while a tenant reads: what came of it, what each read took, in order of size, and which long
/// iterations there were.
fn beside_reads<T>(
    server: &Server,
    reader: &mut Client,
    what: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<u64>, Long)> {
    let (is_over, (begun, has_begun)) = (AtomicBool::new(false), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        let stop = || {
            // A thread that waits for the first has heard of it.
            let _ = begun.send(());
            is_over.load(Ordering::Relaxed)
        };
        let reading = scope.spawn(move || reader.read_until(stop));
        // A thread that failed says so below.
        let _ = has_begun.recv_timeout(PAUSE);
        let done = long_iterations(server, what);
        is_over.store(true, Ordering::Relaxed);
        let read_ns = reading.join().map_err(|_| anyhow::anyhow!("the reader's thread failed"))??;
        let (done, long) = done?;
        Ok((done?, read_ns, long))
    })
}

/// What the poller and a tenant that reads at QD1 notice, a span each.
#[derive(Default)]
struct Noticed {
    longest_us: Vec<f64>,
    long_per_s: Vec<f64>,
    p99_us: Vec<f64>,
}

impl Noticed {
    fn add(&mut self, read_ns: &[u64], Long { count, longest_us, span_ms }: &Long) {
        self.longest_us.push(*longest_us);
        self.long_per_s.push(*count as f64 * 1e3 / (*span_ms).max(1) as f64);
        self.p99_us.push(percentile_us(read_ns, 99.0));
    }

    fn figures(self, when: &str) -> Result<[Figure; 3]> {
        Ok([
            Figure::of(format!("the poller's longest iteration of a second {when}"), self.longest_us, "µs", None)?,
            Figure::of(format!("its iterations of 50 µs and more {when}"), self.long_per_s, "/s", None)?,
            Figure::of(format!("a neighbour's p99 read at QD1 {when}"), self.p99_us, "µs", None)?,
        ])
    }
}

/// What the page asks for once a second.
fn page(server: &Server, rounds: u32) -> Result<[Figure; 2]> {
    let (mut took_ms, mut size_mb) = (Vec::new(), 0.0);
    for _ in 0..rounds {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let text = server.get("/live")?;
        took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        let seen = text.matches("\"predicted_p99_ns\":").count();
        ensure!(seen == TENANTS, "the page is told of {seen} tenants");
        size_mb = text.len() as f64 / 1e6;
    }
    let name = format!("the page's view of {TENANTS} tenants");
    Ok([Figure::of(name.clone(), took_ms, "ms", None)?, single(format!("{name}: size"), size_mb, "MB", None)])
}
