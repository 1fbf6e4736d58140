//! What is checked of the page.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::chromium::{Chromium, Page};
use super::site::Site;

/// What the checks share.
pub struct Bench {
    pub chromium: Chromium,
    pub axe: String,
    pub binary: PathBuf,
    pub dir: PathBuf,
}

type Check = fn(&mut Bench, bool) -> Result<()>;

pub const ALL: [(&str, Check); 2] = [("who hurts whom", who_hurts_whom), ("a thousand tenants", a_thousand_tenants)];

/// A slow drive's model without a policy that protects anybody: what `batch` reads at once takes a tenth of a second,
/// whatever the host of the test does beside.
const NOISY: &str = "[device]\nbackend = \"model\"\nprofile = \"p3520\"\nsize = \"1GiB\"\n\
                     [policy]\nname = \"passthrough\"\n\
                     [[tenant]]\nname = \"db\"\nsize = \"256MiB\"\nclass = \"guaranteed\"\nlatency_target = \"40ms\"\n\
                     overcommit = true\n[[tenant]]\nname = \"batch\"\nsize = \"256MiB\"\n\
                     [[tenant]]\nname = \"web\"\nsize = \"128MiB\"\n";
const LIGHT: &str = "--rw randread --bs 4k --iodepth 16";
const NOISE: &str = "--rw randread --bs 512k --iodepth 64 --numjobs 4";

const HEADLINE: &str = "document.getElementById('headline').textContent";
const HEAT_WORDS: &str = "document.getElementById('heat-words').textContent";
const DAEMON: &str = "document.getElementById('daemon').textContent";

/// The text of a cell of a tenant's row.
fn cell(tenant: &str, name: &str) -> String {
    let row = format!(
        "[...document.querySelectorAll('#tenants tr')]\
         .find((it) => it.querySelector('.name').textContent === '{tenant}')"
    );
    format!("{row}?.querySelector('.{name}').textContent")
}

fn who_hurts_whom(bench: &mut Bench, pictures: bool) -> Result<()> {
    let tenants = ["db", "batch", "web"].map(str::to_owned);
    let mut site = Site::start(&bench.binary, &bench.dir.join("noisy"), NOISY, &tenants)?;
    let page = bench.chromium.open(1280, 900)?;
    a_stale_token_is_asked_for_anew(bench, &site, &page)?;
    let other = bench.chromium.open(1280, 900)?;
    bench.chromium.go(&other, &site.page(&site.token()?))?;
    let db = site.load("db", LIGHT)?;
    for page in [&page, &other] {
        bench.chromium.wait(page, "a promise that is kept", &format!("{HEADLINE} === '✓ The one promise is kept'"))?;
    }
    figures_change(bench, &page)?;
    if pictures {
        open_detail(bench, &page)?;
        bench.chromium.wait(&page, "columns before the noise", &format!("parseInt({HEAT_WORDS}) >= 20"))?;
    }
    let batch = site.load("batch", NOISE)?;
    for page in [&page, &other] {
        let named = format!("{HEADLINE} === '✗ db: BROKEN, hurt by batch'");
        bench.chromium.wait(page, "victim and culprit in the first line", &named)?;
    }
    if pictures {
        bench.chromium.wait(&page, "columns with the noise", &format!("parseInt({HEAT_WORDS}) >= 45"))?;
        save(bench, &page, "page-tenant")?;
        close_detail(bench, &page)?;
    }
    for (tenant, name, wanted) in
        [("db", "state", "✗ BROKEN"), ("db", "who", "hurt by batch"), ("batch", "who", "hurts db")]
    {
        let found = bench.chromium.evaluate(&page, &cell(tenant, name))?;
        let is_as_wanted = found.as_str().is_some_and(|found| found.starts_with(wanted));
        ensure!(is_as_wanted, "{tenant}'s {name} is {found}, not {wanted:?}");
    }
    let order = "[...document.querySelectorAll('#tenants .name')].map((it) => it.textContent).join()";
    ensure!(bench.chromium.evaluate(&page, order)? == "db,batch,web", "the broken first, then who hurts");
    looks_well(bench, &page, pictures)?;
    the_histogram_fills(bench, &page)?;
    a_link_opens_its_tenant(bench, &page)?;
    drop((db, batch));
    it_goes_on_with_the_next_daemon(bench, &mut site, &[&page, &other])?;
    no_complaints(bench)
}

fn no_complaints(bench: &mut Bench) -> Result<()> {
    let complaints = bench.chromium.complaints();
    ensure!(complaints.is_empty(), "the page threw or was forbidden: {}", complaints.join("\n"));
    Ok(())
}

fn a_stale_token_is_asked_for_anew(bench: &mut Bench, site: &Site, page: &Page) -> Result<()> {
    bench.chromium.go(page, &site.page("of-yesterday"))?;
    give_token(bench, site, page)?;
    bench.chromium.wait(page, "tenants", "document.querySelectorAll('#tenants tr').length === 3")
}

