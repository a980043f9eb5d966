// What the models' devices do now: state, memory, queues, speed.
import { get, isAbort, text } from "../api.js";
import { Chart } from "../chart.js";
import { el, failed, put } from "../dom.js";
import { bytes, figure, plain } from "../format.js";
import { live, soon } from "../live.js";

const refresh = 2000; // milliseconds between two looks at least; backends report once a second
const kept = 300; // points of the speed's chart

export async function show(main, _, signal) {
  const speed = new Chart(signal, { title: "Tokens per second", height: 220, legend: true, time: true });
  const models = el("div", { class: "card" });
  const trouble = el("div");
  speed.value.textContent = "shown as soon as something is computed";
  const past = { x: [], trained: [], sampled: [], prefilled: [] };
  let before = null;
  put(main, trouble, models, el("div", { class: "card" }, speed.node));

  const load = async () => {
    try {
      const [health, metrics] = await Promise.all([get("healthz", signal), text("metrics", signal)]);
      const values = parse(metrics);
      put(trouble);
      put(models, el("h1", {}, "Device"), health.models.map((m) => model(m, values)));
      const now = { at: Date.now() / 1000, trained: total(values, "tinsmith_tokens_trained_total"), sampled: total(values, "tinsmith_tokens_sampled_total"), prefilled: total(values, "tinsmith_tokens_prefilled_total") };
      if (before && now.at > before.at) {
        // Of a time in which nothing was told nothing was done, but in its last moments.
        const since = Math.max(before.at, now.at - (2 * refresh) / 1000);
        for (const at of since > before.at ? [before.at + 0.001, since] : []) {
          past.x.push(at);
          for (const kind of ["trained", "sampled", "prefilled"]) past[kind].push(0);
        }
        past.x.push(now.at);
        for (const kind of ["trained", "sampled", "prefilled"]) past[kind].push(Math.max(0, now[kind] - before[kind]) / (now.at - since));
        for (const list of Object.values(past)) list.splice(0, list.length - kept);
        if (past.x.length > 1) {
          speed.value.textContent = "";
          speed.set(["trained", "sampled", "prefilled"].map((name) => ({ name, x: past.x.slice(), y: past[name].slice() })));
        }
      }
      before = now;
    } catch (error) {
      if (!isAbort(error)) put(trouble, failed(error));
    }
  };
  await new Promise((ready) => {
    const begin = () => load().then(ready);
    live("devices=true", signal, { begin, devices: soon(refresh, signal, load), failed: (error) => put(trouble, failed(error)) }).then(ready);
  });
}

// parse reads the text form of Prometheus: lists of {labels, value} by name.
function parse(all) {
  const values = new Map();
  for (const line of all.split("\n")) {
    const found = /^(tinsmith_\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value.replace(/\\(.)/g, "$1");
    if (!values.has(found[1])) values.set(found[1], []);
    values.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return values;
}

const total = (values, name, model) => (values.get(name) ?? []).filter((v) => !model || v.labels.model === model).reduce((sum, v) => sum + v.value, 0);

function model(m, values) {
  const of = (name) => total(values, name, m.name);
  const pages = of("tinsmith_kv_pages");
  const limit = of("tinsmith_backend_memory_limit_bytes");
  const tiles = [
    ["Device", m.device ?? "–"],
    ["Training waits", figure(of("tinsmith_queue_training"))],
    ["Sampling waits", figure(of("tinsmith_queue_sampling"))],
    ["Sequences running", figure(of("tinsmith_sampling_running"))],
    ["Adapters", figure(of("tinsmith_adapters"))],
    ["Clock cycles", figure(of("tinsmith_cycles_total"))],
    ["Restarts", figure(m.restarts)],
    ["Weights", bytes(of("tinsmith_weights_memory_bytes"))],
    ["Adapters' memory", bytes(of("tinsmith_adapter_memory_bytes"))],
  ];
  return el(
    "section",
    { "aria-label": plain(m.name) },
    el("div", { class: "row" }, el("h2", { class: "grow break" }, plain(m.name)), el("span", { class: `badge ${m.state === "ready" ? "live" : "bad"}` }, m.state)),
    el("p", { class: "faint small break" }, [m.dtype, m.arithmetic].filter(Boolean).map((t) => plain(t)).join(" · ")),
    m.products && el("p", { class: "faint small break" }, plain(m.products, 2000)),
    m.error && failed(plain(m.error, 2000)),
    el("dl", { class: "tiles" }, tiles.map(([k, v]) => el("div", { class: "tile" }, el("dt", {}, k), el("dd", {}, v)))),
    share("Key and value cache", pages - of("tinsmith_kv_pages_free"), pages, (n) => `${figure(n)} pages`),
    share("Memory of the backend", of("tinsmith_backend_memory_bytes"), limit, bytes),
    backends(m.backends ?? []),
    plan(m.memory ?? []),
  );
}

// backends shows those of a model that has several: how each stands, and what is there.
function backends(list) {
  if (!list.length) return null;
  const head = ["Backend", "State", "Runs", "At work", "Samples", "Restarts", "Device"];
  return el(
    "section",
    { "aria-label": "Backends" },
    el("h3", {}, "Backends"),
    el(
      "table",
      { class: "plan small" },
      el("thead", {}, el("tr", {}, head.map((name) => el("th", {}, name)))),
      el(
        "tbody",
        {},
        list.map((b) =>
          el(
            "tr",
            {},
            el("td", { class: "break" }, plain(b.name, 220)),
            el("td", {}, el("span", { class: `badge ${b.state === "ready" && !b.drained ? "live" : "bad"}` }, b.drained ? `${b.state}, drained` : b.state)),
            el("td", { class: "number" }, b.leaving ? `${figure(b.runs)}, ${figure(b.leaving)} leaving` : figure(b.runs)),
            el("td", { class: "number" }, figure(b.active_runs)),
            el("td", { class: "number" }, figure(b.samples)),
            el("td", { class: "number" }, figure(b.restarts)),
            el("td", { class: "break" }, plain([b.device, b.dtype].filter(Boolean).join(", "), 100)),
          ),
        ),
      ),
    ),
  );
}

// plan shows how the backend shares its memory out, in its own words: each line beside the limit, which is the first.
function plan(lines) {
  if (!lines.length) return null;
  const limit = lines[0].bytes || lines.reduce((sum, l) => sum + l.bytes, 0);
  return el(
    "section",
    { "aria-label": "Memory plan" },
    el("h3", {}, "Memory plan"),
    el(
      "table",
      { class: "plan small" },
      el(
        "tbody",
        {},
        lines.map((l) => el("tr", {}, el("td", { class: "break" }, plain(l.name, 60)), el("td", { class: "number" }, l.bytes > 0 ? bytes(l.bytes) : "–"), el("td", { class: "of" }, l.bytes > 0 && meter(l.bytes / limit)), el("td", { class: "wide faint break" }, plain(l.detail, 300)))),
      ),
    ),
  );
}

function meter(part, name) {
  const filled = el("i");
  filled.style.width = `${Math.min(100, 100 * part)}%`;
  return el("div", { class: "bar", role: "img", "aria-label": name ? `${name}: ${Math.round(100 * part)} %` : `${Math.round(100 * part)} %` }, filled);
}

function share(name, used, all, unit) {
  if (!(all > 0)) return null;
  return el("div", {}, el("p", { class: "small faint" }, `${name}: ${unit(used)} of ${unit(all)}`), meter(used / all, name));
}
