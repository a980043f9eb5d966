// Keys: what they may use, what they use at the moment, and what they have used by day. A key sees itself, an administrator's sees all.
import { get, isAbort } from "../api.js";
import { el, empty, failed, put } from "../dom.js";
import { bytes, figure, plain, when } from "../format.js";
import { live, soon } from "../live.js";

const minute = 61_000; // after which nothing of the last minute's use is left

export async function show(main, _, signal) {
  let later;
  const load = async () => {
    clearTimeout(later);
    try {
      const answer = await get("api/v1/tinsmith/usage", signal);
      put(main, el("div", { class: "card" }, el("h1", {}, "Users"), now(answer.now)), el("div", { class: "card" }, el("h2", {}, `Used since ${answer.since}`), days(answer.days)));
      if (answer.now.some((u) => u.trained_tokens_of_this_minute > 0 || u.sampled_tokens_of_this_minute > 0)) later = setTimeout(load, minute);
    } catch (error) {
      if (!isAbort(error)) put(main, failed(error));
    }
  };
  signal.addEventListener("abort", () => clearTimeout(later));
  await new Promise((ready) => {
    const begin = () => load().then(ready);
    live("usage=true", signal, { begin, usage: soon(2000, signal, load), failed: (error) => put(main, failed(error)) }).then(ready);
  });
}

const table = (columns, rows) =>
  el("div", { class: "scroll" }, el("table", { class: "stack" }, el("thead", {}, el("tr", {}, columns.map(([title, number]) => el("th", { class: number && "number" }, title)))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: columns[i][1] ? "number" : "break", "data-title": columns[i][0] }, el("span", {}, cell))))))));

// of shows what is used, beside the limit where there is one.
const of = (used, limit, unit = figure) => (limit === null ? unit(used) : `${unit(used)} of ${unit(limit)}`);

// ofMinute is of() for what is only counted where there is a limit.
const ofMinute = (used, limit) => (limit === null ? "–" : of(used, limit));

function now(users) {
  const columns = [["Name"], ["Keys"], ["Runs", true], ["Samples in flight", true], ["Trained this minute", true], ["Sampled this minute", true], ["Checkpoints", true], ["Metric values", true], ["Weight", true]];
  return table(
    columns,
    users.map((u) => [
      plain(u.key),
      !u.keys.length ? "–" : u.keys.map((k) => el("div", { class: "small" }, `${plain(k.id)}${k.admin ? ", administrator" : ""}${k.expires ? `, until ${when(k.expires)}` : ""}`)),
      of(u.runs, u.limits.runs),
      of(u.samples, u.limits.samples),
      ofMinute(u.trained_tokens_of_this_minute, u.limits.trained_tokens_per_minute),
      ofMinute(u.sampled_tokens_of_this_minute, u.limits.sampled_tokens_per_minute),
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
