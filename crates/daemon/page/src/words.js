// Figures and states in words, as an operator reads them.

const element = (id) => document.getElementById(id);

/// An element with a text. What comes from the daemon is never taken for HTML.
function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/// Only what changed is written: a live region would be read out again.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/// Three digits.
function short(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function latency(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${short(ns / 1e3)} µs`;
  return ns < 1e9 ? `${short(ns / 1e6)} ms` : `${short(ns / 1e9)} s`;
}

function count(value) {
  if (value < 1e3) return value % 1 ? value.toFixed(1) : String(value);
  return value < 1e6 ? `${short(value / 1e3)} k` : `${short(value / 1e6)} M`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  for (; bytes >= 1024 && at < units.length - 1; at += 1) bytes /= 1024;
  return `${bytes % 1 ? short(bytes) : bytes} ${units[at]}`;
}

function duration(seconds) {
  if (seconds < 90) return `${seconds} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/// Whether a disk is encrypted, and whether its key is here. Nothing of a disk that is not encrypted.
function keyWords(disk) {
  if (!disk?.encryption) return "";
  return disk.locked ? "LOCKED: its key is not here" : "encrypted";
}

/// With its zone: the host's may be another one.
function clock(unixMs) {
  const form = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
  return new Date(unixMs).toLocaleTimeString([], form);
}

/// Whose fault a broken promise is, for after a tenant's name.
function fault(blame) {
  if (!blame) return "nobody to blame yet";
  switch (blame.culprit) {
    case "neighbour": return `hurt by ${blame.neighbour}`;
    case "own": return "by its own load";
    default: return `hurt by the ${blame.culprit}`;
  }
}

const isBroken = (tenant) => tenant.verdict?.kept === false;

/// The span of a verdict and its percentile, for who points at it.
function judgedOver(tenant) {
  const { verdict } = tenant;
  if (!verdict) return "";
  const percentile = tenant.latency_percentile ? `${tenant.latency_percentile}th percentile over` : "over";
  return `${percentile} the last ${duration(Math.round(verdict.span_ms / 1e3))} that were judged`;
}

/// How a tenant fares, in a word for the style and words for people.
function stateOf(tenant, hurts) {
  const took = tenant.verdict?.at_percentile_ns;
  const figure = took ? `: ${latency(took)}` : "";
  if (isBroken(tenant)) return ["broken", `✗ BROKEN${figure}`];
  const isKept = tenant.verdict?.kept === true;
  const state = hurts.length ? "hurting" : isKept ? "kept" : "quiet";
  if (tenant.target_ns === null && !tenant.floor) return [state, "none made"];
  return [state, isKept ? `✓ kept${figure}` : "idle"];
}
