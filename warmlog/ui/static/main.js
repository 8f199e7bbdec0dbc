// The frame of the page: navigation, the strip, and the view that the address names.
import { Place, followLinks, html, number, quantile, render, size, useApi, useEffect, usePlace, useRef } from "./lib.js";
import { Topics, Topic } from "./views/topics.js";
import { Partition } from "./views/partition.js";
import { Explain, Chooser } from "./views/explain.js";
import { Records, OneRecord } from "./views/records.js";
import { Group, Groups } from "./views/groups.js";
import { Health } from "./views/health.js";
import { Tour } from "./views/tour.js";

const HISTORY = 150; // samples of the strip, kept in the page
const EVERY_MS = 2000;

// -- the strip --

function useStatus() {
  const status = useApi("status", EVERY_MS);
  const samples = useRef([]);
  const { data } = status;
  const last = samples.current[samples.current.length - 1];
  if (data?.totals && last?.now_ms !== data.now_ms) {
    const { totals } = data;
    const seconds = last ? (data.now_ms - last.now_ms) / 1000 : 0;
    samples.current.push({
      now_ms: data.now_ms,
      totals,
      cold: seconds > 0 ? Math.max(0, totals.cold_reads - last.totals.cold_reads) / seconds : null,
      delay: quantile(totals.loop_delay, last?.totals.loop_delay, 0.99),
      produce: quantile(totals.produce, last?.totals.produce, 0.99),
    });
    samples.current.splice(0, samples.current.length - HISTORY);
  }
  return { status, samples: samples.current };
}

const faultsOf = (totals, kind) =>
  Object.entries(totals.loop_faults).reduce((sum, [name, count]) => sum + (name.startsWith(`${kind} `) ? count : 0), 0);
const ms = (seconds) => (seconds === null || seconds === undefined ? "–" : seconds === Infinity ? "long" : `≤ ${+(1000 * seconds).toPrecision(3)} ms`);

function Strip({ status, samples }) {
  const { data, failure } = status;
  const totals = data?.totals;
  const last = samples[samples.length - 1];
  const free = totals?.disks.map((disk) => `${size(disk.free)} (${Math.round((100 * disk.free) / disk.size)} %)`).join(", ");
  const state = failure ? html`<span class="bad">no answer</span>` : data ? html`<span class="good">● serving</span>` : "…";
  const row = (name, value, isBad = false) => html`<div><dt>${name}</dt><dd class=${isBad ? "bad" : ""}>${value}</dd></div>`;
  return html`<dl class="strip" aria-label="State of the broker">
    ${row(data ? `broker ${data.node_id} of ${data.brokers}` : "broker", state)}
    ${totals && [
      row("not synced", size(totals.unsynced_bytes)),
      row("under-replicated", number(totals.under_replicated), totals.under_replicated > 0),
      (totals.failed_logs > 0 || totals.offline_partitions > 0) && row("failed or offline", number(totals.failed_logs + totals.offline_partitions), true),
      row("cold reads", last?.cold === null || !last ? "–" : `${last.cold.toFixed(1)}/s`),
      row("loop delay p99", ms(last?.delay)),
      row("loop faults", html`<span title="major page faults of the event loop: it waited for the disk">${number(faultsOf(totals, "major"))} major</span>`, faultsOf(totals, "major") > 0),
      row("disk free", free),
    ]}
    ${data?.power_cut && row("power cut", data.power_cut)}
    ${data && row("you", data.user ?? "not logged in, read only")}
  </dl>`;
}

// -- views --

const VIEWS = [["topics", "Topics"], ["partition", "Partition"], ["explain", "Explain"], ["records", "Records"], ["groups", "Groups"], ["health", "Health"], ["tour", "Tour"]];

function route(path) {
  const parts = path.split("/").slice(2).map(decodeURIComponent);
  const [first = "topics", topic, partition, view, offset] = parts;
  if (first === "topics" && partition !== undefined) {
    const of = { topic, partition: Number(partition) };
    if (view === "explain") return ["explain", html`<${Explain} ...${of} />`, `${topic}-${partition}: explain`];
    if (view === "records" && offset !== undefined) return ["records", html`<${OneRecord} ...${of} offset=${offset} />`, `${topic}-${partition}: record ${offset}`];
    if (view === "records") return ["records", html`<${Records} ...${of} />`, `${topic}-${partition}: records`];
    return ["partition", html`<${Partition} ...${of} />`, `${topic}-${partition}`];
  }
  if (first === "topics" && topic !== undefined) return ["topics", html`<${Topic} name=${topic} />`, topic];
  if (first === "groups" && topic !== undefined) return ["groups", html`<${Group} name=${topic} />`, `group ${topic}`];
  if (["partition", "explain", "records"].includes(first)) return [first, html`<${Chooser} view=${first} />`, first];
  if (first === "groups") return ["groups", html`<${Groups} />`, "groups"];
  if (first === "health") return ["health", html`<${Health} />`, "health"];
  if (first === "tour") return ["tour", html`<${Tour} />`, "tour"];
  return ["topics", html`<${Topics} />`, "topics"];
}

// The links of the navigation stay with the partition that is shown.
function linkOf(view, path) {
  const parts = path.split("/");
  const isPartition = parts[2] === "topics" && parts.length > 4;
  if (!isPartition || !["partition", "explain", "records"].includes(view)) return `/ui/${view}`;
  return parts.slice(0, 5).join("/") + (view === "partition" ? "" : `/${view}`);
}

function App() {
  const place = usePlace();
  const { status, samples } = useStatus();
  const [view, content, title] = route(place.path);
  const main = useRef(null);
  const wasAt = useRef(null);
  useEffect(() => {
    document.title = `${title} · warmlog`;
    if (wasAt.current !== null && wasAt.current !== place.path) main.current.focus();
    wasAt.current = place.path;
  }, [place.path, title]);
  return html`<${Place.Provider} value=${{ ...place, status: status.data, samples }}>
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <header><nav aria-label="Views"><a class="brand" href="/ui/topics">warmlog</a>
      ${VIEWS.map(([name, label]) => html`<a href=${linkOf(name, place.path)} aria-current=${view === name ? "page" : null}>${label}</a>`)}
    </nav><${Strip} status=${status} samples=${samples} /></header>
    <main id="main" ref=${main} tabindex="-1">${content}</main>
  <//>`;
}

document.addEventListener("click", followLinks);
render(html`<${App} />`, document.getElementById("app"));
