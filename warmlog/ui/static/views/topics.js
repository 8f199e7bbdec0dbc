// Topics: 100 a page, filtered and sorted by the broker; and one topic with its partitions and settings.
import { Bars, Change, Facts, Legend, Pager, Place, Problem, Waiting, Wide, ago, api, counted, go, html, number, pagePath, query, setValues, size, time, useApi, useContext, useEffect, useState } from "../lib.js";

const BATCH = 25; // topics whose residency is asked for at once
const COLUMNS = [["name", "topic"], ["partitions", "partitions"], ["records", "records"], ["size", "size"], ["last_write", "last write"]];

// The residency of the topics shown, in batches: the list itself does not wait for it.
function useResidency(names, everyMs) {
  const [found, setFound] = useState({});
  const key = names.join("/");
  useEffect(() => {
    const aborter = new AbortController();
    let timer = 0;
    const ask = async () => {
      for (let start = 0; start < names.length; start += BATCH) {
        const asked = names.slice(start, start + BATCH).map((name) => `topic=${encodeURIComponent(name)}`);
        try {
          const { topics } = await api(`residency?${asked.join("&")}`, aborter.signal);
          setFound((last) => ({ ...last, ...Object.fromEntries(topics.map((each) => [each.topic, each])) }));
        } catch (failure) {
          if (failure.name === "AbortError") return;
          break;
        }
      }
      timer = setTimeout(ask, everyMs);
    };
    if (names.length) ask();
    return () => {
      aborter.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs]);
  return found;
}

export function Topics() {
  const { values, status } = useContext(Place);
  const sort = values.sort ?? "name";
  const order = values.order ?? (sort === "name" ? "ascending" : "descending");
  const asked = { filter: values.filter ?? "", sort, order, page: values.page ?? 0, internal: values.internal };
  const list = useApi(`topics${query(asked)}`, 5000);
  const topics = list.data?.topics ?? [];
  const residency = useResidency(topics.map((each) => each.name), 5000);
  const head = ([column, label]) => html`<th scope="col" class=${column === "name" ? "" : "n"} aria-sort=${sort === column ? order : "none"}>
    <button onClick=${() => setValues({ sort: column, page: "", order: sort === column && order === "descending" ? "ascending" : sort === column ? "descending" : "" })}>${label}${sort === column ? (order === "ascending" ? " ▲" : " ▼") : ""}</button></th>`;
  return html`<h1>Topics</h1>
    <form role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Filter by name<input type="search" value=${values.filter ?? ""} onInput=${(event) => setValues({ filter: event.target.value, page: "" })} /></label>
      <label class="check"><input type="checkbox" checked=${values.internal === "true"} onChange=${(event) => setValues({ internal: event.target.checked ? "true" : "", page: "" })} />internal topics</label>
      ${status?.may_write && html`<${CreateTopic} />`}
    </form>
    <${Legend} /><${Problem} failure=${list.failure} /><${Waiting} of=${list} />
    ${list.data && html`<p class="muted" role="status">${counted(list.data.total, "topic")}</p>
      <${Wide} label="Topics"><table id="topics"><thead><tr>${COLUMNS.map(head)}<th scope="col" class="n">not synced from</th><th scope="col" class="bar">page cache</th></tr></thead>
      <tbody>${topics.map((topic) => html`<tr key=${topic.name}>
        <th scope="row"><a href=${topic.partitions === 1 ? pagePath(topic.name, 0) : `/ui/topics/${encodeURIComponent(topic.name)}`}>${topic.name}</a></th>
        <td class="n">${topic.here === topic.partitions ? number(topic.partitions) : `${topic.here} here of ${topic.partitions}`}</td>
        <td class="n">${number(topic.records)}</td><td class="n">${size(topic.size)}</td>
        <td class="n" title=${time(topic.last_write_ms)}>${ago(topic.last_write_ms)}</td>
        <td class="n"><${Unsynced} topic=${topic} /></td>
        <td class="bar">${residency[topic.name]?.pages > 0 && html`<${Bars} file=${residency[topic.name]} label=${topic.name} />`}</td></tr>`)}</tbody></table><//>
      <${Pager} of=${list.data} go=${(page) => setValues({ page })} />`}`;
}

function Unsynced({ topic }) {
  if (!topic.unsynced_partitions) return html`<span class="muted">all synced</span>`;
  const rest = topic.unsynced_partitions - topic.unsynced.length;
  return html`${topic.unsynced.map((each, place) => html`${place > 0 && ", "}<a href=${pagePath(topic.name, each.partition, "records") + query({ order: "oldest", from: each.offset })}>${topic.partitions > 1 ? `${each.partition}: ` : ""}${number(each.offset)}</a>`)}${rest > 0 && `, +${rest}`}`;
}

const CreateTopic = () => html`<${Change} label="Create a topic" title="Create the topic" path="topics" text="The broker creates a topic with these partitions, on all of its replicas."
  body=${(form) => ({ name: form.get("name"), partitions: Number(form.get("partitions")) || -1, replication_factor: Number(form.get("replicas")) || -1 })} done=${() => go("/ui/topics")}>
  <label>Name<input name="name" required maxlength="249" /></label>
  <label>Partitions (empty: default)<input name="partitions" inputmode="numeric" size="6" /></label>
  <label>Replicas (empty: default)<input name="replicas" inputmode="numeric" size="6" /></label><//>`;

// -- one topic --

export function Topic({ name }) {
  const { values, status } = useContext(Place);
  const topic = useApi(`topics/${encodeURIComponent(name)}${query({ page: values.page })}`, 5000);
  const { data } = topic;
  const path = `topics/${encodeURIComponent(name)}`;
  return html`<h1>Topic ${name}</h1><${Problem} failure=${topic.failure} /><${Waiting} of=${topic} />
    ${data && html`<${Facts} of=${[["partitions", number(data.total)], ["id", html`<code>${data.topic_id}</code>`]]} />
      ${status?.may_write && html`<div class="tools">
        <${Change} label="Change a setting" title="Change the setting" path=${`${path}/alter`} text=${`The setting of ${name} changes at once, on all brokers. An empty value resets it.`}
          body=${(form) => ({ configs: { [form.get("name")]: form.get("value") === "" ? null : form.get("value") } })} done=${topic.again}>
          <label>Setting<input name="name" required list="settings" /></label><datalist id="settings">${data.configs.map((each) => html`<option value=${each.name} />`)}</datalist><label>Value<input name="value" /></label><//>
        <${Change} label="Add partitions" title="Add partitions" path=${`${path}/alter`} text=${`Records with a key go to other partitions of ${name} than before.`}
          body=${(form) => ({ partitions: Number(form.get("partitions")) })} done=${topic.again}><label>Partitions in total<input name="partitions" inputmode="numeric" required /></label><//>
        <${Change} label="Delete" danger title="Delete the topic" path=${`${path}/delete`} confirm=${name} text=${`All records of ${name} are lost, in ${counted(data.total, "partition")}.`} body=${() => ({})} done=${() => go("/ui/topics")} /></div>`}
      <${Wide} label="Partitions"><table><thead><tr>${["partition", "leader", "replicas", "in sync", "start", "synced to", "end", "size", ""].map((each, place) => html`<th scope="col" class=${place < 8 ? "n" : ""}>${each || "state"}</th>`)}</tr></thead>
      <tbody>${data.partitions.map((each) => html`<tr key=${each.partition}><th scope="row" class="n"><a href=${pagePath(name, each.partition)}>${each.partition}</a></th>
        <td class="n">${each.leader ?? html`<span class="bad">none</span>`}</td><td class="n">${each.replicas.join(" ")}</td>
        <td class=${`n ${each.in_sync.length < each.replicas.length ? "bad" : ""}`}>${each.in_sync.join(" ")}</td>
        <td class="n">${number(each.log_start_offset)}</td><td class="n">${number(each.flushed_offset)}</td><td class="n">${number(each.log_end_offset)}</td><td class="n">${size(each.size)}</td>
        <td>${each.failure ? html`<span class="bad">${each.failure}</span>` : each.size === null ? html`<span class="muted">no log on this broker</span>` : ""}</td></tr>`)}</tbody></table><//>
      <${Pager} of=${data} go=${(page) => setValues({ page })} />
      ${data.configs.length > 0 && html`<h2>Settings</h2><${Wide} label="Settings"><table><thead><tr><th scope="col">setting</th><th scope="col">value</th><th scope="col">set on</th></tr></thead>
        <tbody>${data.configs.map((each) => html`<tr><th scope="row">${each.name}</th><td>${each.value}</td><td class="muted">${each.source}</td></tr>`)}</tbody></table><//>`}`}`;
}
