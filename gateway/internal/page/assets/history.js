// What the server keeps of runs, in the form that views use.
import { events, get } from "./api.js";

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

// run gives one run; of a live one also what it does at the moment.
export async function run(id, signal) {
  const r = shaped(await get(`${base}/${encodeURIComponent(id)}`, signal));
  if (r.live) {
    const now = (await get(base, signal)).runs.find((other) => other.run_id === id);
    if (now) Object.assign(r, { queued: now.queued, rebuilding: now.rebuilding, unread_inputs: now.unread_inputs });
  }
  return r;
}

// shaped adds the newest value of each series by name, and the step.
function shaped(r) {
  const newest = Object.fromEntries(r.series.map((s) => [s.name, s.value]));
  return { ...r, newest, step: r.series.find((s) => s.name === "learning_rate")?.step ?? 0 };
}

// series gives all series of a run: [{name, x, y, thinned}]. A client may use a name that the server uses too.
export async function series(id, signal) {
  const found = (await get(`${base}/${encodeURIComponent(id)}/series?points=${most}`, signal)).series;
  const twice = (s) => found.some((other) => other !== s && other.name === s.name);
  return found.filter((s) => s.steps.length).map((s) => ({ name: twice(s) && s.source === "client" ? `${s.name} (client)` : s.name, x: s.steps, y: s.values, thinned: s.thinned > 1 }));
}

// cycles gives the clock cycles of a run's newest operations, oldest first.
export async function cycles(id, operations, signal) {
  return (await get(`${base}/${encodeURIComponent(id)}/cycles?operations=${operations}`, signal)).cycles;
}

// follow calls on when a run has new points. It begins anew when the connection is lost, and ends with the run or the signal.
export async function follow(id, from, signal, on) {
  let ended = false;
  for (let wait = 500; !signal.aborted && !ended; wait = Math.min(wait * 2, 15000)) {
    try {
      await events(`${base}/${encodeURIComponent(id)}/events?from=${from()}`, {
        signal,
        on: (name) => {
          wait = 500;
          ended = name === "end";
          if (name === "points") on();
        },
      });
    } catch (error) {
      if (signal.aborted || error.status === 401 || error.status === 404) return;
    }
    await new Promise((again) => setTimeout(again, wait));
  }
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
