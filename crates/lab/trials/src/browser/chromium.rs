//! A headless Chromium that is told what to do over its DevTools protocol: lines of JSON that end with a zero byte, on
//! descriptors 3 and 4 (`--remote-debugging-pipe`), so that no library and no port stands between.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::guest::apt::PrivateApt;
use crate::guest::mirror;
use crate::wait;

/// How long anything may take, on a machine that does much else.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Has the shell put its standard input and output where Chromium looks for them.
const PIPES: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>\"$CHROMIUM_LOG\"";

const OPTIONS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
];

/// Where Debian's libraries are. The sound library names the last by an absolute path, where an unpacked one isn't.
const LIBRARIES: [&str; 3] =
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"];

/// A Chromium that can be run.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    /// Where it was unpacked, if it is not installed.
    root: Option<PathBuf>,
}

impl Program {
    /// The one that is installed; else Debian's, which is fetched into the cache once.
    ///
    /// # Errors
    /// When there is none and none can be had.
    pub fn find(cache: &Path) -> Result<Self> {
        if let Some(path) = installed() {
            return Ok(Self { path, root: None });
        }
        // Of this machine's own release: it runs on this machine's C library.
        let release = fs::read_to_string("/etc/os-release")?;
        let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let suite = suite.context("this is no release of Debian (/etc/os-release names none)")?;
        let root = cache.join(format!("chromium-{suite}"));
        let path = root.join("usr/lib/chromium/chromium");
        if !path.exists() {
            let apt = tempfile::tempdir()?;
            // An incomplete one has another name, and is made again.
            let part = root.with_extension("part");
            PrivateApt::new(apt.path(), &mirror::find()?, &[suite])?.unpack(suite, &["chromium"], &part)?;
            fs::rename(&part, &root)?;
        }
        Ok(Self { path, root: Some(root) })
    }

    /// Tells the program where its libraries and fonts are.
    fn prepare(&self, command: &mut Command) {
        let Some(root) = &self.root else { return };
        let search = LIBRARIES.map(|folder| root.join(folder).display().to_string());
        command.env("LD_LIBRARY_PATH", search.join(":")).env("FONTCONFIG_SYSROOT", root);
    }
}

fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut folders = std::env::split_paths(&path);
    folders.find_map(|folder| {
        ["chromium", "chromium-browser"].iter().map(|name| folder.join(name)).find(|program| program.is_file())
    })
}

/// A running browser; dropping it ends it.
pub struct Chromium {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    log: PathBuf,
    next_id: u64,
    /// What pages threw, or were forbidden.
    complaints: Vec<String>,
}

/// A page in a tab of its own.
#[derive(Debug, Clone)]
pub struct Page {
    session: String,
}

