// One run: its curves, clock cycles, checkpoints, what its newest weights say, and what went wrong.
import { download, get, isAbort, post } from "../api.js";
import { Chart } from "../chart.js";
import { el, empty, every, failed, field, put } from "../dom.js";
import { bytes, figure, plain, since, when } from "../format.js";
import { cycles, follow, named, run, series, state } from "../history.js";
import { Timeline, seconds } from "../timeline.js";

export async function show(main, [id], signal) {
  const head = el("div", { class: "card" });
  const notices = el("div");
  const curves = el("div", { class: "card" });
  const timeline = el("div", { class: "card" });
  const checkpoints = el("div", { class: "card" });
  const first = await run(id, signal);
  put(main, head, notices, curves, timeline, checkpoints, sampler(first, signal));

  const draw = (r) => {
    const name = named(r);
    const s = state(r);
    put(
      head,
      el("div", { class: "row" }, el("h1", { class: "grow" }, name ? plain(name) : r.run_id), el("span", { class: `badge ${s === "live" ? "live" : s === "lost" ? "bad" : ""}` }, s)),
      el("p", { class: "faint break" }, `${r.run_id} · ${plain(r.base_model)}, rank ${r.rank} · ${r.recipe ? `${plain(r.recipe, 60)} · ` : ""}last request ${since(r.last_request_time)}`),
      el(
        "dl",
        { class: "tiles" },
        [["Step", figure(r.step)], ["Loss per token", figure(r.newest.loss)], ["Gradient norm", figure(r.newest.grad_norm)], ["Adapter norm", figure(r.newest.adapter_norm)], ["Tokens per second", figure(r.newest.tokens_per_second, 3)], ["Waiting", figure(r.queued)]].map(([k, v]) => el("div", { class: "tile" }, el("dt", {}, k), el("dd", {}, v))),
      ),
      metadata(r.user_metadata),
    );
    put(notices, troubles(r));
  };
  draw(first);
  await Promise.all([drawCurves(curves, id, signal), drawCycles(timeline, first, signal), drawCheckpoints(checkpoints, id, signal)]);
  every(3000, signal, async () => {
    try {
      draw(await run(id, signal));
    } catch (error) {
      if (!isAbort(error)) put(notices, failed(error));
    }
  });
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
  for (const s of all.values()) {
    const part = s.name.startsWith(parts);
    const title = part ? `${parts}…` : s.name;
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push(part ? { ...s, name: s.name.slice(parts.length) } : s);
  }
  return groups;
}

// drawCurves shows every series of the run, and adds points as they come.
async function drawCurves(node, id, signal) {
  const charts = new Map();
  const grid = el("div", { class: "charts" });
  const thinned = el("p", { class: "faint small" });
  let log = false;
  let all = new Map();
  const scale = el("input", {
    type: "checkbox",
    onchange: () => {
      log = scale.checked;
      build();
    },
  });
  const build = () => {
    for (const { stop } of charts.values()) stop.abort();
    charts.clear();
    put(grid);
    for (const [title, list] of grouped(all)) {
      const stop = new AbortController();
      const chart = new Chart(AbortSignal.any([signal, stop.signal]), { title: plain(title, 60), legend: list.length > 1, log: log && list.every((s) => s.y.every((v) => v === null || v > 0)) });
      charts.set(title, { chart, stop });
      grid.append(chart.node);
      chart.set(list);
    }
    thinned.textContent = [...all.values()].some((s) => s.thinned) ? "There are more steps than a series keeps: older ones are thinned." : "";
  };
  const load = async () => {
    all = new Map((await series(id, signal)).map((s) => [s.name, s]));
    put(node, el("div", { class: "row" }, el("h2", { class: "grow" }, "Curves"), el("label", { class: "row" }, scale, "logarithmic")), all.size ? grid : empty("No step has been made yet. Each optim_step adds a point; a client's own numbers come by:", `bin/tinsmith metrics ${id} metrics.jsonl --follow`), thinned);
    build();
  };
  try {
    await load();
  } catch (error) {
    if (!isAbort(error)) put(node, el("h2", {}, "Curves"), failed(error));
    return;
  }
  let due = false;
  const last = () => Math.max(0, ...[...all.values()].map((s) => s.x.at(-1) + 1));
  follow(id, last, signal, () => {
    if (due) return;
    due = true;
    setTimeout(async () => {
      due = false;
      if (signal.aborted) return;
      try {
        const next = new Map((await series(id, signal)).map((s) => [s.name, s]));
        const same = next.size === all.size && [...next.keys()].every((n) => all.has(n));
        all = next;
        if (same) for (const [title, list] of grouped(all)) charts.get(title).chart.set(list);
        else await load();
      } catch {
        // the next point tries again
      }
    }, 500);
  });
}

// drawCycles shows the newest clock cycles as a timeline, and the last of them in words.
async function drawCycles(node, r, signal) {
  const operations = 60;
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
    const list = await cycles(r.run_id, operations, signal);
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
  const turn = async () => {
    try {
      await draw();
    } catch (error) {
      if (!isAbort(error)) put(node, title, failed(error));
    }
  };
  if (r.live) await every(3000, signal, turn);
  else await turn();
}

async function drawCheckpoints(node, id, signal) {
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
  await every(10000, signal, async () => {
    try {
      await draw();
    } catch (error) {
      if (!isAbort(error)) put(node, title, failed(error));
    }
  });
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
