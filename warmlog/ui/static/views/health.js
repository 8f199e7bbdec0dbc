// Health: what is wrong now, the latencies of the last minutes, and what happened.
import { Facts, Place, Problem, Waiting, Wide, html, number, pagePath, size, time, useApi, useContext, useEffect, useLayoutEffect, useRef } from "../lib.js";

const WIDTH = 640;

// Produce and loop latency, from the samples that the page has kept.
function Latencies({ samples }) {
  const place = useRef(null);
  const plot = useRef(null);
  useLayoutEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const line = style.getPropertyValue("--line");
    const axis = { stroke: style.getPropertyValue("--fg"), grid: { stroke: line }, ticks: { stroke: line } };
    plot.current = new uPlot({
      width: Math.min(WIDTH, place.current.clientWidth || WIDTH), height: 180, axes: [axis, { ...axis, label: "ms" }], cursor: { show: false },
      series: [{}, { label: "produce p99, ms", stroke: style.getPropertyValue("--warm"), spanGaps: true }, { label: "loop delay p99, ms", stroke: style.getPropertyValue("--cold"), spanGaps: true }],
    }, [[], [], []], place.current);
    return () => plot.current.destroy();
  }, []);
  const ms = (seconds) => (seconds === null || seconds === Infinity ? null : seconds * 1000);
  useEffect(() => {
    plot.current?.setData([samples.map((each) => each.now_ms / 1000), samples.map((each) => ms(each.produce)), samples.map((each) => ms(each.delay))]);
  }, [samples.length, samples[samples.length - 1]]);
  const last = samples[samples.length - 1];
  return html`<div class="chart" role="img" aria-label=${`Chart of the last minutes. Newest: produce p99 ${last ? (ms(last.produce) ?? "none") : "none"} ms, loop delay p99 ${last ? (ms(last.delay) ?? "none") : "none"} ms`} ref=${place}></div>`;
}

export function Health() {
  const { samples, status } = useContext(Place);
  const found = useApi("health", 5000);
  const { data } = found;
  const faults = Object.entries(status?.totals?.loop_faults ?? {}).filter(([, count]) => count > 0);
  return html`<h1>Health</h1><${Problem} failure=${found.failure} /><${Waiting} of=${found} />
    ${data && html`<h2>Conditions that hold now</h2>
      ${data.alerts.length === 0 ? html`<p class="good" id="no-alerts">Nothing is wrong, as far as this broker sees.</p>` : html`<ul id="alerts">${data.alerts.map((each) => html`<li><b class="bad">${each.severity}</b> ${each.name}: ${each.summary}</li>`)}</ul>`}
      <p class="muted">Alerts with a history are left to Prometheus; docs/alerts.md says what to do about each of these names.</p>
      ${data.partitions.length > 0 && html`<${Wide} label="Partitions with a condition"><table><thead><tr><th scope="col">partition</th><th scope="col">condition</th><th scope="col">detail</th></tr></thead>
        <tbody>${data.partitions.map((each) => html`<tr><th scope="row"><a href=${pagePath(each.topic, each.partition)}>${each.topic}-${each.partition}</a></th><td class="bad">${each.condition}</td><td class="value">${each.detail}</td></tr>`)}</tbody></table><//>
        ${data.all_partitions > data.partitions.length && html`<p>${number(data.all_partitions)} in all.</p>`}`}
      ${data.brokers && html`<h2>Brokers</h2><${Facts} of=${[["registered", data.brokers.registered.join(" ")], ["not registered", html`<span class=${data.brokers.missing.length ? "bad" : ""}>${data.brokers.missing.join(" ") || "none"}</span>`], ["controller", number(data.brokers.controller)], ["in-sync replicas removed", number(data.brokers.isr_changes.shrink ?? 0)], ["in-sync replicas added", number(data.brokers.isr_changes.expand ?? 0)]]} />`}`}
    ${samples.length > 1 && html`<h2>Latency while this page was open</h2><${Latencies} samples=${samples} />`}
    ${faults.length > 0 && html`<h2>Page faults of the event loop since startup</h2><${Wide} label="Page faults"><table id="faults"><tbody>${faults.map(([name, count]) => html`<tr><th scope="row">${name}</th><td class="n">${number(count)}</td></tr>`)}</tbody></table><//>`}
    ${data && html`<h2>Stalls of the event loop</h2>
      ${data.stalls.length === 0 ? html`<p class="muted">none was logged</p>` : html`<${Wide} label="Stalls"><table><thead><tr><th scope="col">ended</th><th scope="col" class="n">ms</th><th scope="col">request</th><th scope="col">stack, innermost first</th></tr></thead><tbody>${data.stalls.map((each) => html`<tr><td>${time(each.at_ms)}</td><td class="n">${number(each.milliseconds)}</td><td>${each.api || "–"}</td><td class="value"><code>${each.stack}</code></td></tr>`)}</tbody></table><//>`}
      ${data.moves && html`<h2>Moves between disks</h2>${data.moves.length === 0 ? html`<p class="muted">none</p>` : html`<ul>${data.moves.map((each) => html`<li>${each.topic}-${each.partition} to ${each.to}: ${number(each.lag)} records to copy</li>`)}</ul>`}`}
      ${data.mirror && html`<h2>Mirror of ${data.mirror.source || "another cluster"}</h2>${data.mirror.problem && html`<p class="note error">${data.mirror.problem}</p>`}
        <ul>${data.mirror.topics.slice(0, 100).map((each) => html`<li>${each.name}: ${each.state}${each.problem && ` (${each.problem})`}${each.partitions?.length > 0 && `, lag ${number(Math.max(...each.partitions.map((one) => (one.source_end < 0 ? 0 : one.source_end - one.end))))} records`}</li>`)}</ul>`}
      ${data.receipts && html`<h2>Recoveries after unclean stops</h2>${data.receipts.length === 0 ? html`<p class="muted">none</p>` : html`<${Wide} label="Recoveries"><table id="receipts"><thead><tr><th scope="col">start</th><th scope="col" class="n">seconds</th><th scope="col" class="n">logs</th><th scope="col" class="n">checked</th><th scope="col" class="n">truncated</th><th scope="col">reason</th></tr></thead>
        <tbody>${data.receipts.map((each) => html`<tr><td>${each.started_at}</td><td class="n">${each.seconds?.toFixed(3) ?? "–"}</td><td class="n">${number(each.log_count)}</td><td class="n">${size(each.scanned_bytes)}</td><td class=${`n ${each.truncated_bytes ? "bad" : ""}`}>${size(each.truncated_bytes)}</td><td class="value">${each.reason}</td></tr>`)}</tbody></table><//>`}`}`}`;
}
