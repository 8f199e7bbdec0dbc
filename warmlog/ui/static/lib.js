// What all views share: requests, formats, small components. Plain modules: a browser loads them as they are.
import { h, render, createContext } from "./vendor/preact.js";
import { useCallback, useContext, useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, createContext, useCallback, useContext, useEffect, useLayoutEffect, useRef, useState };

// -- requests --

export class Failure extends Error {
  constructor(status, error, message) {
    super(message);
    this.status = status;
    this.error = error;
  }
}

async function answered(response) {
  if (response.ok) return response.json();
  const text = await response.text();
  try {
    const { error, message } = JSON.parse(text);
    throw new Failure(response.status, error, message);
  } catch (failure) {
    if (failure instanceof Failure) throw failure;
    throw new Failure(response.status, "HTTP", text.trim() || `the broker answered with status ${response.status}`);
  }
}

export const api = (path, signal) => fetch(`/api/v1/${path}`, { signal }).then(answered);

export const change = (path, body) =>
  fetch(`/api/v1/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).then(answered);

export const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const text = new URLSearchParams(given).toString();
  return text && `?${text}`;
};

export const partitionPath = (topic, partition) => `topics/${encodeURIComponent(topic)}/partitions/${partition}`;
export const pagePath = (topic, partition, view = "") =>
  `/ui/topics/${encodeURIComponent(topic)}/${partition}${view && `/${view}`}`;

// Ask for a path again every `everyMs` while the page is visible; keep the last answer while a newer one is awaited.
export function useApi(path, everyMs = 0) {
  const [state, setState] = useState({ path: null, data: null, failure: null, waits: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const aborter = new AbortController();
    let timer = 0;
    const ask = async () => {
      if (document.hidden && everyMs) {
        timer = setTimeout(ask, everyMs);
        return;
      }
      try {
        const data = await api(path, aborter.signal);
        setState({ path, data, failure: null, waits: false });
      } catch (failure) {
        if (failure.name === "AbortError") return;
        setState((last) => ({ path, data: last.path === path ? last.data : null, failure, waits: false }));
      }
      if (everyMs) timer = setTimeout(ask, everyMs);
    };
    setState((last) => ({ ...last, waits: true }));
    ask();
    return () => {
      aborter.abort();
      clearTimeout(timer);
    };
  }, [path, everyMs, turn]);
  const again = useCallback(() => setTurn((last) => last + 1), []);
  const isFresh = state.path === path;
  return { data: isFresh ? state.data : null, failure: isFresh ? state.failure : null, waits: state.waits, again };
}

// -- formats --

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
export const size = (bytes) => {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
};
export const time = (ms) => (ms === null || ms === undefined || ms < 0 ? "–" : new Date(ms).toISOString().replace("T", " "));
export const ago = (ms, now = Date.now()) => {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
};
export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

// The bound below which a share of the observations between two histograms lies, in seconds; null without any.
export function quantile(now, before, share) {
  const counts = now.counts.map((count, place) => count - (before?.counts[place] ?? 0));
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return null;
  let seen = 0;
  for (let place = 0; place < counts.length; place += 1) {
    seen += counts[place];
    if (seen >= share * total) return place < now.bounds.length ? now.bounds[place] : Infinity;
  }
  return Infinity;
}

// -- components --

export const Problem = ({ failure }) =>
  failure && html`<p class="note error" role="alert">${failure.message} <span class="muted">(${failure.error ?? "no answer"})</span></p>`;

export const Waiting = ({ of }) => of.waits && !of.data && !of.failure && html`<p class="muted" role="status">Loading…</p>`;

const kind = (resident, pages) => (resident === 0 ? "c" : resident >= pages ? "w" : "p");

// A map of a file: its pages from left to right, equal neighbours joined. `warmFrom` (byte) outlines the warm section.
export function Bars({ file, label, pageSize = 4096 }) {
  const pages = Math.max(1, file.pages);
  const runs = [];
  file.resident_cells.forEach((resident, place) => {
    const first = place * file.cell_pages;
    const count = Math.min(file.cell_pages, file.pages - first);
    const last = runs[runs.length - 1];
    const is = kind(resident, count);
    if (last && last.is === is) last.count += count;
    else runs.push({ is, first, count });
  });
  const text = `${label}: ${number(file.resident_pages)} of ${counted(file.pages, "page")} in memory`;
  const from = file.warm_from === null || file.warm_from === undefined ? null : file.warm_from / pageSize;
  return html`<svg class="bars" role="img" aria-label=${text} viewBox="0 0 ${pages} 10" preserveAspectRatio="none"
    data-resident=${file.resident_pages} data-pages=${file.pages}><title>${text}</title>
    ${runs.map((run) => html`<rect class=${run.is} x=${run.first} y="0" width=${run.count} height="10" />`)}
    ${from !== null && html`<rect class="section" x=${from} y="0" width=${Math.max(0, file.size / pageSize - from)} height="10" />`}
  </svg>`;
}

export const Legend = ({ section = false }) => html`<ul class="legend">
  <li><i class="w"></i>in memory</li><li><i class="p"></i>partly</li><li><i class="c"></i>on disk only</li>
  ${section && html`<li><i class="s"></i>warm section of an index</li>`}
</ul>`;

export const Wide = ({ label, children }) =>
  html`<div class="wide" role="region" aria-label=${label} tabindex="0">${children}</div>`;

export const Facts = ({ of }) => html`<dl class="facts">${of.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export const Pager = ({ of, go }) =>
  of && of.total > of.page_size && html`<div class="tools" role="group" aria-label="Pages">
    <button disabled=${of.page === 0} onClick=${() => go(of.page - 1)}>Previous</button>
    <span>${number(of.page * of.page_size + 1)} to ${number(Math.min(of.total, (of.page + 1) * of.page_size))} of ${number(of.total)}</span>
    <button disabled=${(of.page + 1) * of.page_size >= of.total} onClick=${() => go(of.page + 1)}>Next</button>
  </div>`;

// -- navigation --

export const Place = createContext({ path: "/ui", values: {} });
const listeners = new Set();

export function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  for (const each of listeners) each();
}

export function here() {
  return { path: location.pathname.replace(/\/+$/, ""), values: Object.fromEntries(new URLSearchParams(location.search)) };
}

export function usePlace() {
  const [place, setPlace] = useState(here());
  useEffect(() => {
    const update = () => setPlace(here());
    listeners.add(update);
    addEventListener("popstate", update);
    return () => {
      listeners.delete(update);
      removeEventListener("popstate", update);
    };
  }, []);
  return place;
}

// Links within the console load no page: the browser's other ways to open one keep working.
export function followLinks(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute("download") || link.origin !== location.origin || !link.pathname.startsWith("/ui")) return;
  event.preventDefault();
  go(link.pathname + link.search);
}

