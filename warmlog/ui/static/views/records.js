// Records: newest first or from a position, followed, filtered within a budget; one record with a large value in pieces.
import { Facts, Place, Problem, Waiting, Wide, api, counted, html, number, pagePath, partitionPath, query, setValues, size, time, useContext, useEffect, useRef, useApi, useState } from "../lib.js";

const FOLLOW_MS = 1000;
const KEPT = 500; // records in the page
const BUDGET = 4 << 20;
const PIECE = 64 << 10;
const PRETTY_BYTES = 128 << 10; // a larger JSON value is shown as it is stored

const parse = (text) => (/^\d+$/.test(text) ? Number(text) : Date.parse(text));

export const Bytes = ({ of }) => {
  if (!of) return html`<span class="muted" title="null">∅</span>`;
  const cut = of.size > of.shown && html` <span class="muted">(${size(of.shown)} of ${size(of.size)})</span>`;
  if (of.text !== null) return html`<code>${of.text}</code>${cut}`;
  return html`<code title="hexadecimal" data-hex>${of.hex.replace(/(..)/g, "$1 ").trim()}</code> <span class="muted">hex</span>${cut}`;
};

const hasPosition = (values) => Boolean(values.from || values.time);

export function Records({ topic, partition }) {
  const { values } = useContext(Place);
  const path = partitionPath(topic, partition);
  const order = values.order ?? (hasPosition(values) ? "oldest" : "newest");
  const filters = { key: values.key, text: values.text };
  const asked = { order, limit: values.limit ?? 50, budget: BUDGET, ...filters, from: values.from, time: values.time && parse(values.time) };
  const key = JSON.stringify([path, asked]);
  const [state, setState] = useState({ key: null });
  const [follows, setFollows] = useState(false);
  const aborter = useRef(null);
  const add = (last, answer, isNew) => {
    const records = isNew && last.key === key ? [...answer.records, ...last.records] : [...(last.key === key ? last.records : []), ...answer.records];
    return {
      key, failure: null, waits: false, answer, records: isNew ? records.slice(0, KEPT) : records.slice(-KEPT),
      searched: (last.key === key ? last.searched : 0) + answer.searched,
      cold: (last.key === key ? last.cold : 0) + answer.cost.cold_pages,
      pages: (last.key === key ? last.pages : 0) + answer.cost.pages,
      lookups: (last.key === key ? last.lookups : 0) + answer.cost.cold_lookups,
      ms: (last.key === key ? last.ms : 0) + answer.cost.milliseconds,
      next: isNew ? last.next : answer.next_from,
      end: Math.max(answer.high_watermark, last.key === key ? last.end : 0),
    };
  };
  const ask = async (more) => {
    aborter.current?.abort();
    aborter.current = new AbortController();
    try {
      const answer = await api(`${path}/records${query({ ...asked, ...more })}`, aborter.current.signal);
      setState((last) => add(last, answer, false));
    } catch (failure) {
      if (failure.name !== "AbortError") setState((last) => ({ ...last, key, failure, waits: false }));
    }
  };
  useEffect(() => {
    setState({ key: null, waits: true });
    ask({});
    return () => aborter.current?.abort();
  }, [key]);
  const end = state.key === key ? state.end : undefined;
  useEffect(() => {
    if (!follows || end === undefined) return undefined;
    let isOver = false;
    let timer = 0;
    let from = end;
    const look = async () => {
      try {
        const answer = document.hidden ? null : await api(`${path}/records${query({ order: "oldest", from, limit: 200, budget: BUDGET, ...filters })}`);
        if (isOver) return;
        if (answer) {
          from = answer.next_from ?? Math.max(from, answer.high_watermark);
          if (answer.searched) setState((last) => add(last, { ...answer, records: order === "newest" ? answer.records.reverse() : answer.records }, order === "newest"));
        }
      } catch (failure) {
        if (!isOver) setState((last) => ({ ...last, failure }));
      }
      if (!isOver) timer = setTimeout(look, FOLLOW_MS);
    };
    look();
    return () => { isOver = true; clearTimeout(timer); };
  }, [follows, key, end === undefined]);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const where = form.get("where");
    const position = form.get("position");
    setValues({ order: where === "newest" ? "newest" : "oldest", from: where === "offset" ? position : "", time: where === "time" ? position : "", key: form.get("key"), text: form.get("text") });
  };
  const where = values.time ? "time" : values.from ? "offset" : order;
  const { answer, records = [] } = state.key === key ? state : {};
  const span = answer ? answer.high_watermark - answer.log_start_offset : 0;
  return html`<h1>${topic}-${partition}: records</h1>
    <form onSubmit=${submit}>
      <label>From<select name="where" value=${where}><option value="newest">newest first</option><option value="oldest">oldest first</option><option value="offset">an offset</option><option value="time">a time</option></select></label>
      <label>Offset, or time (ISO 8601 or ms)<input name="position" value=${values.from ?? values.time ?? ""} size="24" /></label>
      <label>Key contains<input name="key" value=${values.key ?? ""} size="12" /></label>
      <label>Value contains<input name="text" value=${values.text ?? ""} size="16" /></label>
      <button>Read</button>
      <label class="check"><input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} />follow</label>
      <a href=${pagePath(topic, partition)}>page map</a>
    </form>
    <${Problem} failure=${state.failure} />${state.waits && html`<p class="muted" role="status">Reading…</p>`}
    ${answer && html`<p role="status" id="cost">${number(records.length)} shown, <b>${number(state.searched)} of ${number(span)}</b> searched · read ${counted(state.pages, "page")} of the log, <b>${number(state.cold)} from the disk</b>${state.lookups > 0 && `, ${counted(state.lookups, "lookup")} waited for the disk`} · ${state.ms.toFixed(1)} ms</p>
      ${answer.skipped.map((each) => html`<p class="note">Not shown: ${each}</p>`)}
      <${Wide} label="Records"><table id="records"><thead><tr><th scope="col" class="n">offset</th><th scope="col">time</th><th scope="col">key</th><th scope="col">value</th></tr></thead>
        <tbody>${records.map((each) => html`<tr key=${each.offset}><th scope="row" class="n"><a href=${pagePath(topic, partition, `records/${each.offset}`)}>${each.offset}</a></th><td>${time(each.timestamp)}</td>
          <td><${Bytes} of=${each.key} /></td><td class="value">${each.control ? html`<i>marker: ${each.control}</i>` : html`<${Bytes} of=${each.value} />`}${each.headers.length > 0 && html`<div class="muted">${each.headers.map((header) => html`${header.key}=<${Bytes} of=${header.value} /> `)}</div>`}</td></tr>`)}</tbody></table><//>
      ${state.next !== null && state.next !== undefined && html`<p><button onClick=${() => ask({ from: state.next, time: "" })}>${order === "newest" ? "Older" : "Newer"} records</button></p>`}`}`;
}

