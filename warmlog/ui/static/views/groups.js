// Groups: of any type; one group with its lag, its trend, and what its next reads cost.
import { Change, Facts, Pager, Place, Problem, Waiting, Wide, counted, go, html, number, pagePath, query, setValues, useApi, useContext, useRef } from "../lib.js";

const KEPT = 60; // samples of the lag, kept in the page
const TYPES = { classic: "classic", consumer: "consumer (KIP-848)", share: "share (KIP-932)", streams: "streams (KIP-1071)" };

export function Groups() {
  const { values } = useContext(Place);
  const list = useApi(`groups${query({ filter: values.filter, page: values.page })}`, 5000);
  return html`<h1>Groups</h1>
    <form role="search" onSubmit=${(event) => event.preventDefault()}><label>Filter by name<input type="search" value=${values.filter ?? ""} onInput=${(event) => setValues({ filter: event.target.value, page: "" })} /></label></form>
    <${Problem} failure=${list.failure} /><${Waiting} of=${list} />
    ${list.data && html`<p class="muted" role="status">${counted(list.data.total, "group")}</p>
      <${Wide} label="Groups"><table id="groups"><thead><tr><th scope="col">group</th><th scope="col">type</th><th scope="col">state</th><th scope="col">protocol</th></tr></thead>
        <tbody>${list.data.groups.map((each) => html`<tr key=${each.group}><th scope="row"><a href=${`/ui/groups/${encodeURIComponent(each.group)}`}>${each.group}</a></th><td>${TYPES[each.type] ?? each.type}</td><td>${each.state}</td><td>${each.protocol_type}</td></tr>`)}</tbody></table><//>
      <${Pager} of=${list.data} go=${(page) => setValues({ page })} />`}`;
}

const NEXT = { memory: ["■ from memory", "w"], disk: ["■ from the disk", "c"], end: ["at the end", ""] };

function Next({ of }) {
  if (!of.next_read) return html`<span class="muted">unknown here</span>`;
  const [label] = NEXT[of.next_read];
  return html`<span>${label}${of.cold_pages > 0 ? `: ${number(of.cold_pages)} of ${counted(of.next_pages, "page")}` : of.next_read === "disk" && of.cold_pages === null ? ": its index" : ""}</span>`;
}

// Lag over the time that the page was open: records per second by which it shrinks.
function trend(samples) {
  const [first, last] = [samples[0], samples[samples.length - 1]];
  const seconds = samples.length > 1 ? (last.now_ms - first.now_ms) / 1000 : 0;
  return seconds < 4 ? null : (first.lag - last.lag) / seconds;
}

const duration = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);

export function Group({ name }) {
  const { values, status } = useContext(Place);
  const path = `groups/${encodeURIComponent(name)}`;
  const found = useApi(`${path}${query({ page: values.page })}`, 2000);
  const samples = useRef([]);
  const { data } = found;
  if (data && data.lag !== null && samples.current[samples.current.length - 1]?.now_ms !== data.now_ms) {
    samples.current.push({ now_ms: data.now_ms, lag: data.lag });
    samples.current.splice(0, samples.current.length - KEPT);
  }
  const rate = trend(samples.current);
  const text = !data || data.lag === null ? "unknown" : data.lag === 0 ? "caught up" : rate === null ? "measuring…" : rate > 0.05 ? `shrinks by ${number(Math.round(rate))} records/s; caught up in ${duration(data.lag / rate)}` : rate < -0.05 ? `grows by ${number(Math.round(-rate))} records/s` : "stands still";
  return html`<h1>Group ${name}</h1><${Problem} failure=${found.failure} /><${Waiting} of=${found} />
    ${data && html`<${Facts} of=${[["state", data.state], ["type", TYPES[data.type] ?? data.type], ["assignor", data.protocol || "–"], ["lag", number(data.lag)], ["trend", text]]} />
      ${status?.may_write && html`<div class="tools">
        <${Change} label="Reset offsets" title="Set the offsets" path=${`${path}/reset`} text=${`The committed offsets of ${name} in this topic are replaced; its next member continues from there. The group must have no members.`}
          body=${(form) => ({ topic: form.get("topic"), to: form.get("to") })} done=${found.again}>
          <label>Topic<select name="topic">${[...new Set(data.positions.map((each) => each.topic))].map((each) => html`<option>${each}</option>`)}</select></label><label>To (beginning, end, or an offset)<input name="to" required /></label><//>
        <${Change} label="Delete" danger title="Delete the group" path=${`${path}/delete`} confirm=${name} text=${`The committed offsets of ${name} in ${counted(data.total, "partition")} are lost. The group must have no members.`} body=${() => ({})} done=${() => go("/ui/groups")} /></div>`}
      <h2>Positions</h2><${Wide} label="Positions"><table id="positions"><thead><tr><th scope="col">partition</th><th scope="col" class="n">committed</th><th scope="col" class="n">end</th><th scope="col" class="n">lag</th><th scope="col">next read</th><th scope="col">member</th></tr></thead>
        <tbody>${data.positions.map((each) => html`<tr key=${`${each.topic}/${each.partition}`}><th scope="row"><a href=${pagePath(each.topic, each.partition)}>${each.topic}-${each.partition}</a></th>
          <td class="n">${each.offset === null ? "–" : html`<a href=${pagePath(each.topic, each.partition, "records") + query({ order: "oldest", from: each.offset || "0" })}>${number(each.offset)}</a>`}</td>
          <td class="n">${number(each.high_watermark)}</td><td class="n">${number(each.lag)}</td>
          <td>${each.offset !== null && each.next_read === "disk" ? html`<a href=${pagePath(each.topic, each.partition, "explain") + query({ offset: each.offset || "0" })}><${Next} of=${each} /></a>` : html`<${Next} of=${each} />`}</td>
          <td>${each.member ?? "–"}</td></tr>`)}</tbody></table><//>
      <${Pager} of=${data} go=${(page) => setValues({ page })} />
      <h2>Members</h2>${data.members.length === 0 ? html`<p class="muted">none</p>` : html`<${Wide} label="Members"><table><thead><tr><th scope="col">member</th><th scope="col">instance</th><th scope="col">client</th><th scope="col">host</th><th scope="col" class="n">partitions</th></tr></thead>
        <tbody>${data.members.map((each) => html`<tr key=${each.member}><th scope="row">${each.member}</th><td>${each.instance ?? "–"}</td><td>${each.client_id}</td><td>${each.host}</td><td class="n">${each.partitions}</td></tr>`)}</tbody></table><//>`}`}`;
}
