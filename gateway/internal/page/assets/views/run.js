// One run: its curves, clock cycles, checkpoints, what its newest weights say, and what went wrong.
import { download, get, isAbort, post } from "../api.js";
import { Chart } from "../chart.js";
import { clock, el, empty, failed, field, put, write } from "../dom.js";
import { bytes, figure, plain, since, when } from "../format.js";
import { cycles, extend, named, run, series, shaped, state } from "../history.js";
import { live, soon } from "../live.js";
import { Timeline, seconds } from "../timeline.js";

export async function show(main, [id], signal) {
  const head = heading();
  const notices = el("div");
  const curves = new Curves(id, signal);
  const timeline = cyclesCard(id, signal);
  const checkpoints = checkpointsCard(id, signal);
  let painted = false;
  let told = "";

  const draw = (r) => {
    head.draw(r);
    const text = JSON.stringify([r.state, r.reason, r.rebuilding, r.inexact, r.unread_inputs]);
    if (text !== told) put(notices, troubles(r));
    told = text;
  };
  const fail = (error) => {
    if (isAbort(error) || signal.aborted) return;
    told = "";
    put(painted ? notices : main, failed(error));
  };
  const load = async () => {
    try {
      const r = await run(id, signal);
      if (!painted) put(main, head.node, notices, curves.node, timeline.node, checkpoints.node, sampler(r, signal));
      painted = true;
      draw(r);
    } catch (error) {
      fail(error);
      return;
    }
    await Promise.all([curves.load(), timeline.load(), checkpoints.load()]);
  };
  clock(10_000, signal, head.tick);
  await new Promise((ready) => {
    live(`run=${encodeURIComponent(id)}`, signal, {
      begin: async () => {
        await load();
        ready();
      },
      runs: ({ runs: changed, gone }) => {
        for (const r of changed) draw(shaped(r));
        if (gone.length) fail(new Error("This run is gone: its session ended long ago, and it has no checkpoint."));
      },
      points: ({ points }) => curves.append(points),
      operations: soon(2000, signal, timeline.load),
      checkpoints: soon(500, signal, checkpoints.load),
      failed: fail,
    }).then(ready);
  });
}

// heading is the card with the run's name and newest figures.
function heading() {
  const title = el("h1", { class: "grow" });
  const badge = el("span");
  const about = el("p", { class: "faint break" });
  const values = [
    ["Step", (r) => figure(r.step)],
    ["Loss per token", (r) => figure(r.newest.loss)],
    ["Gradient norm", (r) => figure(r.newest.grad_norm)],
    ["Adapter norm", (r) => figure(r.newest.adapter_norm)],
    ["Tokens per second", (r) => figure(r.newest.tokens_per_second, 3)],
    ["Waiting", (r) => figure(r.queued)],
  ].map(([name, of]) => ({ name, of, node: el("dd") }));
  const tiles = values.map((v) => el("div", { class: "tile" }, el("dt", {}, v.name), v.node));
  const written = el("div");
  const node = el("div", { class: "card" }, el("div", { class: "row" }, title, badge), about, el("dl", { class: "tiles" }, tiles), written);
  let now = null;
  let wrote = "";
  const draw = (r) => {
    now = r;
    const name = named(r);
    const s = state(r);
    write(title, name ? plain(name) : r.run_id);
    write(badge, s);
    badge.className = `badge ${s === "live" ? "live" : s === "lost" ? "bad" : ""}`;
    const recipe = r.recipe ? `${plain(r.recipe, 60)} · ` : "";
    write(about, `${r.run_id} · ${plain(r.base_model)}, rank ${r.rank} · ${recipe}last request ${since(r.last_request_time)}`);
    for (const v of values) write(v.node, v.of(r));
    const text = JSON.stringify(r.user_metadata ?? {});
    if (text !== wrote) put(written, metadata(r.user_metadata));
    wrote = text;
  };
  return { node, draw, tick: () => now && draw(now) };
}

function metadata(all) {
  const entries = Object.entries(all ?? {});
  if (!entries.length) return null;
  return el("details", {}, el("summary", {}, "What its user wrote"), el("table", {}, el("tbody", {}, entries.slice(0, 100).map(([k, v]) => el("tr", {}, el("th", {}, plain(k)), el("td", { class: "break" }, plain(typeof v === "string" ? v : JSON.stringify(v), 2000)))))));
}

