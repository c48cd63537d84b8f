"""The live page of a server: what each model does now, from `/status`, every two seconds."""

from base64 import b64encode
from hashlib import sha256

_STYLE = """
:root{color-scheme:light dark;--soft:#66707c;--line:#d5d9de;--bad:#b3261e;--good:#1a7f4b}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:64rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin:1.6rem 0 .4rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.3rem 1rem;margin:0}
div{border-bottom:1px solid var(--line)}dt{color:var(--soft);font-size:13px}
dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.ok{color:var(--good)}.degraded,.refusing{color:var(--bad)}
ul{padding-left:1.2rem;color:var(--soft);font-size:13px;overflow-wrap:anywhere}
#away{color:var(--bad)}
"""
_SCRIPT = """
const units = (v, names, step) => {
  let i = 0;
  while (v >= step && i + 1 < names.length) { v /= step; i += 1; }
  return (v >= 100 || v === Math.round(v) ? Math.round(v) : v.toPrecision(3)) + ' ' + names[i];
};
const bytes = v => v === null ? 'depends on the call' : units(v, ['B', 'KiB', 'MiB', 'GiB'], 1024);
const seconds = v => v === null ? 'none' : units(v * 1e6, ['us', 'ms', 's'], 1000);
const quantile = (now, before, share) => {
  const names = Object.keys(now);
  const counts = names.map(n => now[n] - (before[n] || 0));
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let sum = 0;
  for (let i = 0; i < names.length; i += 1) {
    sum += counts[i];
    if (sum >= share * total) return names[i] === 'inf' ? 100 : Number(names[i]);
  }
  return null;
};
let last = {}, at = 0;
const element = (name, text, kind) => {
  const e = document.createElement(name);
  e.textContent = text;
  if (kind) e.className = kind;
  return e;
};
const show = (name, m, before, passed) => {
  const part = document.createElement('section');
  const head = element('h2', name + ', build ' + m.build + ': ');
  head.append(element('span', m.health, m.health));
  const facts = {
    'calls a second': before ? ((m.calls - before.calls) / passed).toFixed(1) : 'none yet',
    'median, at most': seconds(quantile(m.buckets, before ? before.buckets : {}, 0.5)),
    'p99, at most': seconds(quantile(m.buckets, before ? before.buckets : {}, 0.99)),
    'waiting': m.waiting + ' of ' + m.queue,
    'workers': m.workers,
    'requests a call': m.alone ? 'one: ' + m.alone :
      m.batches ? (m.batched / m.batches).toFixed(2) : 'none yet',
    'refused': Object.entries(m.refusals).map(e => e[1] + ' ' + e[0]).join(', ') || 'none',
    'memory at most': bytes(m.needs),
    'constants, arenas': bytes(m.memory.constants) + ', ' + bytes(m.memory.arenas),
    'plan': (m.mode || 'none') + ' of ' + (Object.keys(m.modes).join(', ') || 'none'),
    'fallbacks, returns': m.fallbacks + ', ' + m.returns,
    'compared, different': m.comparisons + ', ' + m.mismatches,
  };
  const list = document.createElement('dl');
  for (const [key, value] of Object.entries(facts)) {
    const row = document.createElement('div');
    row.append(element('dt', key), element('dd', value));
    list.append(row);
  }
  const log = document.createElement('ul');
  for (const line of [...m.reasons, ...m.log]) log.append(element('li', line));
  part.append(head, list, log);
  return part;
};
const tick = async () => {
  const away = document.getElementById('away');
  try {
    const reply = await fetch('status');
    if (!reply.ok) throw new Error('the server answers ' + reply.status);
    const now = (await reply.json()).models, time = Date.now() / 1000;
    const parts = Object.entries(now).map(([n, m]) => show(n, m, last[n], time - at));
    document.getElementById('models').replaceChildren(...parts);
    last = now; at = time;
    away.textContent = '';
  } catch (error) {
    away.textContent = 'no status: ' + error.message;
  }
};
tick();
setInterval(tick, 2000);
"""
PAGE = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
    '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    f"<title>pyc-serve</title><style>{_STYLE}</style></head><body><h1>pyc-serve</h1>"
    f'<p id="away"></p><main id="models"></main><script>{_SCRIPT}</script></body></html>\n'
)
_HASH = b64encode(sha256(_SCRIPT.encode()).digest()).decode()
# The page runs its own script alone and asks nobody but its server.
POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{_HASH}'"
)
