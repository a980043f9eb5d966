// Elements without markup: whatever comes from users and models goes through text nodes, so it can never be read as HTML.

// el makes an element. A property that begins with "on" is a listener, `class` and attributes with a dash or in lower case are set as attributes, false and null ones are left out.
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// put replaces what a node holds.
export function put(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// field is a labelled control.
let fields = 0;
export function field(label, control) {
  control.id ||= `field-${++fields}`;
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control);
}

// failed shows why something did not work.
export function failed(error) {
  return el("p", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error));
}

// empty says what to type where nothing is there yet.
export function empty(text, command) {
  return el("div", { class: "empty" }, el("p", {}, text), command && el("pre", { tabindex: "0" }, command));
}

// every calls f now and then each so many milliseconds, one call at a time, until the signal; not while the tab is hidden.
export function every(milliseconds, signal, f) {
  let timer;
  const turn = async () => {
    if (!document.hidden) await f();
    if (!signal.aborted) timer = setTimeout(turn, milliseconds);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn();
}
