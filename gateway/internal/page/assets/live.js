// What the server tells of changes: one stream for the view that is shown, in place of asking for the same lists again and again.
import { events } from "./api.js";

const first = 500; // milliseconds to the next try, doubled each time
const longest = 15_000;
const silence = 45_000; // of a connection that is taken for dead: the server says something every 15 s
const shown = document.getElementById("connection");

// live follows what a query asks for until the signal. on.begin is called when the stream has begun, which may be again and again: whatever was missed
// is read anew there. on has further functions by the names of events; they and on.begin are called one after the other, each when the one before has
// ended. A hidden tab has no stream: browsers allow few connections to a server, for all tabs together. Where no stream can be had on.begin is called
// all the same, once, so that the page is there. A refusal that stays one goes to on.failed.
export async function live(query, signal, on) {
  let wait = first;
  let painted = false;
  while (!signal.aborted) {
    await visible(signal);
    if (signal.aborted) break;
    const stop = new AbortController();
    const over = AbortSignal.any([signal, stop.signal]);
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    let timer = 0;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), silence);
    };
    let calls = Promise.resolve();
    const call = (name, data) => {
      calls = calls.then(() => !over.aborted && on[name]?.(data)).catch((error) => console.error(error));
    };
    let refused = null;
    try {
      alive();
      await events(`api/v1/tinsmith/events?${query}`, {
        signal: over,
        alive,
        on: (name, data) => {
          if (name === "begin") {
            painted = true;
            wait = first;
            shown.textContent = "";
          }
          call(name, JSON.parse(data));
        },
      });
    } catch (error) {
      refused = error;
    }
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", hide);
    if (signal.aborted || refused?.status === 401) break; // the page begins again with another key
    if ([400, 403, 404].includes(refused?.status)) {
      on.failed(refused);
      break;
    }
    if (document.hidden) continue;
    shown.textContent = refused?.status ? `Not live: ${refused.message}` : "Connection lost, trying again…";
    if (!painted) {
      painted = true;
      call("begin");
      await calls;
    }
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(2 * wait, longest);
  }
  shown.textContent = "";
}

// visible waits until the tab is.
function visible(signal) {
  if (!document.hidden) return null;
  return new Promise((done) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
  });
}

function pause(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()));
  });
}

// soon gives a function that has f called soon after it is: however often that is, once in so many milliseconds, and one call at a time.
export function soon(milliseconds, signal, f) {
  let due = false;
  let busy = false;
  let last = -Infinity;
  const turn = async () => {
    due = false;
    busy = true;
    try {
      if (!signal.aborted) await f();
    } finally {
      busy = false;
      last = performance.now();
      if (due) setTimeout(turn, milliseconds);
    }
  };
  return () => {
    if (due) return;
    due = true;
    if (!busy) setTimeout(turn, Math.max(0, last + milliseconds - performance.now()));
  };
}
