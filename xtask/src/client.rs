//! `cargo xtask client`: a client made of `docs/openapi.json` by a stock generator asks a daemon, so that the document
//! holds for programs that know nothing else.
//!
//! `openapi-python-client`, since the HTTP library under what it makes speaks over Unix sockets. It comes from PyPI
//! into an environment of its own, once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::server::Server;

/// Of this version, so that it makes the same client tomorrow.
const GENERATOR: &str = "openapi-python-client==0.29.1";

const DOCUMENT: &str = "docs/openapi.json";
const DIRECTORY: &str = "target/client";

/// What the client does: `argv` has the socket. The module's name follows from the document's title.
const PROGRAM: &str = r#"
import sys
import httpx
from evenkeel_client import Client
from evenkeel_client.api.default import create, list_
from evenkeel_client.models import NewDisk

transport = httpx.HTTPTransport(uds=sys.argv[1])
with Client("http://evenkeel", httpx_args={"transport": transport}, raise_on_unexpected_status=True) as client:
    print("made", create.sync(client=client, body=NewDisk(name="made", size="1MiB")).name)
    for disk in list_.sync(client=client):
        print(disk.name, disk.size_bytes, disk.state.value)
"#;

const TENANTS: &str = "[device]\nbackend = \"file\"\npath = \"drive.img\"\nsize = \"16MiB\"\ncreate = true\n\
                       [[tenant]]\nname = \"declared\"\nsize = \"4MiB\"\n";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// `evenkeel`, with the daemon beside it [default: the release build, made first]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The Python that the generator runs on, 3.11 or later
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
}

/// Makes the client, makes and lists disks with it.
pub fn run(options: &Options) -> Result<()> {
    let program = options.program.clone().map_or_else(build, Ok)?;
    let dir = Path::new(DIRECTORY);
    generator(&options.python, dir)?;
    let made = dir.join("made");
    let generate = run_in(dir, "openapi-python-client")
        .args(["generate", "--overwrite", "--path", DOCUMENT, "--output-path"])
        .arg(&made)
        .output()
        .context("can't start the generator")?;
    let said = [generate.stdout, generate.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    // Of what it does not understand it makes nothing, and says so.
    ensure!(generate.status.success() && !said.contains("Warning"), "{DOCUMENT} is not all understood: {said}");
    println!("{GENERATOR}: {said}");
    let image = tempfile::tempdir()?;
    let sections = TENANTS.replace("drive.img", &image.path().join("drive.img").display().to_string());
    let server = Server::serve(&program, &sections)?;
    let asked = run_in(dir, "python3")
        .args(["-c", PROGRAM])
        .arg(server.socket("api.sock"))
        .env("PYTHONPATH", &made)
        .output()
        .context("can't start the client")?;
    let (said, errors) = (String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
    print!("{said}");
    ensure!(asked.status.success(), "the client failed: {}", errors.trim());
    for line in ["made made", "declared 4194304 served", "made 1048576 served"] {
        ensure!(said.lines().any(|it| it == line), "{line:?} is missing in what the client said");
    }
    Ok(())
}

/// Builds both programs.
fn build() -> Result<PathBuf> {
    let arguments = ["build", "--release", "--quiet", "--package", "evenkeeld", "--package", "evenkeel"];
    let status = Command::new("cargo").args(arguments).status().context("can't run cargo")?;
    ensure!(status.success(), "the programs can't be built");
    Ok(crate::bench::server::evenkeel())
}

/// Gets the generator, unless it is there.
fn generator(python: &Path, dir: &Path) -> Result<()> {
    let is_there = run_in(dir, "openapi-python-client").arg("--version").output();
    let version = GENERATOR.rsplit('=').next().unwrap_or_default();
    if is_there.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(version)) {
        return Ok(());
    }
    let get = |what: &str, command: &mut Command| {
        let status = command.status();
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            bail!(
                "can't {what} ({status:?}). By hand, where there is a network: python3 -m venv {DIRECTORY}/venv && \
                 {DIRECTORY}/venv/bin/pip install {GENERATOR}"
            );
        }
        Ok(())
    };
    let venv = dir.join("venv");
    get("make an environment for Python", Command::new(python).args(["-m", "venv"]).arg(&venv))?;
    get("get the generator from PyPI", run_in(dir, "python3").args(["-m", "pip", "install", "--quiet", GENERATOR]))
}

/// A program of the environment, which finds its other programs.
fn run_in(dir: &Path, program: &str) -> Command {
    let bin = dir.join("venv/bin");
    let mut command = Command::new(bin.join(program));
    // The generator formats what it made by a program beside it.
    let bin = std::path::absolute(&bin).unwrap_or(bin);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display()));
    command
}
