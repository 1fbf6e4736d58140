// One tenant: how its latencies are spread over time, and all that is known of it.

/// Readings across the picture: two minutes.
const COLUMNS = 120;

/// The tenant that is looked at, the counts of the last reading, and how many came since the one before, by reading.
let looked = null;

function openDetail(name) {
  looked = { name, last: null, columns: [], upper: [] };
  setText(element("detail-name"), name);
  setText(element("detail-state"), "Asking the daemon …");
  setText(element("heat-words"), "");
  element("facts").replaceChildren();
  element("detail-remedies").replaceChildren();
  remediesOf(name).then((items) => looked?.name === name && element("detail-remedies").replaceChildren(...items));
  drawHeat(null);
  if (!element("detail").open) element("detail").showModal();
  refreshDetail();
}

/// What would have helped a tenant over the last ten minutes, as items of a list.
async function remediesOf(name) {
  const to = Date.now();
  const asked = await ask(`/v1/why/${encodeURIComponent(name)}?from_unix_ms=${to - 600_000}&to_unix_ms=${to}`)
    .catch(() => null);
  const more = make("li", "More: ");
  more.append(make("code", `evenkeel why ${name}`));
  return [...(asked?.remedies ?? []).map(remedyNode), more];
}

function remedyNode({ what, command, predicted_us: predictedUs }) {
  const node = make("li", what);
  if (predictedUs !== null) node.append(` (then ${latency(Math.round(predictedUs * 1e3))}, by the model)`);
  if (command) node.append(": ", make("code", command));
  return node;
}

async function refreshDetail() {
  if (!looked) return;
  const { name } = looked;
  try {
    const detail = await ask(`/live/${encodeURIComponent(name)}`);
    if (looked?.name === name) showDetail(detail);
  } catch (error) {
    // The page itself says when there is no answer.
    if (error instanceof NotThere && looked?.name === name) setText(element("detail-state"), "It is gone.");
  }
}

function showDetail(detail) {
  const { last } = looked;
  // Another daemon counts from nothing, and so does a tenant that came again: what went back is no difference.
  const isSame = last && last.started_at_unix_ms === detail.started_at_unix_ms &&
    detail.counts.every((counted, at) => counted >= last.counts[at]);
  if (!isSame) looked.columns = [];
  else if (detail.at_unix_ms > last.at_unix_ms) {
    looked.columns.push(detail.counts.map((counted, at) => counted - last.counts[at]));
    if (looked.columns.length > COLUMNS) looked.columns.shift();
  }
  looked.last = detail;
  looked.upper = detail.upper_ns;
  const { tenant } = detail;
  const [state, words] = stateOf(tenant, []);
  setText(element("detail-state"), state === "broken" ? `${words}, ${faultInFull(tenant.verdict.blame)}` : `Promise: ${words}`);
  drawHeat(tenant.target_ns);
  showFacts(detail);
}

function faultInFull(blame) {
  return blame ? `${fault(blame)}: ${blame.why}` : fault(blame);
}

/// The rows between the shortest and the longest latency that were seen, and the target, with one around.
function spanOf(targetNs) {
  const { columns, upper } = looked;
  const used = upper.map((_, at) => at).filter((at) => columns.some((column) => column[at] > 0));
  if (columns.some((column) => column[upper.length] > 0)) used.push(upper.length);
  if (!used.length) return null;
  const target = targetNs === null ? used[0] : upper.findIndex((ns) => ns >= targetNs);
  const all = target < 0 ? used : [...used, target];
  return [Math.max(0, Math.min(...all) - 1), Math.min(upper.length, Math.max(...all) + 1)];
}

