// Explain: the pages of the indexes that a lookup touches, in order, and which of them would fault.
import { Facts, Place, Problem, Waiting, counted, go, html, number, pagePath, partitionPath, query, setValues, size, time, useApi, useContext } from "../lib.js";

const MAX_CELLS = 160; // of an index; the untouched pages between touched ones are left out of larger ones
const parse = (text) => (/^\d+$/.test(text) ? Number(text) : Date.parse(text));

export function Explain({ topic, partition }) {
  const { values } = useContext(Place);
  const range = useApi(partitionPath(topic, partition));
  const isTime = Boolean(values.time);
  const offset = values.offset ?? (range.data && !isTime ? String(range.data.log_start_offset) : "");
  const asked = isTime ? { time: parse(values.time) } : { offset };
  const isAsked = isTime ? Number.isFinite(asked.time) : offset !== "";
  const found = useApi(isAsked ? `${partitionPath(topic, partition)}/explain${query(asked)}` : null);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setValues({ offset: form.get("offset"), time: form.get("offset") ? "" : form.get("time") });
    found.again();
  };
  return html`<h1>${topic}-${partition}: how would a fetch be served?</h1>
    <form onSubmit=${submit}>
      <label>Offset<input name="offset" inputmode="numeric" value=${isTime ? "" : offset} size="14" /></label>
      <label>or time (ISO 8601 or ms)<input name="time" value=${values.time ?? ""} size="22" /></label>
      <button>Explain</button>
      <a href=${pagePath(topic, partition)}>page map</a> <a href=${pagePath(topic, partition, "records") + query({ order: "oldest", from: found.data?.explanation.offset })}>read it</a>
    </form>
    <p class="muted">Nothing is served, and the page cache stays as it is: asked again, the answer is the same.</p>
    ${isTime && !isAsked && html`<p class="note error" role="alert">${values.time} is neither a time like 2026-11-20T10:00:00Z nor milliseconds since 1970.</p>`}
    <${Problem} failure=${found.failure} />${isAsked && html`<${Waiting} of=${found} />`}
    ${found.data && html`<${Explanation} of=${found.data} />`}`;
}

export function Explanation({ of }) {
  const { explanation: it } = of;
  const first = it.lookups[0];
  const faults = it.lookups.filter((each) => each.search === first?.search).reduce((sum, each) => sum + (each.faults_expected ?? 0), 0);
  return html`<p class="note" id="verdict">${of.gate_pages === null ? `Residency is unknown: ${it.not_asked}.` : of.gate_pages
      ? html`The gate would bring <b>${counted(of.gate_pages, "page")}</b> from the disk first, in a thread; the event loop does not wait. Without it, the lookup alone would take ${counted(faults, "major page fault")}.`
      : html`All pages are in memory: the fetch is answered on the event loop, without a page fault.`} ${!of.gate && html`<b>The gate is off.</b>`}</p>
    <${Facts} of=${[
      ["offset", number(it.offset)], ...(it.timestamp === null ? [] : [["time", time(it.timestamp)]]),
      ["segment", `${number(it.segment.base_offset)} to ${number(it.segment.next_offset)}${it.segment.active ? ", active" : ""}`], ["size of its log", size(it.segment.size)],
      ...(it.passed ? [["segments searched before", number(it.passed)]] : []),
    ]} />
    ${it.index_fault && html`<p class="note error">The index cannot be used: ${it.index_fault}</p>`}
    <div id="lookups">${it.lookups.map((each) => html`<${Lookup} of=${each} pageSize=${of.page_size} />`)}</div>
    ${it.known_by_heart && html`<p>The position of this batch is remembered: no scan is needed.</p>`}
    ${it.scan && html`<${Range} title="Scan of batch headers" of=${it.scan} />`}
    ${it.batch ? html`<${Range} title=${`Batch ${number(it.batch.base_offset)} to ${number(it.batch.last_offset)}`} of=${it.batch.place} />` : html`<p>The offset is the end of the log: there is nothing to read yet.</p>`}`;
}