/// Answers the page's question for the token.
fn give_token(bench: &mut Bench, site: &Site, page: &Page) -> Result<()> {
    let chromium = &mut bench.chromium;
    let form = "document.getElementById('token-form')";
    chromium.wait(page, "the question for the token", &format!("{form}.hidden === false"))?;
    let shown = chromium.evaluate(page, &format!("{form}.innerText + location.href"))?;
    let shown = shown.as_str().unwrap_or_default();
    ensure!(shown.contains("each start has a new one") && shown.contains("the token is in "), "{shown}");
    ensure!(!shown.contains("of-yesterday"), "the token stays in the address: {shown}");
    ensure!(chromium.evaluate(page, "document.activeElement.type")? == "password", "the field has the focus");
    let typed = format!("document.getElementById('token').value = '{}'", site.token()?);
    chromium.evaluate(page, &typed)?;
    chromium.press(page, "Enter", Some("\r"))?;
    chromium.wait(page, "the question's end", &format!("{form}.hidden === true"))
}

fn figures_change(bench: &mut Bench, page: &Page) -> Result<()> {
    let iops = cell("db", "iops");
    bench.chromium.wait(page, "commands", &format!("/^[1-9]/.test({iops})"))?;
    let before = bench.chromium.evaluate(page, &iops)?;
    bench.chromium.wait(page, "other figures", &format!("{iops} !== {before}"))?;
    let line = "document.querySelector('#tenants .line').getAttribute('d').length > 0";
    bench.chromium.wait(page, "a line of the last hour", line)
}

/// No violation in either colour and either width, nor anything wider than the window.
fn looks_well(bench: &mut Bench, page: &Page, pictures: bool) -> Result<()> {
    for (colours, width, height) in [("light", 1280, 800), ("dark", 1280, 800), ("light", 360, 720), ("dark", 360, 720)]
    {
        bench.chromium.prefer(page, colours)?;
        bench.chromium.resize(page, width, height)?;
        is_accessible(bench, page).with_context(|| format!("{colours}, {width} pixels wide"))?;
        let fits = "document.documentElement.scrollWidth <= window.innerWidth";
        ensure!(bench.chromium.evaluate(page, fits)? == true, "it is wider than {width} pixels");
        match (colours, width) {
            ("light", 1280) if pictures => save(bench, page, "page-wide-light")?,
            ("dark", 360) if pictures => save(bench, page, "page-narrow-dark")?,
            _ => {}
        }
    }
    bench.chromium.prefer(page, "light")?;
    bench.chromium.resize(page, 1280, 900)
}

fn is_accessible(bench: &mut Bench, page: &Page) -> Result<()> {
    if bench.chromium.evaluate(page, "typeof axe")? == "undefined" {
        let script = format!("{}; undefined", bench.axe);
        bench.chromium.evaluate(page, &script)?;
    }
    // `false`: that something was said counts too little to be kept.
    let run = "axe.run({resultTypes: ['violations']}).then((it) => it.violations.map((v) => \
               `${v.id}: ${v.help} (${v.nodes.map((n) => n.html + ' ' + n.failureSummary).slice(0, 3).join('; ')})`))";
    let found = bench.chromium.evaluate(page, run)?;
    let found = found.as_array().context("axe says nothing")?;
    ensure!(found.is_empty(), "axe-core: {}", Value::from(found.clone()));
    Ok(())
}

fn the_histogram_fills(bench: &mut Bench, page: &Page) -> Result<()> {
    open_detail(bench, page)?;
    let chromium = &mut bench.chromium;
    chromium.wait(page, "latencies over time", &format!("{HEAT_WORDS}.includes('are from')"))?;
    // A picture of more than one colour.
    let drawn = "(() => { const it = document.getElementById('heat'); \
                 const px = new Uint32Array(it.getContext('2d').getImageData(0, 0, it.width, it.height).data.buffer); \
                 return new Set(px).size > 2; })()";
    chromium.wait(page, "a picture", drawn)?;
    let facts = chromium.evaluate(page, "document.getElementById('facts').innerText")?;
    ensure!(facts.as_str().is_some_and(|it| it.contains("40.0 ms") && it.contains("with the drive")), "{facts}");
    is_accessible(bench, page).context("the dialog")?;
    close_detail(bench, page)
}

/// By the keyboard alone.
fn open_detail(bench: &mut Bench, page: &Page) -> Result<()> {
    let chromium = &mut bench.chromium;
    let name = "[...document.querySelectorAll('#tenants .name')].find((it) => it.textContent === 'db')";
    chromium.evaluate(page, &format!("{name}.focus()"))?;
    chromium.press(page, "Enter", Some("\r"))?;
    chromium.wait(page, "the tenant's dialog", "document.getElementById('detail').open")?;
    ensure!(chromium.evaluate(page, "document.getElementById('detail-name').textContent")? == "db");
    Ok(())
}