function troubles(r) {
  const list = [];
  if (state(r) === "lost") list.push(el("p", { class: "error" }, `Lost: ${plain(r.reason, 2000)}`));
  if (r.rebuilding) list.push(el("p", { class: "notice" }, `Being rebuilt: ${r.rebuilding.operations_replayed} of ${r.rebuilding.operations_to_replay} operations have run again. ${plain(r.rebuilding.reason ?? "", 2000)}`));
  if (r.inexact) list.push(el("p", { class: "notice" }, `Not bit-equal to an undisturbed run: ${plain(r.inexact, 2000)}`));
  if (r.unread_inputs?.length) list.push(el("p", { class: "notice" }, `Sent in loss_fn_inputs and not read by the loss: ${r.unread_inputs.map((n) => plain(n, 80)).join(", ")}`));
  return list;
}

// grouped is what is drawn in one chart: norms by kind of module together, every other series alone.
function grouped(all) {
  const groups = new Map();
  const parts = "adapter_norm/";
  for (const s of all) {
    const part = s.name.startsWith(parts);
    const title = part ? `${parts}…` : s.name;
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push(part ? { ...s, name: s.name.slice(parts.length) } : s);
  }
  return groups;
}

// Curves shows every series of the run, and adds points as they come.
class Curves {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.node = el("div", { class: "card" });
    this.grid = el("div", { class: "charts" });
    this.thinned = el("p", { class: "faint small" });
    this.scale = el("input", { type: "checkbox", onchange: () => this.build() });
    this.charts = new Map();
    this.all = [];
    this.again = soon(500, signal, () => this.load());
    this.redraw = soon(100, signal, () => this.set());
  }

  async load() {
    try {
      this.all = await series(this.id, this.signal);
    } catch (error) {
      if (!isAbort(error)) put(this.node, el("h2", {}, "Curves"), failed(error));
      return;
    }
    const groups = grouped(this.all);
    const same = this.charts.size && groups.size === this.charts.size && [...groups].every(([title, list]) => this.charts.get(title)?.names === names(list));
    if (same) this.set();
    else this.build();
  }

  // build makes all charts anew.
  build() {
    for (const { stop } of this.charts.values()) stop.abort();
    this.charts.clear();
    put(this.grid);
    for (const [title, list] of grouped(this.all)) {
      const stop = new AbortController();
      const log = this.scale.checked && list.every((s) => s.y.every((v) => v === null || v > 0));
      const chart = new Chart(AbortSignal.any([this.signal, stop.signal]), { title: plain(title, 60), legend: list.length > 1, log });
      this.charts.set(title, { chart, stop, names: names(list) });
      this.grid.append(chart.node);
    }
    put(
      this.node,
      el("div", { class: "row" }, el("h2", { class: "grow" }, "Curves"), this.all.length > 0 && el("label", { class: "row" }, this.scale, "logarithmic")),
      this.all.length ? this.grid : empty("No step has been made yet. Each optim_step adds a point; a client's own numbers come by:", `bin/tinsmith metrics ${this.id} metrics.jsonl --follow`),
      this.thinned,
    );
    this.set();
  }

  // set gives the charts their points.
  set() {
    for (const [title, list] of grouped(this.all)) this.charts.get(title)?.chart.set(list);
    this.thinned.textContent = this.all.some((s) => s.thinned) ? "There are more steps than a series keeps: older ones are thinned." : "";
  }

  append(points) {
    if (extend(this.all, points)) this.redraw();
    else this.again();
  }
}

const names = (list) => list.map((s) => s.name).join("\n");

// cyclesCard shows the newest clock cycles as a timeline, and the last of them in words.
function cyclesCard(id, signal) {
  const operations = 60;
  const node = el("div", { class: "card" });
  const picture = new Timeline(signal);
  const rows = el("tbody");
  const note = el("p", { class: "faint small" });
  const table = el(
    "details",
    {},
    el("summary", {}, "The last of them"),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { class: "number" }, "Cycle"), el("th", {}, "Ran"), el("th", { class: "number" }, "Took"), el("th", { class: "number" }, "Waited"), el("th", { class: "number wide" }, "Sampler"))), rows)),
  );
  const title = el("h2", {}, "Clock cycles");
  let shown = "";
  const draw = async () => {
    const list = await cycles(id, operations, signal);
    const newest = list.length ? `${list.at(-1).cycle} ${list.at(-1).end}` : "none";
    if (newest === shown) return;
    shown = newest;
    if (!list.length) {
      put(node, title, empty("No cycle is known of this run: they are told as long as results are kept, from the first operation on."));
      return;
    }
    put(node, title, picture.node, note, table);
    picture.set(list);
    note.textContent = `The newest ${operations} operations, over time. Lighter: waiting for a cycle. Dashed: a time in which nothing of the run waited or ran, cut short. Point at a bar for its figures.`;
    put(
      rows,
      list
        .slice(-12)
        .reverse()
        .map((c) => {
          const kinds = new Map();
          for (const o of c.operations) kinds.set(o.kind, (kinds.get(o.kind) ?? 0) + 1);
          const took = (Date.parse(c.end) - Date.parse(c.begin)) / 1000;
          return el("tr", {}, el("td", { class: "number" }, figure(c.cycle)), el("td", { class: "break" }, [...kinds].map(([kind, n]) => (n > 1 ? `${n} × ${plain(kind, 40)}` : plain(kind, 40))).join(", ")), el("td", { class: "number" }, seconds(took)), el("td", { class: "number" }, seconds(Math.max(...c.operations.map((o) => o.queue_seconds)))), el("td", { class: "number wide" }, seconds(c.sampling_seconds)));
        }),
    );
  };
  const load = async () => {
    try {
      await draw();
    } catch (error) {
      shown = "";
      if (!isAbort(error)) put(node, title, failed(error));
    }
  };
  return { node, load };
}

