// Partition: a map of each file of its newest segments, its offsets, epochs and replicas.
import { Bars, Change, Facts, Legend, Place, Problem, Waiting, Wide, counted, html, number, pagePath, partitionPath, percent, query, size, time, useApi, useContext } from "../lib.js";

export function Partition({ topic, partition }) {
  const { status } = useContext(Place);
  const path = partitionPath(topic, partition);
  const found = useApi(path, 3000);
  const { data } = found;
  const at = (offset) => html`<a href=${pagePath(topic, partition, "records") + query({ order: "oldest", from: offset })}>${number(offset)}</a>`;
  return html`<h1>${topic}-${partition}</h1><${Problem} failure=${found.failure} /><${Waiting} of=${found} />
    ${data && html`${data.failure && html`<p class="note error" role="alert">The log rejects appends: ${data.failure}</p>`}
      <${Facts} of=${[
        ["log start", at(data.log_start_offset)], ["synced to disk up to", at(data.flushed_offset)], ["last stable offset", number(data.last_stable_offset)],
        ["high watermark", number(data.high_watermark)], ["log end", number(data.log_end_offset)], ["size", size(data.size)],
        ["leader", data.leader === null ? html`<span class="bad">none</span>` : `broker ${data.leader}, epoch ${data.leader_epoch}`],
        ["segments", data.all_segments > data.segments.length ? `${data.segments.length} newest of ${number(data.all_segments)}` : number(data.all_segments)],
      ]} />
      <p><a href=${pagePath(topic, partition, "explain")}>Explain a fetch</a> · <a href=${pagePath(topic, partition, "records")}>Records</a> · <a href=${`/ui/topics/${encodeURIComponent(topic)}`}>Topic ${topic}</a></p>
      <h2>What is in the page cache</h2><${Legend} section />
      <${Wide} label="Files and their resident pages"><table id="files"><thead><tr><th scope="col">file</th><th scope="col" class="n">size</th><th scope="col" class="n">in memory</th><th scope="col" class="bar">pages, first to last</th></tr></thead>
        <tbody>${data.files.map((file) => html`<tr key=${file.name}><th scope="row"><code>${file.name}</code></th><td class="n">${size(file.size)}</td><td class="n">${percent(file.resident_pages, file.pages)}</td>
          <td class="bar">${file.pages > 0 && html`<${Bars} file=${file} label=${file.name} pageSize=${data.page_size} />`}</td></tr>`)}</tbody></table><//>
      <h2>Segments</h2><${Wide} label="Segments"><table><thead><tr>${["first offset", "next offset", "size", "index entries", "time entries", "newest record", "written"].map((each) => html`<th scope="col" class="n">${each}</th>`)}</tr></thead>
        <tbody>${data.segments.map((each) => html`<tr key=${each.base_offset}><td class="n">${at(each.base_offset)}</td><td class="n">${number(each.next_offset)}</td><td class="n">${size(each.size)}</td><td class="n">${number(each.offset_index_entries)}</td><td class="n">${number(each.time_index_entries)}</td><td class="n">${time(each.max_timestamp)}</td><td class="n">${time(each.modified_ms)}${each.active ? " (active)" : ""}</td></tr>`)}</tbody></table><//>
      <h2>Replicas</h2><${Wide} label="Replicas"><table id="replicas"><thead><tr><th scope="col">broker</th><th scope="col">role</th><th scope="col">in sync</th><th scope="col" class="n">log end</th><th scope="col" class="n">lag</th></tr></thead>
        <tbody>${data.replicas.map((each) => html`<tr key=${each.broker}><th scope="row">${each.broker}</th><td>${each.leads ? "leader" : "follower"}</td><td class=${each.in_sync ? "good" : "bad"}>${each.in_sync ? "yes" : "no"}</td><td class="n">${number(each.log_end_offset)}</td><td class="n">${number(each.lag)}</td></tr>`)}</tbody></table><//>
      ${status?.may_write && html`<div class="tools">
        <${Change} label="Elect the preferred leader" title="Elect the preferred leader" path=${`${path}/elect`} text=${`Broker ${data.replicas[0]?.broker} becomes the leader of ${topic}-${partition}, if it is in sync. Clients reconnect.`} body=${() => ({})} done=${found.again} />
        <${Change} label="Elect uncleanly" danger title="Elect any replica" path=${`${path}/elect`} confirm=${`${topic}-${partition}`} text=${`If no in-sync replica of ${topic}-${partition} is alive, another one becomes the leader: acknowledged records that it lacks are lost.`} body=${() => ({ unclean: true })} done=${found.again} />
        <${Change} label="Move" title="Move the replicas" path=${`${path}/move`} text=${`${topic}-${partition} (${size(data.size)}) is copied to these brokers, then removed from all others.`}
          body=${(form) => ({ replicas: form.get("brokers").split(/[ ,]+/).filter(Boolean).map(Number) })} done=${found.again}><label>Brokers, the preferred leader first<input name="brokers" required placeholder=${data.replicas.map((each) => each.broker).join(" ")} /></label><//></div>`}
      <h2>Leader epochs</h2><p>${data.epochs.length ? `${counted(data.epochs.length, "epoch")}: ` : "none"}${data.epochs.slice(-20).map((each, place) => html`${place > 0 && ", "}${each.epoch} from ${at(each.first_offset)}`)}</p>`}`;
}
