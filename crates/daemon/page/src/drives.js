// Drives as bars of who holds what, wipes, and events.

/// Holders that have a part of the bar of their own; the rest shares one.
const HOLDERS = 12;

function holdersOf(drive) {
  const disks = drive.disks.toSorted((one, other) => other.size_bytes - one.size_bytes);
  const parts = disks.slice(0, HOLDERS)
    .map((disk) => ({ name: disk.name, bytes: disk.size_bytes, kind: "held", key: keyWords(disk) }));
  const others = disks.slice(HOLDERS);
  const add = (name, bytes, kind) => bytes > 0 && parts.push({ name, bytes, kind });
  add(`${others.length} others`, others.reduce((sum, disk) => sum + disk.size_bytes, 0), "held");
  add("being wiped", drive.wiping_bytes, "wiping");
  // A removed disk's place stays reserved, and so do rests of a unit.
  const told = parts.reduce((sum, part) => sum + part.bytes, 0);
  add("reserved", drive.size_bytes - drive.free_bytes - told, "held");
  add("free", drive.free_bytes, "free");
  return parts;
}

function healthOf(drive) {
  if (drive.failed) return [`FAILED: ${drive.failed}`, true];
  const health = drive.health;
  if (!health) return ["", false];
  if (health.warnings.length) return [`warns: ${health.warnings.join(", ")}`, true];
  const { temperature_celsius: celsius, used_percent: used, media_errors: errors } = health;
  return [`${celsius} °C, ${used} % of its life used, ${errors} media errors`, false];
}

function driveNode(drive) {
  const node = make("div");
  const title = make("p", `${drive.name} `, "drive-title");
  title.append(make("span", `${drive.policy || "no policy"}, ${size(drive.size_bytes)} `));
  const [health, isAlarm] = healthOf(drive);
  title.append(make("span", health, isAlarm ? "alarm" : ""));
  const bar = make("div", undefined, "bar");
  // The list says the same in words.
  bar.setAttribute("aria-hidden", "true");
  const list = make("ul", undefined, "holders");
  for (const part of holdersOf(drive)) {
    const span = make("span", part.name, part.kind === "held" ? "" : part.kind);
    span.style.width = `${(100 * part.bytes) / drive.size_bytes}%`;
    bar.append(span);
    list.append(make("li", [`${part.name} ${size(part.bytes)}`, part.key].filter(Boolean).join(", ")));
  }
  node.append(title, bar, list);
  return node;
}

/// Made anew only where something changed, which is seldom.
function showIfNew(holder, content, nodes) {
  const key = JSON.stringify(content);
  if (holder.dataset.shown === key) return;
  holder.dataset.shown = key;
  holder.replaceChildren(...nodes());
}

function showDrives(live) {
  showIfNew(element("drives"), live.drives, () => live.drives.map(driveNode));
}

function operationWords(operation) {
  const { kind, disk, state, done_bytes: done, total_bytes: total } = operation;
  const doing = kind === "wipe" ? "wiping what" : kind === "zero" ? "zeroing what" : `${kind} of what`;
  const had = kind === "wipe" ? "left" : "gets";
  const percent = total ? Math.floor((100 * done) / total) : 0;
  const rate = operation.bytes_per_second ? `, ${size(operation.bytes_per_second)}/s` : "";
  const left = operation.seconds_left === null ? "" : `, ${duration(operation.seconds_left)} to go`;
  const why = operation.why ? `: ${operation.why}` : "";
  return `${doing} ${disk} ${had}: ${state}, ${percent} % of ${size(total)}${rate}${left}${why}`;
}

function showOperations(live) {
  const words = live.operations.length ? live.operations.map(operationWords) : ["Nothing is being wiped or zeroed."];
  showIfNew(element("wipes"), words, () => words.map((text) => make("li", text)));
}

function eventNode(event) {
  const node = make("li");
  const at = make("time", clock(event.at_unix_ms));
  at.dateTime = new Date(event.at_unix_ms).toISOString();
  const rest = [event.kind.replaceAll("_", " "), event.tenant, event.what].filter(Boolean);
  node.append(at, ` ${rest.join(" · ")}`);
  return node;
}

function showEvents(live) {
  const numbers = live.events.map((event) => event.number);
  showIfNew(element("events"), numbers, () => live.events.toReversed().map(eventNode));
}
