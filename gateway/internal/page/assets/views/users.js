// Keys: what they may use, what they use at the moment, and what they have used by day. A key sees itself, an administrator's sees all.
import { get, isAbort } from "../api.js";
import { el, empty, every, failed, put } from "../dom.js";
import { bytes, figure, plain, when } from "../format.js";

export async function show(main, _, signal) {
  await every(10000, signal, async () => {
    try {
      const answer = await get("api/v1/tinsmith/usage", signal);
      put(main, el("div", { class: "card" }, el("h1", {}, "Users"), now(answer.now)), el("div", { class: "card" }, el("h2", {}, `Used since ${answer.since}`), days(answer.days)));
    } catch (error) {
      if (!isAbort(error)) put(main, failed(error));
    }
  });
}

const table = (columns, rows) =>
  el("div", { class: "scroll" }, el("table", { class: "stack" }, el("thead", {}, el("tr", {}, columns.map(([title, number]) => el("th", { class: number && "number" }, title)))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: columns[i][1] ? "number" : "break", "data-title": columns[i][0] }, el("span", {}, cell))))))));

// of shows what is used, beside the limit where there is one.
const of = (used, limit, unit = figure) => (limit === null ? unit(used) : `${unit(used)} of ${unit(limit)}`);

function now(users) {
  const columns = [["Name"], ["Keys"], ["Runs", true], ["Samples in flight", true], ["Trained this minute", true], ["Sampled this minute", true], ["Checkpoints", true], ["Metric values", true], ["Weight", true]];
  return table(
    columns,
    users.map((u) => [
      plain(u.key),
      !u.keys.length ? "–" : u.keys.map((k) => el("div", { class: "small" }, `${plain(k.id)}${k.admin ? ", administrator" : ""}${k.expires ? `, until ${when(k.expires)}` : ""}`)),
      of(u.runs, u.limits.runs),
      of(u.samples, u.limits.samples),
      of(u.trained_tokens_of_this_minute, u.limits.trained_tokens_per_minute),
      of(u.sampled_tokens_of_this_minute, u.limits.sampled_tokens_per_minute),
      of(u.checkpoint_bytes, u.limits.checkpoint_bytes, bytes),
      of(u.metric_values, u.limits.metric_values),
      figure(u.weight),
    ]),
  );
}

function days(list) {
  if (!list.length) return empty("Nothing has been used yet. A key for somebody is made by:", "bin/tinsmith key add alice");
  const columns = [["Day"], ["Name"], ["Model"], ["Trained", true], ["Sampled", true], ["Prompts", true], ["Cached", true], ["Steps", true], ["Requests", true]];
  return table(
    columns,
    list.map((d) => [d.date, plain(d.key), plain(d.model), ...[d.trained_tokens, d.sampled_tokens, d.prompt_tokens, d.cached_tokens, d.steps, d.requests].map((n) => figure(n))]),
  );
}
