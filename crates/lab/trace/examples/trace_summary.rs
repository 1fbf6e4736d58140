//! What a trace holds, and how fast it was read:
//! `cargo run --release -p trace --example trace_summary -- FILE [FORMAT]`.

#![allow(clippy::disallowed_methods)] // The crate has no clock; this example measures.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use trace::{Format, Limits};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path: PathBuf = arguments.next().ok_or("expected a trace's path")?.into();
    let format: Option<Format> = match arguments.next() {
        Some(name) => Some(name.to_string_lossy().parse()?),
        None => None,
    };
    let started = Instant::now();
    let trace = trace::read_file(&path, format, Limits { max_entries: usize::MAX, ..Limits::default() })?;
    let read_s = started.elapsed().as_secs_f64();
    println!("{}: {}", trace.format(), trace.summary());
    println!("{:?}", trace.counts());
    println!("{:.2} M lines/s", trace.counts().lines as f64 / read_s / 1e6);
    Ok(())
}
