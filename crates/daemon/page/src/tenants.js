// The table of tenants: who breaks first, then who hurts, then who moves most.

/// Rows that are shown at first, and by each "show more".
const ROWS = 100;
/// The daemon keeps the hour in minutes: no more is new sooner.
const HOUR_PERIOD_MS = 60_000;
/// The order stays for so many readings where nothing but figures changed: a row that jumps can't be clicked.
const ORDER_READINGS = 5;

/// By tenant: the highest p99 of each minute of the last hour, null where no command completed.
let hours = new Map();
let hourAskedMs = 0;
/// By tenant: its row, once it was shown.
const rows = new Map();
let order = [];
let orderKey = "";
let orderAge = 0;
let rowsShown = ROWS;

/// Names are unique among the living.
const keyOf = (tenant) => tenant.name;

/// Asks for the last hour once a minute. Without an answer, the former one stays.
async function askForHour() {
  if (Date.now() - hourAskedMs < HOUR_PERIOD_MS) return;
  hourAskedMs = Date.now();
  const hour = await ask("/v1/hour").catch(() => null);
  if (hour) hours = new Map(hour.tenants.map((tenant) => [tenant.name, tenant.p99_ns]));
}

function forgetRows(live) {
  const there = new Set(live.tenants.map(keyOf));
  for (const [key, row] of rows) {
    if (there.has(key)) continue;
    row.node.remove();
    rows.delete(key);
  }
}

/// By culprit: whom it hurts.
function hurtBy(live) {
  const hurts = new Map();
  for (const tenant of live.tenants) {
    if (!isBroken(tenant) || !tenant.verdict.blame?.neighbour) continue;
    const culprit = tenant.verdict.blame.neighbour;
    hurts.set(culprit, [...(hurts.get(culprit) ?? []), tenant.name]);
  }
  return hurts;
}

function sortTenants(live, hurts) {
  const rank = (tenant) => (isBroken(tenant) ? 0 : hurts.has(tenant.name) ? 1 : 2);
  const moved = (tenant) => tenant.moved?.bytes_per_second ?? 0;
  const key = live.tenants.map((tenant) => `${tenant.name} ${rank(tenant)}`).join("\n");
  const isInUse = element("tenants").matches(":hover, :focus-within");
  orderAge += 1;
  if (key === orderKey && (orderAge < ORDER_READINGS || isInUse)) return;
  [orderKey, orderAge] = [key, 0];
  order = live.tenants
    .toSorted((one, other) =>
      rank(one) - rank(other) || moved(other) - moved(one) || one.name.localeCompare(other.name))
    .map(keyOf);
}

/// By name: what a tenant's disk says of its key.
let keys = new Map();

function readKeys(live) {
  keys = new Map(live.drives.flatMap((drive) => drive.disks).map((disk) => [disk.name, keyWords(disk)]));
}

/// What stands below a tenant's name.
const marksOf = (tenant) => [keys.get(tenant.name), labelsOf(tenant)].filter(Boolean).join(", ");

const labelsOf = (tenant) => Object.entries(tenant.labels ?? {}).map((label) => label.join("=")).join(", ");

function rowOf(tenant) {
  const key = keyOf(tenant);
  const known = rows.get(key);
  if (known) return known;
  const node = element("row").content.firstElementChild.cloneNode(true);
  const cell = (name) => node.querySelector(`.${name}`);
  const names = ["name", "labels", "drive", "state", "state-words", "culprit", "who", "p50", "p99", "target", "predicted", "iops", "mb", "late"];
  const row = { node, line: cell("line"), targetLine: cell("target-line") };
  for (const name of names) row[name] = cell(name);
  // The button takes the key Enter; a click anywhere in the row means the same.
  node.addEventListener("click", () => openDetail(key));
  rows.set(key, row);
  return row;
}

/// The last hour by minutes, and the last second. The larger of target and worst p99 is at the top.
function drawSpark(row, tenant) {
  const history = [...(hours.get(keyOf(tenant)) ?? []), tenant.latency?.p99_ns ?? null];
  const top = Math.max(tenant.target_ns ?? 0, ...history.map((ns) => ns ?? 0)) * 1.05 || 1;
  const y = (ns) => (23 - (22 * ns) / top).toFixed(1);
  let path = "";
  let isDrawn = false;
  history.forEach((ns, at) => {
    if (ns === null) {
      isDrawn = false;
      return;
    }
    const x = 120 - (history.length - 1 - at) * 2;
    // A step of no length is seen as a dot.
    path += `${isDrawn ? "L" : `M${x},${y(ns)}L`}${x},${y(ns)}`;
    isDrawn = true;
  });
  row.line.setAttribute("d", path);
  const hasTarget = tenant.target_ns !== null;
  row.targetLine.setAttribute("visibility", hasTarget ? "visible" : "hidden");
  if (!hasTarget) return;
  row.targetLine.setAttribute("y1", y(tenant.target_ns));
  row.targetLine.setAttribute("y2", y(tenant.target_ns));
}

function fillRow(tenant, hurts) {
  const row = rowOf(tenant);
  const victims = hurts.get(tenant.name) ?? [];
  const [state, words] = stateOf(tenant, victims);
  row.node.dataset.state = state;
  const who = isBroken(tenant) ? fault(tenant.verdict.blame) : victims.length ? `hurts ${victims.join(", ")}` : "";
  const { latency: took, moved } = tenant;
  setText(row.name, tenant.name);
  setText(row.labels, marksOf(tenant));
  setText(row.drive, tenant.drive);
  setText(row["state-words"], words);
  setText(row.culprit, who);
  row.state.title = judgedOver(tenant);
  setText(row.who, who);
  setText(row.p50, latency(took?.p50_ns));
  setText(row.p99, latency(took?.p99_ns));
  setText(row.target, latency(tenant.target_ns));
  setText(row.predicted, latency(tenant.predicted_p99_ns));
  setText(row.iops, moved ? count(moved.iops) : "–");
  setText(row.mb, moved ? (moved.bytes_per_second / 1e6).toFixed(1) : "–");
  setText(row.late, moved ? count(moved.late) : "–");
  drawSpark(row, tenant);
  return row.node;
}

/// What is in place stays there, so that it keeps the focus.
function place(body, nodes) {
  const focused = document.activeElement;
  let next = body.firstElementChild;
  for (const node of nodes) {
    if (node === next) next = next.nextElementSibling;
    else body.insertBefore(node, next);
  }
  while (next) {
    const gone = next;
    next = next.nextElementSibling;
    gone.remove();
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function showTenants(live) {
  readKeys(live);
  const hurts = hurtBy(live);
  sortTenants(live, hurts);
  const wanted = element("filter").value.trim().toLowerCase();
  const byKey = new Map(live.tenants.map((tenant) => [keyOf(tenant), tenant]));
  const matches = (tenant) =>
    [tenant.name, marksOf(tenant), tenant.drive, tenant.class, ...stateOf(tenant, []).slice(1)]
      .some((text) => text.toLowerCase().includes(wanted));
  const found = order.map((key) => byKey.get(key)).filter((tenant) => tenant && matches(tenant));
  const shown = found.slice(0, rowsShown);
  place(element("tenants"), shown.map((tenant) => fillRow(tenant, hurts)));
  element("more").hidden = found.length <= shown.length;
  const all = live.tenants.length;
  setText(element("shown"), wanted ? `${found.length} of ${all} tenants` : `${shown.length} of ${all} shown`);
}