export const setValues = (values) => go(location.pathname + query({ ...here().values, ...values }), { replace: true });

// -- changes --

// A button that asks first, naming what will happen; for a loss, the name of what is lost has to be typed.
export function Change({ label, title, text, path, body, confirm = null, children = null, done = () => {}, danger = false }) {
  const dialog = useRef(null);
  const [typed, setTyped] = useState("");
  const [result, setResult] = useState(null);
  const [failure, setFailure] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setFailure(null);
    try {
      const made = await change(path, { ...body(new FormData(event.target)), ...(confirm === null ? {} : { confirm: typed }) });
      setResult(made.done);
      dialog.current.close();
      done();
    } catch (error) {
      setFailure(error);
    }
  };
  return html`<button class=${danger ? "danger" : ""} onClick=${() => { setTyped(""); setFailure(null); dialog.current.showModal(); }}>${label}…</button>
    ${result && html`<span role="status" class="good">${result}</span>`}
    <dialog ref=${dialog} aria-label=${title}><h2>${title}</h2><p>${text}</p>
      <form onSubmit=${submit}>${children}
        ${confirm !== null && html`<label>Type “${confirm}” to confirm<input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" /></label>`}
        <button class=${danger ? "danger" : ""} disabled=${confirm !== null && typed !== confirm}>${title}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
      </form><${Problem} failure=${failure} /></dialog>`;
}