function checkpointsCard(id, signal) {
  const node = el("div", { class: "card" });
  const title = el("h2", {}, "Checkpoints");
  const draw = async () => {
    const { checkpoints } = await get(`api/v1/training_runs/${encodeURIComponent(id)}/checkpoints`, signal);
    if (!checkpoints.length) {
      put(node, title, empty("None is saved yet. A client saves one by save_state or save_weights_for_sampler; from a terminal:", `bin/tinsmith export ${id} my-adapter`));
      return;
    }
    const error = el("div");
    put(
      node,
      title,
      error,
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "stack" },
          el("thead", {}, el("tr", {}, ["Name", "Kind", "Made", "Size", ""].map((t) => el("th", { class: t === "Kind" && "wide" }, t)))),
          el(
            "tbody",
            {},
            checkpoints.map((c) =>
              el(
                "tr",
                {},
                el("td", { class: "break", "data-title": "Name" }, plain(c.checkpoint_id)),
                el("td", { class: "wide", "data-title": "Kind" }, c.checkpoint_type),
                el("td", { class: "small", "data-title": "Made" }, when(c.time)),
                el("td", { "data-title": "Size" }, bytes(c.size_bytes)),
                el(
                  "td",
                  {},
                  el(
                    "button",
                    {
                      type: "button",
                      "aria-label": `download ${plain(c.checkpoint_id)}`,
                      onclick: async () => {
                        put(error, el("p", { class: "faint" }, "Being packed…"));
                        try {
                          await download(`api/v1/tinsmith/export?${new URLSearchParams({ path: c.tinker_path })}`, `${c.checkpoint_id.split("/").at(-1)}.tar`);
                          put(error);
                        } catch (e) {
                          put(error, failed(e));
                        }
                      },
                    },
                    "Download",
                  ),
                ),
              ),
            ),
          ),
        ),
      ),
    );
  };
  const load = async () => {
    try {
      await draw();
    } catch (error) {
      if (!isAbort(error)) put(node, title, failed(error));
    }
  };
  return { node, load };
}

// sampler lets the run's newest weights go on with a text, and colours the tokens by how likely they were.
function sampler(r, signal) {
  const prompt = el("textarea", { rows: 3 }, "The ");
  const tokens = el("input", { type: "number", min: 1, max: 1000, value: "60" });
  const temperature = el("input", { type: "number", min: 0, max: 5, step: 0.1, value: "1" });
  const seed = el("input", { type: "number", min: 0, step: 1, value: "1" });
  const out = el("div", { "aria-live": "polite" });
  const button = el("button", { class: "primary", type: "submit" }, "Sample");
  const form = el(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          const answer = await post("v1/completions", { model: `tinker://${r.run_id}`, prompt: prompt.value, max_tokens: Number(tokens.value), temperature: Number(temperature.value), seed: Number(seed.value), logprobs: 1 }, signal);
          put(out, answer.choices.map((c) => marked(c.logprobs)), el("p", { class: "faint small" }, `${answer.usage.completion_tokens} tokens. The darker a token, the less likely it was; point at one for its log-probability.`));
        } catch (error) {
          if (!isAbort(error)) put(out, failed(error));
        }
        button.disabled = false;
      },
    },
    field("Text", prompt),
    el("div", { class: "row" }, field("Tokens", tokens), field("Temperature", temperature), field("Seed", seed), button),
  );
  return el("div", { class: "card" }, el("h2", {}, "Sample its newest weights"), form, out);
}

function marked(logprobs) {
  return el(
    "p",
    { class: "tokens" },
    logprobs.tokens.map((token, i) => {
      const p = logprobs.token_logprobs[i];
      return el("span", { class: `p${p < -4 ? 0 : p < -2 ? 1 : p < -0.7 ? 2 : 3}`, title: `log-probability ${figure(p)}` }, token);
    }),
  );
}
