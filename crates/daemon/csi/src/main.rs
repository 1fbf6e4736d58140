//! The program `evenkeel-csi`. See the library.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use api::Rest;
use clap::Parser;
use csi::{Linux, Plugin, Settings};

/// Calls that work at once: each has a thread while it does.
const THREADS: usize = 16;

/// The Container Storage Interface of one node, in front of its evenkeeld.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-csi", version)]
struct Args {
    /// The socket to serve, such as `unix:///csi/csi.sock`.
    #[arg(long, value_name = "URL", value_parser = socket)]
    endpoint: PathBuf,
    /// The node's name in the cluster.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_id: String,
    /// The API's socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = "/run/evenkeel/api.sock")]
    api: PathBuf,
    /// The most volumes that Kubernetes places on this node. 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    max_volumes: i64,
}

fn socket(url: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(url.strip_prefix("unix://").unwrap_or(url));
    if path.is_absolute() { Ok(path) } else { Err("expected unix:///PATH".to_owned()) }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Volumes are mounted on this host, which takes block devices.
    let settings = Settings { node: args.node_id, frontend: "ublk".to_owned(), max_volumes: args.max_volumes };
    let plugin = Plugin::new(Rest::new(args.api), Linux, settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build();
    let served = runtime.map_err(anyhow::Error::from).and_then(|it| it.block_on(csi::serve(plugin, &args.endpoint)));
    if let Err(error) = served {
        eprintln!("evenkeel-csi: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
