//! `cargo xtask package`: a Debian package of the programs, with what an operator expects beside them.
//!
//! Manual pages and completions come from the program itself; the rest lies in `packaging/`, and what goes where says
//! the manifest of `crates/evenkeel`. `cargo-deb` makes the package of it. There is one: the laboratory is part of
//! `evenkeel`, which is a single program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::guest::daemon;

/// The programs in it.
pub const PROGRAMS: [&str; 3] = ["evenkeel", "evenkeeld", "evenkeel-keeper"];

/// Each shell, and what its completions are called where it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "evenkeel"), ("zsh", "_evenkeel"), ("fish", "evenkeel.fish")];

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to
    #[arg(long, value_name = "DIR", default_value = "target/debian")]
    out: PathBuf,
    /// Its version [default: that of the programs, with the revision 1]
    #[arg(long, value_name = "VERSION")]
    deb_version: Option<String>,
}

/// Builds the programs and packages them.
///
/// # Errors
/// When there is no `cargo-deb`, or something can't be built.
pub fn run(options: &Options) -> Result<()> {
    find_cargo_deb()?;
    let programs = daemon::build(
        daemon::Profile::Release,
        &["--package", "evenkeel", "--package", "evenkeeld", "--package", "keeper"],
    )?;
    stage(&programs)?;
    println!("package: {}", pack(options.deb_version.as_deref(), &options.out, Effort::Small)?.display());
    Ok(())
}

/// Whether what makes packages is here.
///
/// # Errors
/// It is not; the message says how to get it.
pub fn find_cargo_deb() -> Result<()> {
    let found = cargo().args(["deb", "--version"]).output().is_ok_and(|output| output.status.success());
    ensure!(found, "there is no cargo-deb, which makes packages: `cargo install cargo-deb --locked`");
    Ok(())
}

/// Lays out what goes into packages: the programs in a folder, and what they say of themselves.
///
/// # Errors
/// When one is missing or fails.
pub fn stage(programs: &Path) -> Result<()> {
    let stage = root().join("target/package");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    fs::create_dir_all(stage.join("completions"))?;
    for program in PROGRAMS {
        let from = programs.join(program);
        // Symbols are four fifths of it.
        let mut strip = Command::new("strip");
        said(strip.arg("-o").arg(stage.join(program)).arg(&from)).context("strip is binutils'")?;
    }
    let evenkeel = stage.join(PROGRAMS[0]);
    said(Command::new(&evenkeel).args(["man", "--out"]).arg(stage.join("man")))?;
    let help = said(Command::new(stage.join(PROGRAMS[2])).arg("--help"))?;
    fs::write(stage.join("man/evenkeel-keeper.8"), keepers_page(&help))?;
    for (shell, file) in COMPLETIONS {
        let script = said(Command::new(&evenkeel).args(["completions", shell]))?;
        fs::write(stage.join("completions").join(file), script)?;
    }
    Ok(())
}

/// The keeper's manual page: what it says of itself, as it says it.
fn keepers_page(help: &str) -> String {
    let (what, usage) = help.split_once("\n\n").unwrap_or((help, ""));
    let lines = usage.lines().map(|line| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
    format!(
        ".TH EVENKEEL\\-KEEPER 8\n.SH NAME\nevenkeel\\-keeper \\- {what}\n.SH DESCRIPTION\n.nf\n{}.fi\n\
         .SH SEE ALSO\n.BR evenkeeld (8),\n.BR evenkeel.toml (5),\n/usr/share/doc/evenkeel/SURVIVING.md\n",
        lines.collect::<String>()
    )
}

/// What a package is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// To be kept: as small as it gets.
    Small,
    /// To be installed once: a fifth larger, in a quarter of the time.
    Quick,
}

/// Makes a package of what is laid out, in a folder, and returns where it is.
///
/// # Errors
/// When `cargo-deb` fails.
pub fn pack(version: Option<&str>, out: &Path, effort: Effort) -> Result<PathBuf> {
    let mut deb = cargo();
    deb.args(["deb", "--quiet", "--package", PROGRAMS[0], "--no-build", "--no-strip", "--output"]);
    // A folder, which it makes where it ends so.
    deb.arg(std::path::absolute(out)?.join(""));
    if effort == Effort::Quick {
        deb.arg("--fast");
    }
    deb.args(version.iter().flat_map(|version| ["--deb-version", version]));
    let told = said(deb.current_dir(root()))?;
    let path = told.lines().last().context("cargo-deb does not say where the package is")?;
    Ok(PathBuf::from(path.trim()))
}

/// Cargo, as it runs this program.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// What a command that must succeed prints.
///
/// # Errors
/// When it can't be run, or fails; the error holds what it says.
pub fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{program} can't be run"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}