// -- one record --

export function OneRecord({ topic, partition, offset }) {
  const path = `${partitionPath(topic, partition)}/records/${encodeURIComponent(offset)}`;
  const found = useApi(path);
  const { data } = found;
  return html`<h1>${topic}-${partition}: record ${offset}</h1><${Problem} failure=${found.failure} /><${Waiting} of=${found} />
    ${data && html`<${Facts} of=${[["time", time(data.timestamp)], ["batch begins at", number(data.batch)], ["key", html`<${Bytes} of=${data.key} />`], ["value", data.value ? size(data.value.size) : "null"], ...(data.control ? [["marker", data.control]] : [])]} />
      <p><a href=${pagePath(topic, partition, "records") + query({ order: "oldest", from: offset })}>Records from here</a> · <a href=${pagePath(topic, partition, "explain") + query({ offset })}>Explain its fetch</a>
        ${data.value && html` · <a href=${`/api/v1/${path}/raw`} download>Save the value</a>`}</p>
      ${data.headers.length > 0 && html`<h2>Headers</h2><${Wide} label="Headers"><table><tbody>${data.headers.map((each) => html`<tr><th scope="row">${each.key}</th><td class="value"><${Bytes} of=${each.value} /></td></tr>`)}</tbody></table><//>`}
      ${data.value && html`<h2>Value</h2><${Value} path=${path} size=${data.value.size} />`}`}`;
}

// A value in pieces of 64 KiB, on demand: a page with megabytes of text does not answer the keyboard.
function Value({ path, size: total }) {
  const [start, setStart] = useState(0);
  const piece = useApi(`${path}/value${query({ start: start || "0", bytes: PIECE })}`);
  const { data } = piece;
  const isWhole = data && start === 0 && data.shown === total;
  return html`<${Problem} failure=${piece.failure} /><${Waiting} of=${piece} />
    ${data && html`<pre tabindex="0" aria-label="Value of the record" id="value">${data.text === null ? dump(data.hex, start) : isWhole ? pretty(data.text, total) : data.text}</pre>
      ${!isWhole && html`<div class="tools" role="group" aria-label="Pieces of the value"><button disabled=${start === 0} onClick=${() => setStart(Math.max(0, start - PIECE))}>Previous</button>
        <span>bytes ${number(start)} to ${number(start + data.shown)} of ${number(total)}</span><button disabled=${start + data.shown >= total} onClick=${() => setStart(start + data.shown)}>Next</button></div>`}`}`;
}

function pretty(text, total) {
  if (total > PRETTY_BYTES || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function dump(hex, start) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const part = hex.slice(at, at + 32);
    const bytes = part.match(/../g) ?? [];
    const ascii = bytes.map((each) => { const code = parseInt(each, 16); return code > 31 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    lines.push(`${(start + at / 2).toString(16).padStart(8, "0")}  ${bytes.join(" ").padEnd(47)}  ${ascii}`);
  }
  return lines.join("\n");
}