function drawHeat(targetNs) {
  const canvas = element("heat");
  // Its letters are as large as the page's, however narrow that is.
  if (canvas.clientWidth && canvas.width !== canvas.clientWidth) canvas.width = canvas.clientWidth;
  const style = getComputedStyle(document.body);
  const colour = (name) => style.getPropertyValue(name).trim();
  const context = canvas.getContext("2d");
  context.globalAlpha = 1;
  context.fillStyle = colour("--ground");
  context.fillRect(0, 0, canvas.width, canvas.height);
  const span = spanOf(targetNs);
  if (!span) {
    setText(element("heat-words"), "It fills while this is open, a column a second, where commands complete.");
    return;
  }
  const [low, high] = span;
  const [wide, tall] = [canvas.width / COLUMNS, canvas.height / (high - low + 1)];
  const { columns, upper } = looked;
  context.fillStyle = colour("--accent");
  columns.forEach((column, at) => {
    const total = column.reduce((sum, counted) => sum + counted, 0);
    for (let bucket = low; bucket <= high && total > 0; bucket += 1) {
      if (!column[bucket]) continue;
      // One of a thousand, which breaks a promise, must be seen too.
      context.globalAlpha = 0.25 + 0.75 * Math.sqrt(column[bucket] / total);
      const x = (COLUMNS - columns.length + at) * wide;
      context.fillRect(x, (high - bucket) * tall, Math.ceil(wide), Math.ceil(tall));
    }
  });
  context.globalAlpha = 1;
  drawScale(context, colour, low, high, tall, targetNs);
  const newest = columns.at(-1);
  const seen = upper.filter((_, at) => newest[at] > 0);
  const range = seen.length
    ? `the last second's are from ${latency(seen[0])} to ${latency(seen.at(-1))}`
    : "none completed in the last second";
  const parts = columns.length === 1 ? "1 column" : `${columns.length} columns`;
  const how = `${parts}, one a second, the newest at the right; the longer a command took, the higher`;
  setText(element("heat-words"), `${how}; ${range}.`);
}

/// Latencies at the left, and the target across.
function drawScale(context, colour, low, high, tall, targetNs) {
  const { upper } = looked;
  const canvas = context.canvas;
  context.font = "16px system-ui, sans-serif";
  context.fillStyle = colour("--text");
  const middle = Math.floor((low + high) / 2);
  for (const [bucket, y] of [[high, 16], [middle, (high - middle + 0.5) * tall + 6], [low, canvas.height - 6]]) {
    context.fillText(bucket < upper.length ? latency(upper[bucket]) : "longer", 4, y);
  }
  const target = targetNs === null ? -1 : upper.findIndex((ns) => ns >= targetNs);
  if (target < 0) return;
  const y = (high - target) * tall;
  context.strokeStyle = context.fillStyle = colour("--bad");
  context.lineWidth = 2;
  context.setLineDash([8, 6]);
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(canvas.width, y);
  context.stroke();
  context.setLineDash([]);
  context.fillText(`target ${latency(targetNs)}`, canvas.width / 2, Math.max(16, y - 6));
}

function showFacts(detail) {
  const { tenant } = detail;
  const { latency: took, moved } = tenant;
  const parts = took && `${latency(took.waited_ns)} waited, ${latency(took.served_ns)} with the drive`;
  const facts = [
    ["Labels", labelsOf(tenant) || null],
    ["Drive", tenant.drive],
    ["Data", keys.get(tenant.name) || "not encrypted"],
    ["Class", tenant.weight === null ? tenant.class : `${tenant.class}, weight ${tenant.weight}`],
    ["Target", latency(tenant.target_ns)],
    ["Predicted p99", latency(tenant.predicted_p99_ns)],
    ["p50, p99, p99.9", took ? [took.p50_ns, took.p99_ns, took.p999_ns].map(latency).join(", ") : "–"],
    ["Mean", took ? `${latency(took.mean_ns)}: ${parts}` : "–"],
    ["Does", moved ? `${count(moved.iops)} commands/s, ${(moved.bytes_per_second / 1e6).toFixed(1)} MB/s` : "–"],
    ["Late, failed", moved ? `${count(moved.late)}, ${count(moved.errors)}` : "–"],
    ["Limits", detail.limits ?? "none"],
    ["Priority", detail.priority],
    ["Asks for", `${detail.demand}${detail.assumed ? " (assumed)" : ""}`],
    ["Bound", detail.bound_ns === null ? null : `${latency(detail.bound_ns)} with a drive that serves in order`],
    ["Overcommitted", detail.overcommit ? "yes: served although its promise can't be kept" : null],
    ["HWQs", detail.hwqs.join(", ") || "none in use"],
  ].filter(([, value]) => value !== null);
  showIfNew(element("facts"), facts, () =>
    facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
}

element("detail").addEventListener("close", () => {
  looked = null;
});
