// The tour: watch a lookup fault. The command makes and evicts the topic; the page explains, reads, and counts.
import { Problem, api, counted, html, number, pagePath, partitionPath, query, useApi, useState } from "../lib.js";
import { Explanation } from "./explain.js";

const TOPIC = "warmlog-tour";
const OFFSET = 30000; // in the middle of the topic: the cold section of its index

const faultsOf = (status) => Object.entries(status?.totals?.loop_faults ?? {}).reduce((sum, [name, count]) => sum + (name.startsWith("major ") ? count : 0), 0);

export function Tour() {
  const path = partitionPath(TOPIC, 0);
  const [state, setState] = useState({});
  const map = useApi(path, 2000);
  const exists = map.data !== null;
  const log = map.data?.files.find((file) => file.kind === "log");
  const index = map.data?.files.find((file) => file.kind === "index");
  const isEvicted = exists && index && index.resident_pages < index.pages;
  const explain = async (name) => {
    try {
      const found = await api(`${path}/explain${query({ offset: OFFSET })}`);
      setState((last) => ({ ...last, failure: null, [name]: found }));
    } catch (failure) {
      setState((last) => ({ ...last, failure }));
    }
  };
  const read = async () => {
    const before = await api("status");
    try {
      const found = await api(`${path}/records${query({ order: "oldest", from: OFFSET, limit: 5 })}`);
      const after = await api("status");
      setState((last) => ({ ...last, failure: null, read: found, before, after }));
      map.again();
    } catch (failure) {
      setState((last) => ({ ...last, failure }));
    }
  };
  const { before, after } = state;
  return html`<h1>Watch a lookup fault</h1>
    <p>An index is a file in the page cache. A lookup is a binary search, and each page of the index that is not in memory costs a read from the disk. This tour evicts an index, shows which pages a lookup would touch, and then lets the broker touch them.</p>
    <ol class="steps">
      <li aria-current=${!exists || !isEvicted ? "step" : null}><b>Make a topic and evict it.</b> In a terminal, on the broker's machine:<pre>warmlog tour --data-dir DIR</pre>
        It writes 60,000 records to the topic “${TOPIC}”, an index entry for each, and asks the kernel to drop the pages of its files. <span id="evicted" role="status">${exists && log ? html`<b>${number(log.resident_pages)} of ${counted(log.pages, "page")}</b> of the log and <b>${index ? `${number(index.resident_pages)} of ${counted(index.pages, "page")}` : "none"}</b> of the index are in memory (<a href=${pagePath(TOPIC, 0)}>map</a>).` : html`<span class="muted">The topic does not exist yet.</span>`}</span></li>
      <li aria-current=${isEvicted && !state.first ? "step" : null}><b>Explain a fetch of offset ${number(OFFSET)}.</b> <button disabled=${!exists} onClick=${() => explain("first")}>Explain</button>
        ${state.first && html`<${Explanation} of=${state.first} />`}</li>
      <li aria-current=${state.first && !state.read ? "step" : null}><b>Read it.</b> The gate finds the cold pages, a thread reads them, and only then the event loop searches the index. <button disabled=${!exists} onClick=${read}>Read 5 records</button>
        ${state.read && html`<p id="counted" class="note">The read waited for the disk in <b>${counted(state.read.cost.cold_lookups, "lookup")}</b> and brought <b>${counted(state.read.cost.cold_pages, "page")}</b> of the log, in ${state.read.cost.milliseconds.toFixed(1)} ms. The broker counted ${counted((after.totals?.cold_reads ?? 0) - (before.totals?.cold_reads ?? 0), "cold read")}; the event loop took <b>${counted(faultsOf(after) - faultsOf(before), "major fault")}</b>: with the gate it has none.</p>`}</li>
      <li aria-current=${state.read && !state.second ? "step" : null}><b>Explain it again.</b> The pages of the index are in memory now. <button disabled=${!state.read} onClick=${() => explain("second")}>Explain again</button>
        ${state.second && html`<${Explanation} of=${state.second} />`}</li>
    </ol><${Problem} failure=${state.failure} />
    <p class="muted">docs/page-cache.md has the measurements behind this. With <code>warmlog.gate=off</code> the same read is answered by page faults of the event loop: <code>warmlog serve --set warmlog.gate=off</code>, and the last number of step 3 is not 0.</p>`;
}
