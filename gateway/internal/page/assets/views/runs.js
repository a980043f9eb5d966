// All runs, and any series of some of them laid over each other.
import { isAbort } from "../api.js";
import { Chart } from "../chart.js";
import { clock, el, empty, failed, field, keep, put, write } from "../dom.js";
import { figure, plain, since } from "../format.js";
import { named, runs, series, shaped, state } from "../history.js";
import { live, soon } from "../live.js";

const page = 100; // rows that are shown at once

export async function show(main, _, signal) {
  const chosen = new Map(); // runs by id, in the order in which they were chosen
  const shownRows = new Map(); // rows by the run's id
  let list = []; // newest first
  let most = page;
  let stream = new AbortController(); // of the list that is shown

  const filter = el("input", { type: "search", placeholder: "name, model, recipe", oninput: () => draw() });
  const only = el("select", { onchange: () => draw() }, ["all", "live", "ended", "lost"].map((s) => el("option", {}, s)));
  const everyone = el("input", { type: "checkbox", onchange: () => follow() });
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

  // row makes the row of a run: its node, and a function that brings it up to date.
  function row(id) {
    const box = el("input", {
      type: "checkbox",
      onchange: () => {
        if (box.checked) chosen.set(id, list.find((r) => r.run_id === id));
        else chosen.delete(id);
        compare.draw();
      },
    });
    const link = el("a", { class: "name", href: `#/runs/${encodeURIComponent(id)}` });
    const about = el("span");
    const longer = el("span", { class: "wide" });
    const [step, loss, speed, last] = [el("td", { class: "number" }), el("td", { class: "number" }), el("td", { class: "number wide" }), el("td", { class: "wide small" })];
    const badge = el("span");
    const node = el("tr", {}, el("td", {}, box), el("td", {}, link, el("div", { class: "faint small break" }, about, longer)), step, loss, speed, el("td", {}, badge), last);
    const update = (r) => {
      const name = named(r);
      const s = state(r);
      box.checked = chosen.has(id);
      box.setAttribute("aria-label", `compare ${plain(name || id)}`);
      write(link, name ? plain(name) : id);
      write(about, [r.recipe && plain(r.recipe, 60), `${plain(r.base_model)}, rank ${r.rank}`, everyone.checked && `of ${plain(r.owner, 60)}`].filter(Boolean).join(" · "));
      write(longer, name && ` · ${id}`);
      write(step, figure(r.step));
      write(loss, figure(r.newest.loss));
      write(speed, figure(r.newest.tokens_per_second, 3));
      write(badge, s);
      badge.className = `badge ${s === "live" ? "live" : s === "lost" ? "bad" : ""}`;
      write(last, since(r.last_request_time));
    };
    return { node, update };
  }

  function draw() {
    const found = list.filter(matches);
    keep(
      rows,
      found.slice(0, most).map((r) => {
        if (!shownRows.has(r.run_id)) shownRows.set(r.run_id, row(r.run_id));
        const { node, update } = shownRows.get(r.run_id);
        update(r);
        return node;
      }),
    );
    count.textContent = `${found.length} of ${list.length} runs`;
    more.hidden = found.length <= most;
    more.textContent = `${Math.min(page, found.length - most)} more`;
    const next = list.length ? table : nothing;
    if (main.lastElementChild !== next) put(main, list.length ? [compare.node, table] : nothing);
  }

  let painted = false;
  function show(error) {
    if (isAbort(error) || signal.aborted) return;
    if (painted) put(trouble, failed(error));
    else put(main, failed(error));
  }

  async function load() {
    try {
      list = await runs(everyone.checked, AbortSignal.any([signal, stream.signal]));
    } catch (error) {
      show(error);
      return;
    }
    put(trouble);
    painted = true;
    draw();
    compare.changed([...chosen.keys()]);
  }

  // merge brings runs that have changed into the list.
  function merge({ runs: changed, gone }) {
    for (const r of changed.map(shaped)) {
      const at = list.findIndex((other) => other.run_id === r.run_id);
      const older = at < 0 ? list.findIndex((other) => newest(r, other) < 0) : 0;
      if (at >= 0) list[at] = r;
      else list.splice(older < 0 ? list.length : older, 0, r);
      if (chosen.has(r.run_id)) chosen.set(r.run_id, r);
    }
    if (gone.length) list = list.filter((r) => !gone.includes(r.run_id));
    for (const id of gone) {
      shownRows.delete(id);
      chosen.delete(id);
    }
    draw();
    compare.changed(changed.map((r) => r.run_id).filter((id) => chosen.has(id)));
  }

  // follow shows the list that is chosen, and what changes in it from now on.
  function follow() {
    stream.abort();
    stream = new AbortController();
    return new Promise((ready) => {
      const begin = async () => {
        await load();
        ready();
      };
      const refused = (error) => {
        show(error);
        ready();
        if (error.status !== 403 || !everyone.checked) return;
        everyone.checked = false;
        follow().then(() => show(error));
      };
      live(`runs=${everyone.checked ? "all" : "me"}`, AbortSignal.any([signal, stream.signal]), { begin, runs: merge, more: load, failed: refused }).then(ready);
    });
  }
  clock(10_000, signal, draw); // how long ago something was
  await follow();
}

// newest orders runs as the server does.
const newest = (a, b) => Date.parse(b.created_at) - Date.parse(a.created_at) || (a.run_id < b.run_id ? 1 : -1);

// comparison lays one series of the chosen runs over each other.
function comparison(chosen, signal) {
  const name = el("select", { onchange: () => load() });
  const chart = new Chart(signal, { title: "Comparison", height: 280, legend: true });
  const trouble = el("div");
  const node = el("div", { class: "card", hidden: true }, el("div", { class: "row" }, el("h2", { class: "grow" }, "Compared"), field("Series", name)), trouble, chart.node);
  let all = new Map(); // of a run: its series by name
  const stale = new Set(); // runs whose series have changed since

  async function fetchAll() {
    const loaded = await Promise.all(
      [...chosen.keys()].map(async (id) => {
        const known = stale.delete(id) ? null : all.get(id);
        return [id, known ?? new Map((await series(id, signal)).map((s) => [s.name, s]))];
      }),
    );
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
  const again = soon(1000, signal, draw);
  const changed = (ids) => {
    for (const id of ids) stale.add(id);
    if (ids.length) again();
    else if (!chosen.size) node.hidden = true;
  };
  return { node, draw, changed };
}
