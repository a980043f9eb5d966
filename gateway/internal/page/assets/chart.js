// Charts of series over steps or time, by uPlot. Colours come from the page's style; a chart is drawn anew when light and dark change.
import "./language.js"; // first: uPlot asks for the language when it is loaded
import uPlot from "./vendor/uPlot.js";
import { el } from "./dom.js";
import { figure } from "./format.js";

const palettes = {
  light: ["#1f77b4", "#d9622b", "#2e9e5b", "#8e5bbf", "#c2374a", "#8a6d3b", "#d16ba5", "#5f7f95", "#9a9a1f", "#1aa0b0"],
  dark: ["#5fa8dd", "#f08a5d", "#5cc98a", "#b48ae0", "#ef6f7f", "#c9a86a", "#f08fc6", "#9db6c6", "#cfcf55", "#5ccfdd"],
};
const steps = Array.from({ length: 36 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // between two ticks: there is no half step
const dark = matchMedia("(prefers-color-scheme: dark)");
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// named gives ticks in as many decimals as they need to differ.
function named(ticks) {
  const all = ticks.filter((t) => t !== null);
  const largest = Math.max(...all.map(Math.abs));
  const step = Math.min(...all.slice(1).map((t, i) => t - all[i]));
  const decimals = [0, 1, 2, 3, 4, 5].find((d) => Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) < 1e-6 && Math.round(step * 10 ** d) > 0);
  const short = all.length < 2 || largest >= 1e9 || decimals === undefined || all.length !== ticks.length;
  return ticks.map((t) => (t === null ? "" : short ? figure(t, 3) : t.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })));
}

// room is how wide an axis with such values is.
const room = (_, values) => Math.max(48, 18 + 6.5 * Math.max(0, ...(values ?? []).map((v) => String(v).length)));

// Chart draws series over one x axis. series: [{name, x: [numbers], y: [numbers or null]}], each with x of its own, in ascending order.
export class Chart {
  constructor(signal, { title, unit = "", height = 190, legend = false, time = false, log = false } = {}) {
    this.options = { unit, height, legend, time, log };
    this.value = el("span", { class: "faint" });
    this.holder = el("div");
    this.node = el("section", { class: "chart", "aria-label": title }, el("h3", {}, el("span", {}, title), this.value), this.holder);
    this.series = [];
    const again = () => this.draw(true);
    dark.addEventListener("change", again, { signal });
    this.observer = new ResizeObserver(() => this.size());
    this.observer.observe(this.holder);
    signal.addEventListener("abort", () => {
      this.observer.disconnect();
      this.plot?.destroy();
    });
  }

  set(series) {
    const fresh = series.length !== this.series.length || series.some((s, i) => s.name !== this.series[i].name);
    this.series = series;
    this.node.dataset.points = series[0]?.x.length ?? 0;
    if (!this.options.legend && series.length === 1) {
      const y = series[0].y;
      let last = y.length - 1;
      while (last >= 0 && y[last] === null) last--;
      this.value.textContent = last >= 0 ? `${figure(y[last])}${this.options.unit ? " " + this.options.unit : ""}` : "";
    }
    this.draw(fresh);
  }

  draw(fresh) {
    const data = this.series.length ? uPlot.join(this.series.map((s) => [s.x, s.y])) : [[]];
    if (this.plot && !fresh) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.plot = null;
    if (!this.series.length || !this.holder.clientWidth) return;
    const axis = { stroke: style("--faint"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const { height, legend, time, log } = this.options;
    const palette = palettes[dark.matches ? "dark" : "light"];
    this.plot = new uPlot(
      {
        width: this.holder.clientWidth,
        height,
        legend: { show: legend },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { time }, y: log ? { distr: 3 } : {} },
        axes: [time ? axis : { ...axis, incrs: steps }, { ...axis, size: room, values: (_, ticks) => named(ticks) }],
        series: [
          { label: time ? "time" : "step" },
          ...this.series.map((s, i) => ({ label: s.name, stroke: palette[i % palette.length], width: 1.5, spanGaps: true, points: { show: (_, i, from, to) => to - from < 30, size: 5 }, value: (_, v) => figure(v) })),
        ],
      },
      data,
      this.holder,
    );
  }

  size() {
    if (!this.plot) this.draw(true);
    else if (this.holder.clientWidth && this.plot.width !== this.holder.clientWidth) this.plot.setSize({ width: this.holder.clientWidth, height: this.options.height });
  }
}
