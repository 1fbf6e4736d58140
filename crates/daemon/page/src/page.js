// What is shown when: a reading a second, through the daemon's end and beginning.

const PERIOD_MS = 1000;

let shown = null;
/// Since when there is no answer.
let silentSince = null;
let timer = 0;
/// A tenant to open as soon as the daemon tells of it.
let linked = linkedTenant();

function headline(live) {
  const promised = live.tenants.filter((tenant) => tenant.target_ns !== null);
  const broken = promised.filter(isBroken);
  if (broken.length) {
    const [first, ...others] = broken.toSorted((one, other) => Number(!one.verdict.blame) - Number(!other.verdict.blame));
    const more = others.length ? `; ${others.length} more: ${others.slice(0, 5).map((it) => it.name).join(", ")}` : "";
    const ellipsis = others.length > 5 ? " …" : "";
    return ["broken", `✗ ${first.name}: BROKEN, ${fault(first.verdict.blame)}${more}${ellipsis}`, first.verdict.blame?.why ?? "", first];
  }
  if (!promised.length) return ["none", "Nobody was promised a latency.", ""];
  const open = promised.filter((tenant) => (tenant.verdict?.kept ?? null) === null);
  // Too few of its commands are back to tell, or none.
  const unclear = open.filter((tenant) => tenant.moved?.iops > 0 || tenant.in_flight > 0).length;
  const idle = open.length - unclear;
  const rest = [unclear && `${unclear} of them not judged yet, for want of commands`, idle && `${idle} of them idle`];
  const but = rest.filter(Boolean).join(", ");
  if (open.length === promised.length) {
    if (unclear) return ["idle", "No promise is judged yet.", but];
    return ["idle", "Nobody who was promised a latency asks for anything.", ""];
  }
  const kept = promised.length === 1 ? "The one promise is kept" : `All ${promised.length} promises kept`;
  return ["kept", `✓ ${unclear ? `None of ${promised.length} promises is broken` : kept}`, but];
}

function showHeadline(live) {
  const [state, words, why, broken] = headline(live);
  element("verdict").dataset.state = state;
  setText(element("headline"), words);
  setText(element("why"), why);
  document.title = `${words} – Evenkeel`;
  tellRemedies(broken?.verdict.blame ? broken.name : null);
}

/// The tenant whose remedies are shown, and when they were asked for.
let advised = { name: null, atMs: 0 };

/// Shows the remedies of a tenant under the headline, asked once a minute: the answer takes the daemon a while.
async function tellRemedies(name) {
  if (name === advised.name && Date.now() - advised.atMs < 60_000) return;
  if (name !== advised.name) element("remedies").replaceChildren();
  advised = { name, atMs: Date.now() };
  if (name === null) return;
  const items = await remediesOf(name);
  if (advised.name === name) element("remedies").replaceChildren(...items);
}

/// Pollers, and how long they waited for a CPU: a host with too few looks like a slow drive.
function showHost(live) {
  const most = (figure) => Math.max(0, ...live.pollers.map(figure));
  const [busy, waited] = [most((it) => it.busy_percent), most((it) => it.cpu_wait_percent)];
  const pollers = live.pollers.length === 1 ? "1 poller" : `${live.pollers.length} pollers`;
  setText(element("host"), `Host: ${pollers}, the busiest ${busy.toFixed(0)} % of the last second; ` +
    `the longest wait for a CPU was ${waited.toFixed(1)} % of it.`);
}

function show(live) {
  // Two pages get the same reading within a second.
  if (shown?.at_unix_ms === live.at_unix_ms) return;
  shown = live;
  forgetRows(live);
  askForHour();
  setText(element("daemon"), `${live.version}, since ${new Date(live.started_at_unix_ms).toLocaleDateString()} ${clock(live.started_at_unix_ms)}`);
  showHeadline(live);
  showHost(live);
  showDrives(live);
  showTenants(live);
  showOperations(live);
  showEvents(live);
  if (linked !== null && live.tenants.some((tenant) => tenant.name === linked)) {
    openDetail(linked);
    linked = null;
  }
}

/// Says that there is no answer; the time of the last one stays what it was.
function tellSilence() {
  silentSince ??= Date.now();
  const words = shown
    ? `No answer since ${clock(silentSince)}; shown is what was. Trying again each second.`
    : "No answer from the daemon. Trying again each second.";
  setText(element("connection"), words);
  element("connection").hidden = false;
}

function endSilence() {
  silentSince = null;
  element("connection").hidden = true;
}

function askForToken(remedy) {
  const had = sessionStorage.getItem(TOKEN_KEY) !== null;
  const why = had ? "The token is not this daemon's (each start has a new one)" : "This port takes a token";
  setText(element("token-why"), `${why}; ${remedy.split("; ").at(-1)}.`);
  if (!element("token-form").hidden) return;
  element("token-form").hidden = false;
  element("detail").close();
  element("token").focus();
}

async function turn() {
  clearTimeout(timer);
  try {
    show(await ask("/live"));
    endSilence();
    element("token-form").hidden = true;
    await refreshDetail();
  } catch (error) {
    if (error instanceof WrongToken) {
      endSilence();
      // What was shown is not what is.
      element("verdict").dataset.state = "none";
      setText(element("headline"), "Waiting for the token");
      setText(element("why"), "");
      setText(element("host"), "");
      tellRemedies(null);
      askForToken(error.message);
      return;
    }
    tellSilence();
  }
  timer = setTimeout(turn, PERIOD_MS);
}

element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(element("token").value);
  element("token").value = "";
  turn();
});

element("filter").addEventListener("input", () => {
  rowsShown = ROWS;
  if (shown) showTenants(shown);
});

element("more").addEventListener("click", () => {
  rowsShown += ROWS;
  if (shown) showTenants(shown);
});

// A new address with a token in the same tab loads no page.
addEventListener("hashchange", () => {
  linked = linkedTenant();
  if (takeToken() || linked !== null) turn();
});

takeToken();
turn();
