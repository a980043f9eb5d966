// All runs, and any series of some of them laid over each other.
import { isAbort } from "../api.js";
import { Chart } from "../chart.js";
import { el, empty, every, failed, field, put } from "../dom.js";
import { figure, plain, since } from "../format.js";
import { named, runs, series, state } from "../history.js";

const page = 100; // rows that are shown at once
const refresh = 3000;

export async function show(main, _, signal) {
  const chosen = new Map(); // runs by id, in the order in which they were chosen
  let list = [];
  let most = page;

  const filter = el("input", { type: "search", placeholder: "name, model, recipe", oninput: () => draw() });
  const only = el("select", { onchange: () => draw() }, ["all", "live", "ended", "lost"].map((s) => el("option", {}, s)));
  const everyone = el("input", { type: "checkbox", onchange: () => load() });
  const rows = el("tbody");
  const more = el("button", { type: "button", onclick: () => ((most += page), draw()) });
  const count = el("span", { class: "faint small", "aria-live": "polite" });
  const compare = comparison(chosen, signal);
  const trouble = el("div");
  const table = el(
    "div",
    { class: "card" },
    el("div", { class: "row" }, el("h1", { class: "grow" }, "Runs"), field("Filter", filter), field("Show", only), el("label", { class: "row" }, everyone, "everybody's")),
    trouble,
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "wide" }, "Compare")), el("th", {}, "Run"), el("th", { class: "number" }, "Step"), el("th", { class: "number" }, "Loss"), el("th", { class: "number wide" }, "Tokens/s"), el("th", {}, "State"), el("th", { class: "wide" }, "Last"))),
        rows,
      ),
    ),
    el("div", { class: "row" }, count, more),
  );
  const nothing = el("div", { class: "card" }, el("h1", {}, "Runs"), empty("Nothing has been trained here yet. In a terminal beside the server:", `eval "$(bin/tinsmith env --url ${location.origin})"\npython -m tinker_cookbook.recipes.sl_basic`));

  function matches(r) {
    if (only.value !== "all" && state(r) !== only.value) return false;
    const wanted = filter.value.trim().toLowerCase();
    return !wanted || [named(r), r.run_id, r.base_model, r.owner, r.recipe, JSON.stringify(r.user_metadata ?? {})].some((t) => String(t).toLowerCase().includes(wanted));
  }

  function row(r) {
    const name = named(r);
    const box = el("input", {
      type: "checkbox",
      "aria-label": `compare ${plain(name || r.run_id)}`,
      checked: chosen.has(r.run_id),
      onchange: () => {
        if (box.checked) chosen.set(r.run_id, r);
        else chosen.delete(r.run_id);
        compare.draw();
      },
    });
    const s = state(r);
    return el(
      "tr",
      {},
      el("td", {}, box),
      el(
        "td",
        {},
        el("a", { class: "name", href: `#/runs/${encodeURIComponent(r.run_id)}` }, name ? plain(name) : r.run_id),
        el("div", { class: "faint small break" }, [r.recipe && plain(r.recipe, 60), `${plain(r.base_model)}, rank ${r.rank}`, everyone.checked && `of ${plain(r.owner, 60)}`].filter(Boolean).join(" · "), name && el("span", { class: "wide" }, ` · ${r.run_id}`)),
      ),
      el("td", { class: "number" }, figure(r.step)),
      el("td", { class: "number" }, figure(r.newest.loss)),
      el("td", { class: "number wide" }, figure(r.newest.tokens_per_second, 3)),
      el("td", {}, el("span", { class: `badge ${s === "live" ? "live" : s === "lost" ? "bad" : ""}` }, s)),
      el("td", { class: "wide small" }, since(r.last_request_time)),
    );
  }

  function draw() {
    const found = list.filter(matches);
    const focused = document.activeElement?.getAttribute("aria-label");
    put(rows, found.slice(0, most).map(row));
    if (focused) [...rows.querySelectorAll("input")].find((i) => i.getAttribute("aria-label") === focused)?.focus();
    count.textContent = `${found.length} of ${list.length} runs`;
    more.hidden = found.length <= most;
    more.textContent = `${Math.min(page, found.length - most)} more`;
  }

  let shown = null;
  async function load() {
    try {
      list = await runs(everyone.checked, signal);
      put(trouble);
    } catch (error) {
      if (isAbort(error) || signal.aborted) return;
      if (!shown) put(main, failed(error));
      else put(trouble, failed(error));
      if (error.status === 403) everyone.checked = false;
      return;
    }
    const next = list.length ? table : nothing;
    if (shown !== next) put(main, list.length ? [compare.node, table] : nothing);
    shown = next;
    draw();
    compare.refresh();
  }
  await every(refresh, signal, load);
}

// comparison lays one series of the chosen runs over each other.
function comparison(chosen, signal) {
  const name = el("select", { onchange: () => load() });
  const chart = new Chart(signal, { title: "Comparison", height: 280, legend: true });
  const trouble = el("div");
  const node = el("div", { class: "card", hidden: true }, el("div", { class: "row" }, el("h2", { class: "grow" }, "Compared"), field("Series", name)), trouble, chart.node);
  let all = new Map(); // of a run: its series by name

  async function fetchAll() {
    // What has ended has no more steps; numbers that a client adds late show when the run is chosen anew.
    const loaded = await Promise.all([...chosen].map(async ([id, r]) => [id, (r.live ? null : all.get(id)) ?? new Map((await series(id, signal)).map((s) => [s.name, s]))]));
    all = new Map(loaded);
  }
  function drawNames() {
    const names = [...new Set([...all.values()].flatMap((m) => [...m.keys()]))].sort();
    const before = name.value;
    put(name, names.map((n) => el("option", { value: n }, plain(n, 60))));
    name.value = names.includes(before) ? before : (names.find((n) => n === "loss") ?? names[0] ?? "");
  }
  function load() {
    const lines = [];
    for (const [id, r] of chosen) {
      const s = all.get(id)?.get(name.value);
      if (s) lines.push({ name: plain(named(r) || id, 60), x: s.x, y: s.y });
    }
    chart.set(lines);
  }
  async function draw() {
    node.hidden = chosen.size === 0;
    if (node.hidden) return;
    try {
      await fetchAll();
      put(trouble);
    } catch (error) {
      if (!isAbort(error)) put(trouble, failed(error));
    }
    if (document.activeElement !== name) drawNames();
    load();
  }
  return { node, draw, refresh: () => chosen.size && draw() };
}
