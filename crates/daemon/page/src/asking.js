// Asks the daemon. Over its socket nothing is to be shown; the port takes a token, which comes in the address's
// fragment, because browsers send that to nobody.

const TOKEN_KEY = "evenkeel-token";

/// Nothing that works takes this long; a daemon that hangs is told as one that is gone.
const LIMIT_MS = 5000;

class WrongToken extends Error {}
class NotThere extends Error {}

/// Takes a token off the address bar, where it would be seen and kept among the visited pages.
function takeToken() {
  // As it stands there: a token may have a plus sign, which URLSearchParams takes for a space.
  const token = /^#token=(.*)$/.exec(location.hash)?.[1];
  if (token === undefined) return false;
  history.replaceState(null, "", location.pathname);
  keepToken(decodeURIComponent(token.replace(/%(?![0-9a-f]{2})/gi, "%25")));
  return true;
}

/// The tenant that the address names, as links in alerts do.
function linkedTenant() {
  const name = /^#tenant=(.+)$/.exec(location.hash)?.[1];
  return name === undefined ? null : decodeURIComponent(name.replace(/%(?![0-9a-f]{2})/gi, "%25"));
}

/// For this tab alone, until it is closed.
function keepToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token.trim());
}

function askOnce(path) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
}

/// What the daemon answers. Connections end after a minute, at times just as something is asked: once more, then.
async function ask(path) {
  const answer = await askOnce(path).catch(() => askOnce(path));
  if (answer.status === 401) throw new WrongToken((await answer.json()).remedy);
  if (answer.status === 404) throw new NotThere();
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}