function Lookup({ of, pageSize }) {
  const entrySize = of.index === "time" ? 12 : 8;
  const total = Math.max(1, Math.ceil((of.entries * entrySize) / pageSize));
  const order = new Map(of.pages.map((page, place) => [page, place + 1]));
  const missing = of.missing === null ? null : new Set(of.missing);
  const shown = total <= MAX_CELLS ? [...Array(total).keys()] : [...order.keys()].sort((a, b) => a - b);
  const cell = (page) => {
    const place = order.get(page);
    if (place === undefined) return html`<li key=${page} data-page=${page}>${page}</li>`;
    const is = missing === null ? "u" : missing.has(page) ? "c" : "w";
    const state = { u: "residency unknown", c: "not in memory: would fault", w: "in memory" }[is];
    return html`<li key=${page} class=${is} data-page=${page} data-order=${place} data-missing=${is === "c"} title=${state}>${page}<b>${place}.</b><span class="hidden"> ${state}</span></li>`;
  };
  const cells = [];
  shown.forEach((page, place) => {
    if (place > 0 && page > shown[place - 1] + 1) cells.push(html`<li class="gap" key=${`gap${page}`}>… ${number(page - shown[place - 1] - 1)} more …</li>`);
    cells.push(cell(page));
  });
  return html`<section class="lookup" data-index=${of.index} data-search=${of.search}>
    <h2>${of.search === "warm" ? "Warm search" : "Plain search"} of the ${of.index} index</h2>
    <p>${counted(of.pages.length, "page")} touched, <b>${of.faults_expected === null ? "?" : number(of.faults_expected)} would fault</b>${of.section && ` · ${of.section} section`} · ${number(of.entries)} entries on ${counted(total, "page")}
      · ${of.slot === null ? "below the first entry: the scan begins at the segment's start" : `entry ${number(of.slot)}: offset ${number(of.offset)}${of.position === null ? "" : ` at byte ${number(of.position)}`}`}</p>
    <ol class="pages" aria-label=${`Pages of the ${of.index} index, ${of.search} search; numbers give the order of access`}>${cells}</ol></section>`;
}

const Range = ({ title, of }) => {
  const pages = of.pages.reduce((sum, run) => sum + run.count, 0);
  return html`<section><h2>${title}</h2><p>${size(of.size)} at byte ${number(of.position)} of the log: ${counted(pages, "page")}, ${of.missing_pages === null ? "residency unknown" : `${number(of.missing_pages)} from the disk`}
    <span class="muted"> (pages ${of.pages.slice(0, 8).map((run) => (run.count > 1 ? `${number(run.first)}–${number(run.first + run.count - 1)}` : number(run.first))).join(", ")}${of.pages.length > 8 ? ", …" : ""})</span></p></section>`;
};

// -- choosing a partition --

export function Chooser({ view }) {
  const { values } = useContext(Place);
  const list = useApi(`topics${query({ filter: values.filter ?? "" })}`);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    go(pagePath(form.get("topic"), Number(form.get("partition")), view === "partition" ? "" : view));
  };
  return html`<h1>${{ partition: "Partition", explain: "Explain", records: "Records" }[view]}: of which partition?</h1>
    <form onSubmit=${submit}><label>Topic<input name="topic" required list="names" onInput=${(event) => setValues({ filter: event.target.value })} autocomplete="off" /></label>
      <datalist id="names">${list.data?.topics.map((each) => html`<option value=${each.name} />`)}</datalist>
      <label>Partition<input name="partition" inputmode="numeric" value="0" size="5" /></label><button>Show</button></form>
    <ul>${list.data?.topics.slice(0, 20).map((each) => html`<li><a href=${pagePath(each.name, 0, view === "partition" ? "" : view)}>${each.name}-0</a>${each.partitions > 1 && html` <span class="muted">and ${each.partitions - 1} more</span>`}</li>`)}</ul>
    <${Problem} failure=${list.failure} />`;
}
