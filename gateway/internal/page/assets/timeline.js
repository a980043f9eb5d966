// A run's clock cycles over time: when its operations ran on the device, and since when they had waited. Times at which nothing of the run waited or ran are cut short.
import { el, put } from "./dom.js";
import { figure } from "./format.js";

const lanes = [
  { name: "waited", title: "Waited" },
  { name: "pass", title: "Passes" },
  { name: "step", title: "Optimizer" },
];
const height = 22; // of a lane
const top = 18; // for the cycles' numbers
const left = 68; // for the lanes' titles
const cut = 26; // pixels in place of an idle time
const namespace = "http://www.w3.org/2000/svg";

const svg = (tag, properties, ...children) => {
  const node = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(properties)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// seconds shows a duration.
export const seconds = (s) => (s < 1 ? `${figure(s * 1000, 3)} ms` : s < 120 ? `${figure(s, 3)} s` : `${figure(s / 60, 3)} min`);

// spans gives what is drawn: {lane, from, to, title, cycle, failed}, times in seconds.
function spans(cycles) {
  const all = [];
  for (const c of cycles) {
    for (const o of c.operations) {
      const [begin, end] = [Date.parse(o.begin) / 1000, Date.parse(o.end) / 1000];
      const what = `${o.kind}, cycle ${figure(c.cycle)}`;
      if (o.queue_seconds > 0) all.push({ lane: 0, from: begin - o.queue_seconds, to: begin, title: `${what}: waited ${seconds(o.queue_seconds)}`, cycle: c.cycle });
      const sampling = c.sampling_seconds > 0 ? `; the sampler had the device for ${seconds(c.sampling_seconds)} of the cycle` : "";
      all.push({ lane: o.kind === "optim_step" ? 2 : 1, from: begin, to: end, title: `${what}: ${seconds(end - begin)}${o.tokens ? `, ${figure(o.tokens)} tokens` : ""}${sampling}${o.failed ? "; failed" : ""}`, cycle: c.cycle, failed: o.failed });
    }
  }
  return all.sort((a, b) => a.from - b.from);
}

// axis maps times to pixels. Idle times that are long beside the rest are cut; they come as {at, seconds}.
function axis(all, width) {
  const busy = [];
  for (const s of all) {
    const last = busy.at(-1);
    if (last && s.from <= last.to) last.to = Math.max(last.to, s.to);
    else busy.push({ from: s.from, to: s.to });
  }
  const total = busy.reduce((sum, b) => sum + b.to - b.from, 0);
  const parts = [];
  for (const b of busy) {
    const last = parts.at(-1);
    if (last && b.from - last.to <= total / 20) last.to = b.to;
    else parts.push({ ...b });
  }
  const gap = parts.length > 1 ? Math.min(cut, width / 3 / (parts.length - 1)) : 0;
  const shown = parts.reduce((sum, p) => sum + p.to - p.from, 0);
  const scale = (width - gap * (parts.length - 1)) / Math.max(shown, 1e-9);
  let at = left;
  for (const p of parts) {
    p.at = at;
    at += (p.to - p.from) * scale + gap;
  }
  const place = (time) => {
    const p = parts.findLast((part) => part.from <= time) ?? parts[0];
    return p.at + (Math.min(time, p.to) - p.from) * scale;
  };
  return { place, idle: parts.slice(1).map((p, i) => ({ at: p.at - gap / 2, seconds: p.from - parts[i].to })) };
}

// Timeline draws cycles as the server gives them.
export class Timeline {
  constructor(signal) {
    this.node = el("div", { class: "timeline" });
    this.cycles = [];
    const observer = new ResizeObserver(() => this.draw());
    observer.observe(this.node);
    signal.addEventListener("abort", () => observer.disconnect());
  }

  set(cycles) {
    this.cycles = cycles;
    this.drawn = 0;
    this.draw();
  }

  draw() {
    const width = this.node.clientWidth;
    if (!width || width === this.drawn || !this.cycles.length) return;
    this.drawn = width;
    const all = spans(this.cycles);
    const { place, idle } = axis(all, width - left - 2);
    const bottom = top + lanes.length * height;
    const children = lanes.map((lane, i) => svg("text", { x: 0, y: top + i * height + 15, class: "lane" }, lane.title));
    let free = left;
    for (const c of this.cycles) {
      const mine = all.filter((s) => s.cycle === c.cycle && s.lane > 0);
      const from = Math.min(...mine.map((s) => place(s.from)));
      children.push(svg("line", { x1: from, x2: from, y1: top - 4, y2: bottom, class: "edge" }));
      const took = Math.max(...mine.map((s) => s.to)) - Math.min(...mine.map((s) => s.from));
      const label = `${figure(c.cycle)} · ${seconds(took)}`;
      if (from >= free && from + 6.5 * label.length < width) {
        children.push(svg("text", { x: from + 2, y: 11, class: "cycle" }, label));
        free = from + 6.5 * label.length + 8;
      }
    }
    for (const gap of idle) children.push(svg("line", { x1: gap.at, x2: gap.at, y1: top, y2: bottom, class: "idle" }, svg("title", {}, `${seconds(gap.seconds)} in which nothing of the run waited or ran`)));
    for (const s of all) {
      const x = place(s.from);
      children.push(svg("rect", { x, y: top + s.lane * height + 3, width: Math.max(place(s.to) - x, 1), height: height - 6, rx: 1, class: `${lanes[s.lane].name}${s.failed ? " failed" : ""}` }, svg("title", {}, s.title)));
    }
    put(this.node, svg("svg", { width, height: bottom + 2, role: "img", "aria-label": `${this.cycles.length} clock cycles over time` }, ...children));
    this.node.dataset.cycles = this.cycles.length;
  }
}
