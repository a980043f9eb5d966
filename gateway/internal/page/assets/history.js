// What the server keeps of runs, in the form that views use.
import { events, get } from "./api.js";

const base = "api/v1/tinsmith/runs";
export const points = 1000; // of a series, as many as a chart can show

// runs lists live and ended runs, the newest first.
export async function runs(signal) {
  return (await get(base, signal)).runs;
}

export async function run(id, signal) {
  return get(`${base}/${encodeURIComponent(id)}`, signal);
}

// series gives the named series of a run, all where no name is given: [{name, x, y}].
export async function series(id, names, signal) {
  const query = new URLSearchParams({ points });
  if (names.length) query.set("names", names.join(","));
  return (await get(`${base}/${encodeURIComponent(id)}/series?${query}`, signal)).series.map(shaped);
}

const shaped = (s) => ({ name: s.name, x: s.steps, y: s.values, thinned: s.thinned });

// follow calls on with new points of a run as they come: {name, x, y}. It begins anew when the connection is lost, and ends with the signal.
export async function follow(id, from, signal, on) {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 15000)) {
    try {
      await events(`${base}/${encodeURIComponent(id)}/events?from=${from()}`, {
        signal,
        on: (_, data) => {
          wait = 500;
          on(JSON.parse(data));
        },
      });
    } catch (error) {
      if (signal.aborted || error.status === 401 || error.status === 404) return;
    }
    await new Promise((again) => setTimeout(again, wait));
  }
}

// named is what people call a run: the name that its session or its metadata gave it, else nothing.
export function named(r) {
  const metadata = r.user_metadata ?? {};
  return [r.name, r.display_name, metadata.name, metadata.run_name, r.session_name].find((n) => typeof n === "string" && n) ?? "";
}

export function state(r) {
  if (r.corrupted) return "lost";
  if (r.rebuilding) return "being rebuilt";
  return r.live === false ? "ended" : "live";
}
