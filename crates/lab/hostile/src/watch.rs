//! Asks the daemon all the time, and measures how long its answers take.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::victim::{Life, Plan, Victim};

/// Something that is asked again and again.
pub struct Watch {
    stop: Arc<AtomicBool>,
    longest_ns: Arc<AtomicU64>,
    thread: JoinHandle<Vec<String>>,
}

impl Watch {
    /// Asks for `stats`, each time over a new connection.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn control(runtime_dir: &Path, life: Arc<Life>) -> Result<Self> {
        let path = api::control_path(runtime_dir);
        Self::start("control", Duration::from_millis(2), life, move || api::Client::connect(&path)?.stats(0).map(drop))
    }

    /// Attaches to a tenant, writes and reads for a moment, and goes.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn newcomer(name: &'static str, directory: PathBuf, life: Arc<Life>) -> Result<Self> {
        let mut seed = 0;
        Self::start("newcomer", Duration::from_millis(50), life, move || {
            seed += 1;
            let plan = Plan { name, directory: directory.clone(), depth: 2, pause: Duration::ZERO, seed };
            let victim = Victim::start(plan, Arc::default())?;
            std::thread::sleep(Duration::from_millis(20));
            let (_, problems) = victim.stop();
            problems.first().map_or(Ok(()), |problem| Err(anyhow::anyhow!("{problem}")))
        })
    }

    fn start(
        name: &str,
        pause: Duration,
        life: Arc<Life>,
        mut ask: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (stop, longest_ns) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told_to_stop, longest) = (Arc::clone(&stop), Arc::clone(&longest_ns));
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let mut problems = Vec::new();
            while !told_to_stop.load(Relaxed) {
                let start = Instant::now();
                let (epoch, answer) = (life.up(), ask());
                // A daemon that was just killed answers nobody.
                if epoch.is_some() && epoch == life.up() {
                    longest.fetch_max(start.elapsed().as_nanos() as u64, Relaxed);
                    problems.extend(answer.err().map(|error| format!("{error:#}")));
                }
                std::thread::sleep(pause);
            }
            problems
        })?;
        Ok(Self { stop, longest_ns, thread })
    }

    /// The longest answer since the last time that this was asked.
    pub fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Relaxed))
    }

    /// Stops, and says what went wrong.
    pub fn stop(self) -> Vec<String> {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|_| vec!["its thread panicked".into()])
    }
}
