//! What `GET /metrics` of 1,000 tenants takes, and what a poller notices of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::online::{Client, Long, TENANTS, long_iterations, percentile_us, single};
use super::server::Server;
use super::{Figure, Goal, Options};

const SCRAPE_GOAL_MS: f64 = 100.0;
const SIZE_GOAL_MB: f64 = 10.0;
/// No iteration of a poller may take so much longer because of a scrape.
const ITERATION_GOAL_US: f64 = 50.0;

/// For so long the daemon gives the same answer again.
const FRESH: Duration = Duration::from_secs(1);

/// 1,000 tenants that have all read something are scraped: while nobody does anything, and beside one that reads.
pub fn measure(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let tenants: String = (0..TENANTS).map(|n| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"4MiB\"\n")).collect();
    let server = Server::start_with("memory", "lpns", "shared", &tenants)?;
    for n in 0..TENANTS {
        let reads = std::cell::Cell::new(0);
        let twice = || reads.replace(reads.get() + 1) >= 2;
        Client::attach(&server.socket(&format!("t{n}")))?.read_until(twice)?;
    }
    let mut size_mb = 0.0;
    let mut scrapes = |rounds: u32| -> Result<Vec<f64>> {
        let mut took_ms = Vec::new();
        for _ in 0..rounds {
            std::thread::sleep(FRESH + FRESH / 10);
            let begun = Instant::now();
            let text = scrape(&server)?;
            took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            let seen = text.matches("evenkeel_tenant_latency_seconds_count").count();
            ensure!(seen == TENANTS, "the scrape tells of {seen} tenants");
            size_mb = text.len() as f64 / 1e6;
        }
        Ok(took_ms)
    };
    let rounds = options.rounds.max(5);
    // The first one finds nothing judged.
    scrapes(1)?;
    let calm_ms = scrapes(rounds)?;
    let mut neighbour = Client::attach(&server.socket("t0"))?;
    let span = (FRESH + FRESH / 10) * rounds;
    let (alone_ns, alone) = long_iterations(&server, || {
        let begun = Instant::now();
        neighbour.read_until(|| begun.elapsed() >= span)
    })?;
    let is_over = AtomicBool::new(false);
    let (beside, scraped) = long_iterations(&server, || {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| neighbour.read_until(|| is_over.load(Ordering::Relaxed)));
            let took_ms = scrapes(rounds);
            is_over.store(true, Ordering::Relaxed);
            (took_ms, reader.join())
        })
    })?;
    let (beside_ms, read_ns) = (beside.0?, beside.1.map_err(|_| anyhow::anyhow!("the neighbour's thread failed"))??);
    notes.push(
        "each of the 1,000 tenants has read something, so that each has a histogram; the scraper, the metrics' thread, \
         the poller and the client that reads share two CPUs. Each 10 ms one iteration goes through all tenants, whoever \
         scrapes"
            .to_owned(),
    );
    let at_most = |goal| Some(Goal::AtMost(goal));
    let goal = at_most(SCRAPE_GOAL_MS);
    let mut figures = vec![
        Figure::of(format!("a scrape of {TENANTS} tenants"), calm_ms, "ms", goal)?,
        Figure::of(format!("a scrape of {TENANTS} tenants, one reads at QD1"), beside_ms, "ms", None)?,
        single(format!("a scrape of {TENANTS} tenants: size"), size_mb, "MB", at_most(SIZE_GOAL_MB)),
    ];
    for (when, Long { count, longest_us, span_ms }, ns) in
        [("while nobody scrapes", &alone, &alone_ns?), ("beside scrapes", &scraped, &read_ns)]
    {
        let per_second = *count as f64 * 1e3 / (*span_ms).max(1) as f64;
        figures.push(single(format!("the poller's longest iteration {when}, one reads"), *longest_us, "µs", None));
        figures.push(single(format!("its iterations of 50 µs and more {when}, one reads"), per_second, "/s", None));
        figures.push(single(format!("a neighbour's p99 read at QD1 {when}"), percentile_us(ns, 99.0), "µs", None));
    }
    let more_us = scraped.longest_us - alone.longest_us;
    let name = "the poller's longest iteration, one reads: more beside scrapes";
    figures.push(single(name, more_us, "µs", at_most(ITERATION_GOAL_US)));
    Ok(figures)
}

/// One scrape on the API's socket.
fn scrape(server: &Server) -> Result<String> {
    let mut stream = UnixStream::connect(server.socket("api.sock")).context("the API's socket")?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Ok(text.to_owned())
}
