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

// keep has a node hold these children, and moves none that need not be moved: a click or a focus that has begun on one stays with it.
export function keep(node, children) {
  const wanted = new Set(children);
  for (const child of [...node.childNodes]) if (!wanted.has(child)) child.remove();
  let at = node.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else node.insertBefore(child, at);
  }
}

// write changes a node's text, if it is another.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// clock calls f each so many milliseconds until the signal, for what a page says of the time that has passed. f must ask nobody for anything.
export function clock(milliseconds, signal, f) {
  const timer = setInterval(f, milliseconds);
  signal.addEventListener("abort", () => clearInterval(timer));
}
