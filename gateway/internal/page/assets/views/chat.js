// Chat with a model or an adapter, or with two side by side that are asked the same with the same seed.
import { events, get, isAbort } from "../api.js";
import { el, empty, failed, field, put } from "../dom.js";
import { plain } from "../format.js";

export async function show(main, _, signal) {
  const models = (await get("v1/models", signal)).data;
  if (!models.length) {
    put(main, el("div", { class: "card" }, el("h1", {}, "Chat"), empty("No model can be asked at present. What is wrong with it:", "bin/tinsmith models")));
    return;
  }
  const select = () => el("select", {}, models.map((m) => el("option", { value: m.id }, plain(m.name ? `${m.name} (${m.id})` : m.id, 90))));
  const sides = [side(select()), side(select())];
  if (models.length > 1) sides[1].model.selectedIndex = 1;
  const two = el("input", { type: "checkbox", onchange: () => (sides[1].node.hidden = !two.checked) });
  sides[1].node.hidden = true;
  const system = el("input", { type: "text", placeholder: "none", autocomplete: "off" });
  const temperature = el("input", { type: "number", min: 0, max: 5, step: 0.1, value: "0.7" });
  const tokens = el("input", { type: "number", min: 1, max: 32768, value: "256" });
  const seed = el("input", { type: "number", min: 0, step: 1, value: "1" });
  const text = el("textarea", {
    rows: 3,
    placeholder: "Ask something. Ctrl and Enter sends it.",
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    },
  });
  const send = el("button", { class: "primary", type: "submit" }, "Send");
  const stop = el("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  const clear = el("button", { type: "button", onclick: () => sides.forEach((s) => s.clear()) }, "Clear");
  let running = null;

  const form = el(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        const question = text.value;
        if (!question.trim() || running) return;
        text.value = "";
        running = new AbortController();
        signal.addEventListener("abort", () => running?.abort());
        send.hidden = !(stop.hidden = false);
        const settings = { temperature: Number(temperature.value), max_completion_tokens: Number(tokens.value), seed: Number(seed.value) };
        const asked = sides.filter((s) => !s.node.hidden);
        await Promise.all(asked.map((s) => s.ask(question, system.value, settings, running.signal)));
        running = null;
        send.hidden = !(stop.hidden = true);
        text.focus();
      },
    },
    field("Your turn", text),
    el("div", { class: "row" }, send, stop, clear),
  );
  put(
    main,
    el(
      "div",
      { class: "card" },
      el("div", { class: "row" }, el("h1", { class: "grow" }, "Chat"), el("label", { class: "row" }, two, "two side by side")),
      el("div", { class: "row" }, field("System message", system), field("Temperature", temperature), field("Tokens at most", tokens), field("Seed", seed)),
    ),
    el("div", { class: "sides" }, sides.map((s) => s.node)),
    el("div", { class: "card" }, form),
  );
  text.focus();
}

// side is a conversation with one model.
function side(model) {
  let turns = [];
  const log = el("div", { "aria-live": "polite" });
  const node = el("section", { class: "card", "aria-label": "Conversation" }, field("Model", model), log);

  async function ask(question, system, settings, signal) {
    turns.push({ role: "user", content: question });
    log.append(el("div", { class: "turn user" }, el("span", { class: "who" }, "you"), question));
    const said = el("span");
    const thought = el("span");
    const thinking = el("details", { hidden: true }, el("summary", {}, "Thoughts"), thought);
    const note = el("div", { class: "faint small" });
    log.append(el("div", { class: "turn assistant" }, el("span", { class: "who" }, plain(model.value, 90)), thinking, said, note));
    let content = "";
    const begun = performance.now();
    try {
      const messages = system ? [{ role: "system", content: system }, ...turns] : turns;
      await events("v1/chat/completions", {
        body: { model: model.value, messages, stream: true, stream_options: { include_usage: true }, ...settings },
        signal,
        on: (_, data) => {
          if (data === "[DONE]") return;
          const chunk = JSON.parse(data);
          if (chunk.error) throw new Error(chunk.error.message);
          const choice = chunk.choices[0];
          if (choice?.delta?.reasoning_content) {
            thinking.hidden = false;
            thought.append(choice.delta.reasoning_content);
          }
          if (choice?.delta?.content) {
            content += choice.delta.content;
            said.append(choice.delta.content);
          }
          if (chunk.usage) note.textContent = `${chunk.usage.completion_tokens} tokens in ${((performance.now() - begun) / 1000).toFixed(1)} s`;
        },
      });
    } catch (error) {
      if (isAbort(error)) note.textContent = "stopped";
      else note.replaceWith(failed(error));
    }
    turns.push({ role: "assistant", content });
  }
  return {
    node,
    model,
    ask,
    clear: () => {
      turns = [];
      put(log);
    },
  };
}
