// The server's API, with the key of this tab. On loopback without keys there is none.

const slot = "tinsmith-key";

export const key = {
  get: () => sessionStorage.getItem(slot) ?? "",
  set: (value) => (value ? sessionStorage.setItem(slot, value) : sessionStorage.removeItem(slot)),
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, { method = "GET", body, signal, headers = {} } = {}) {
  const own = { ...headers };
  if (key.get()) own.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) own["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers: own, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store", credentials: "omit" });
  if (answer.ok) return answer;
  const text = (await answer.text()).slice(0, 4000);
  let message = text || answer.statusText;
  try {
    const json = JSON.parse(text);
    message = json.error?.message ?? (typeof json.detail === "string" ? json.detail : message);
  } catch {
    // it is no JSON, and is shown as it is
  }
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("key-needed", { detail: key.get() ? message : "" }));
  throw new Refused(answer.status, message);
}

export async function get(path, signal) {
  return (await request(path, { signal })).json();
}

export async function text(path, signal) {
  return (await request(path, { signal })).text();
}

export async function post(path, body, signal) {
  return (await request(path, { method: "POST", body, signal })).json();
}

// events reads server-sent events until the server or the signal ends them, and calls on(name, data) for each, and alive() whenever anything comes. A
// browser's own EventSource cannot send the key.
export async function events(path, { body, signal, on, alive }) {
  const answer = await request(path, { method: body === undefined ? "GET" : "POST", body, signal, headers: { Accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive?.();
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith("event:")) name = line.slice(6).trim();
      }
      if (data.length) on(name, data.join("\n"));
    }
  }
}

// download saves what a path gives as a file. The browser keeps it on disk while it comes, and asks nobody for the key again.
export async function download(path, name) {
  const address = URL.createObjectURL(await (await request(path)).blob());
  const a = document.createElement("a");
  a.href = address;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export const isAbort = (error) => error?.name === "AbortError";