impl Chromium {
    /// Starts `program` with its files in `dir`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(program: &Program, dir: &Path) -> Result<Self> {
        let log = dir.join("chromium.log");
        let mut command = Command::new("sh");
        command.args(["-c", PIPES, "sh"]).arg(&program.path).args(OPTIONS);
        program.prepare(&mut command);
        let mut child = command
            .arg(format!("--user-data-dir={}", dir.join("profile").display()))
            .env("CHROMIUM_LOG", &log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.path.display()))?;
        let commands = child.stdin.take().context("no pipe to Chromium")?;
        let mut told = BufReader::new(child.stdout.take().context("no pipe from Chromium")?);
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while told.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                let value = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message));
                let Ok(value) = value else { return };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        Ok(Self { child, commands, answers, log, next_id: 1, complaints: Vec::new() })
    }

    /// What it wrote to its standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What pages threw or were forbidden since this was last asked.
    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Opens an empty tab of that many pixels.
    ///
    /// # Errors
    /// With Chromium's reason.
    pub fn open(&mut self, width: u32, height: u32) -> Result<Page> {
        let target = self.tell(None, "Target.createTarget", json!({"url": "about:blank", "newWindow": true}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = self.tell(None, "Target.attachToTarget", attach)?;
        let page = Page { session: attached["sessionId"].as_str().context("no session")?.to_owned() };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.on(&page, domain, json!({}))?;
        }
        self.resize(&page, width, height)?;
        Ok(page)
    }

    /// Makes the tab's window that large.
    ///
    /// # Errors
    /// With Chromium's reason.
    pub fn resize(&mut self, page: &Page, width: u32, height: u32) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.on(page, "Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Has the page believe that its user likes these colours: `light` or `dark`.
    ///
    /// # Errors
    /// With Chromium's reason.
    pub fn prefer(&mut self, page: &Page, colours: &str) -> Result<()> {
        let feature = json!({"name": "prefers-color-scheme", "value": colours});
        self.on(page, "Emulation.setEmulatedMedia", json!({"features": [feature]})).map(drop)
    }

    /// Goes to an address, from an empty page: a fragment alone would load nothing.
    ///
    /// # Errors
    /// With Chromium's reason.
    pub fn go(&mut self, page: &Page, url: &str) -> Result<()> {
        self.on(page, "Page.navigate", json!({"url": "about:blank"}))?;
        let gone = self.on(page, "Page.navigate", json!({"url": url}))?;
        ensure!(gone["errorText"].is_null(), "{url}: {}", gone["errorText"]);
        Ok(())
    }

    /// What an expression in the page is, once it has settled.
    ///
    /// # Errors
    /// With what it threw.
    pub fn evaluate(&mut self, page: &Page, expression: &str) -> Result<Value> {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.on(page, "Runtime.evaluate", asked)?;
        ensure!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true, which `what` says in words.
    ///
    /// # Errors
    /// When it never is; with what the page shows.
    pub fn wait(&mut self, page: &Page, what: &str, expression: &str) -> Result<()> {
        let whole = format!("Boolean({expression})");
        let waited = wait::for_this(what, LIMIT, || {
            // A page on its way to another has no element yet.
            Ok(self.evaluate(page, &whole).is_ok_and(|found| found == true).then_some(()))
        });
        waited.with_context(|| {
            let shown = self.evaluate(page, "document.body.innerText.slice(0, 2000)").unwrap_or_default();
            format!("the page shows: {}", shown.as_str().unwrap_or_default())
        })
    }

    /// Presses a key and lets it go.
    ///
    /// # Errors
    /// With Chromium's reason.
    pub fn press(&mut self, page: &Page, key: &str, text: Option<&str>) -> Result<()> {
        for kind in ["keyDown", "keyUp"] {
            let code = if key == "Enter" { 13 } else { 27 };
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if let (Some(text), "keyDown") = (text, kind) {
                event["text"] = json!(text);
            }
            self.on(page, "Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// What the page looks like, as a PNG in base64.
    ///
    /// # Errors
    /// With Chromium's reason.
    pub fn screenshot(&mut self, page: &Page) -> Result<String> {
        let shot = self.on(page, "Page.captureScreenshot", json!({"format": "png"}))?;
        Ok(shot["data"].as_str().context("no picture")?.to_owned())
    }

    fn on(&mut self, page: &Page, method: &str, params: Value) -> Result<Value> {
        self.tell(Some(page), method, params)
    }

    fn tell(&mut self, page: Option<&Page>, method: &str, params: Value) -> Result<Value> {
        let id = self.next_id;
        self.next_id += 1;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(page) = page {
            message["sessionId"] = json!(page.session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.commands.write_all(&bytes).with_context(|| format!("Chromium has ended: {}", self.log()))?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let told = self.answers.recv_timeout(left);
            let told = told.with_context(|| format!("Chromium gives no answer to {method}: {}", self.log()))?;
            if told["id"] == id {
                match told.get("error") {
                    Some(error) => bail!("{method}: {error}"),
                    None => return Ok(told["result"].clone()),
                }
            }
            self.complaints.extend(complaint(&told));
        }
    }
}

/// What is wrong in a page, if a message is about that; that something could not be had is not.
fn complaint(told: &Value) -> Option<String> {
    match told["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(told["params"]["exceptionDetails"].to_string()),
        "Log.entryAdded" if told["params"]["entry"]["source"] == "security" => {
            Some(told["params"]["entry"].to_string())
        }
        _ => None,
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // It ends its own processes when told so, and when its pipe ends.
        let _ = self.tell(None, "Browser.close", json!({}));
        let _ = self.child.wait();
    }
}
