// Keys, what they used and what they may use. A key sees itself, an administrator's sees all.
import { get } from "../api.js";
import { el, empty, put } from "../dom.js";
import { figure, plain } from "../format.js";

export async function show(main, _, signal) {
  const answer = await get("api/v1/tinsmith/usage", signal);
  const title = el("h1", {}, "Users");
  const rows = answer.usage ?? [];
  if (!rows.length) {
    put(main, el("div", { class: "card" }, title, empty("Nothing has been used yet. A key for somebody is made by:", "bin/tinsmith key add alice")));
    return;
  }
  const columns = ["Key", "Model", "Day", "Trained", "Sampled", "Prompts", "Steps", "Requests"];
  put(
    main,
    el(
      "div",
      { class: "card" },
      title,
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          {},
          el("thead", {}, el("tr", {}, columns.map((t, i) => el("th", { class: i > 2 && "number" }, t)))),
          el("tbody", {}, rows.map((u) => el("tr", {}, el("td", {}, plain(u.key)), el("td", { class: "break" }, plain(u.model)), el("td", {}, u.day), [u.trained_tokens, u.sampled_tokens, u.prompt_tokens, u.steps, u.requests].map((n) => el("td", { class: "number" }, figure(n)))))),
        ),
      ),
    ),
  );
}
