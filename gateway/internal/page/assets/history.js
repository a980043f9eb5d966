// What the server keeps of runs, in the form that views use.
import { get } from "./api.js";

const base = "api/v1/tinsmith/runs";
const most = 1000; // runs in one answer, and points of a series, as many as a chart can show

// runs lists live and ended runs, the newest first. Everybody's are for administrators.
export async function runs(everyone, signal) {
  const list = [];
  for (;;) {
    const answer = await get(`${base}?${new URLSearchParams({ state: "all", limit: most, offset: list.length, ...(everyone ? { owners: "all" } : {}) })}`, signal);
    list.push(...answer.runs.map(shaped));
    if (!answer.runs.length || list.length >= answer.cursor.total_count) return list;
  }
}

// run gives one run.
export const run = async (id, signal) => shaped(await get(`${base}/${encodeURIComponent(id)}`, signal));

// shaped adds the newest value of each series by name, and the step.
export function shaped(r) {
  const newest = Object.fromEntries(r.series.map((s) => [s.name, s.value]));
  return { ...r, newest, step: r.series.find((s) => s.name === "learning_rate")?.step ?? 0 };
}

// series gives all series of a run: [{name, of, source, x, y, thinned}], where of is the name that the server has. A client may use a name that the
// server uses too.
export async function series(id, signal) {
  const found = (await get(`${base}/${encodeURIComponent(id)}/series?points=${most}`, signal)).series;
  const twice = (s) => found.some((other) => other !== s && other.name === s.name);
  return found.filter((s) => s.steps.length).map((s) => ({ name: twice(s) && s.source === "client" ? `${s.name} (client)` : s.name, of: s.name, source: s.source, x: s.steps, y: s.values, thinned: s.thinned > 1 }));
}

// cycles gives the clock cycles of a run's newest operations, oldest first.
export async function cycles(id, operations, signal) {
  return (await get(`${base}/${encodeURIComponent(id)}/cycles?operations=${operations}`, signal)).cycles;
}

// extend brings points, as the server's events have them, into series as series() gives them. It tells whether they fit: if not, as with a series that
// is new, the series have to be read again.
export function extend(all, points) {
  for (const p of points) {
    for (const [name, value] of Object.entries(p.values)) {
      const s = all.find((s) => s.of === name && s.source === p.source);
      if (!s || s.x.length >= 2 * most) return false;
      let at = s.x.length;
      while (at > 0 && s.x[at - 1] > p.step) at--;
      if (at > 0 && s.x[at - 1] === p.step) s.y[at - 1] = value;
      else if (at === s.x.length) (s.x.push(p.step), s.y.push(value));
      else (s.x.splice(at, 0, p.step), s.y.splice(at, 0, value));
    }
  }
  return true;
}

// named is what people call a run: the name that its metadata or its session has, else nothing.
export function named(r) {
  const metadata = r.user_metadata ?? {};
  return [r.display_name, metadata.name, metadata.run_name].find((n) => typeof n === "string" && n) ?? "";
}

// state tells in a word how a run is: one that its session left behind has ended, however the server stores it.
export function state(r) {
  if (r.state === "corrupted" || r.state === "failed") return "lost";
  if (r.rebuilding) return "being rebuilt";
  return r.live ? "live" : "ended";
}