/// An address that names a tenant opens the tenant's dialog, as links in alerts do.
fn a_link_opens_its_tenant(bench: &mut Bench, page: &Page) -> Result<()> {
    let chromium = &mut bench.chromium;
    chromium.evaluate(page, "location.hash = 'tenant=web'")?;
    let name = "document.getElementById('detail').open && document.getElementById('detail-name').textContent";
    chromium.wait(page, "the linked tenant's dialog", &format!("({name}) === 'web'"))?;
    let told = "document.getElementById('detail-remedies').textContent";
    chromium.wait(page, "the command that tells more", &format!("{told}.includes('evenkeel why web')"))?;
    chromium.press(page, "Escape", None)?;
    chromium.wait(page, "the dialog's end", "!document.getElementById('detail').open")
}

/// The focus goes back to where it was.
fn close_detail(bench: &mut Bench, page: &Page) -> Result<()> {
    bench.chromium.press(page, "Escape", None)?;
    bench.chromium.wait(page, "the dialog's end", "!document.getElementById('detail').open")?;
    let focused = bench.chromium.evaluate(page, "document.activeElement.textContent")?;
    ensure!(focused == "db", "the focus went to {focused}");
    Ok(())
}

fn it_goes_on_with_the_next_daemon(bench: &mut Bench, site: &mut Site, pages: &[&Page]) -> Result<()> {
    let began = bench.chromium.evaluate(pages[0], DAEMON)?;
    site.kill()?;
    let silent = "/^No answer since .*shown is what was/.test(document.getElementById('connection').innerText)";
    for page in pages {
        bench.chromium.wait(page, "word of the daemon's end", silent)?;
        let rows = bench.chromium.evaluate(page, "document.querySelectorAll('#tenants tr').length")?;
        ensure!(rows == 3, "what was is gone: {rows}");
    }
    site.start_again()?;
    let load = site.load("db", LIGHT)?;
    for page in pages {
        give_token(bench, site, page)?;
        bench.chromium.wait(page, "answers", "document.getElementById('connection').hidden")?;
        bench.chromium.wait(page, "the next daemon's start", &format!("{DAEMON} !== {began}"))?;
        bench.chromium.wait(page, "figures", &format!("/^[0-9]/.test({})", cell("db", "iops")))?;
        let iops = bench.chromium.evaluate(page, &cell("db", "iops"))?;
        ensure!(!iops.as_str().unwrap_or("-").contains('-'), "a negative rate: {iops}");
    }
    drop(load);
    Ok(())
}

fn a_thousand_tenants(bench: &mut Bench, _: bool) -> Result<()> {
    let mut sections = "[device]\nbackend = \"null\"\nsize = \"2GiB\"\n[policy]\nname = \"passthrough\"\n".to_owned();
    let names: Vec<String> = (0..1000).map(|n| format!("tenant-{n:04}")).collect();
    for name in &names {
        write!(sections, "[[tenant]]\nname = {name:?}\nsize = \"1MiB\"\n")?;
    }
    let site = Site::start(&bench.binary, &bench.dir.join("many"), &sections, &names[999..])?;
    let chromium = &mut bench.chromium;
    let page = chromium.open(1280, 900)?;
    chromium.go(&page, &site.page(&site.token()?))?;
    let shown = "document.getElementById('shown').textContent";
    chromium.wait(&page, "a hundred of a thousand", &format!("{shown} === '100 of 1000 shown'"))?;
    ensure!(chromium.evaluate(&page, "document.querySelectorAll('#tenants tr').length")? == 100);
    chromium.evaluate(&page, "document.getElementById('more').click()")?;
    chromium.wait(&page, "two hundred", &format!("{shown} === '200 of 1000 shown'"))?;
    let filter = "(() => { const it = document.getElementById('filter'); it.value = '0777'; \
                  it.dispatchEvent(new Event('input', {bubbles: true})); })()";
    chromium.evaluate(&page, filter)?;
    chromium.wait(&page, "the one", &format!("{shown} === '1 of 1000 tenants'"))?;
    ensure!(chromium.evaluate(&page, "document.querySelector('#tenants .name').textContent")? == "tenant-0777");
    is_accessible(bench, &page)?;
    no_complaints(bench)
}

/// Writes a picture for the documentation.
fn save(bench: &mut Bench, page: &Page, name: &str) -> Result<()> {
    let picture = bench.chromium.screenshot(page)?;
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/images");
    fs::create_dir_all(dir)?;
    let path = format!("{dir}/{name}.png");
    let mut decode = Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(fs::File::create(&path)?).spawn()?;
    std::io::Write::write_all(&mut decode.stdin.take().context("no pipe")?, picture.as_bytes())?;
    ensure!(decode.wait()?.success(), "base64 -d failed");
    println!("wrote {path}");
    Ok(())
}
