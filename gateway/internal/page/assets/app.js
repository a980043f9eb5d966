// The frame: which view is shown, and the key. A view is a file in views/ whose show(main, rest, signal) fills the page until the signal ends it.
import { get, key, isAbort } from "./api.js";
import { el, failed, put } from "./dom.js";

const views = [
  { path: "runs", title: "Runs" },
  { path: "chat", title: "Chat" },
  { path: "device", title: "Device" },
  { path: "users", title: "Users" },
];
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const dialog = document.getElementById("key-dialog");
const change = document.getElementById("key");
let current = new AbortController();

async function route() {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  const [name = "runs", ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);
  const view = views.find((v) => v.path === name) ?? views[0];
  const file = view.path === "runs" && rest.length ? "run" : view.path;
  put(nav, views.map((v) => el("a", { href: `#/${v.path}`, "aria-current": v === view && "page" }, v.title)));
  document.title = `${view.title} – Tinsmith`;
  change.hidden = !key.get();
  put(main, el("p", { class: "faint" }, "Loading…"));
  try {
    const { show } = await import(`./views/${file}.js`);
    if (!signal.aborted) await show(main, rest, signal);
  } catch (error) {
    if (!signal.aborted && !isAbort(error)) put(main, failed(error));
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// askKey shows the dialog; the page begins again with what was typed.
function askKey(reason) {
  const error = document.getElementById("key-error");
  error.hidden = !reason;
  error.textContent = reason;
  if (!dialog.open) dialog.showModal();
}
document.addEventListener("key-needed", (event) => askKey(event.detail));
change.addEventListener("click", () => askKey(""));
dialog.addEventListener("close", () => {
  const input = document.getElementById("key-field");
  if (dialog.returnValue === "use" && input.value) {
    key.set(input.value.trim());
    input.value = "";
    route();
  }
});
addEventListener("hashchange", () => {
  route();
  main.focus({ preventScroll: true });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

get("/version").then((v) => document.body.append(el("footer", { class: "faint small" }, `Tinsmith ${v.version}`)), () => {});
route();
