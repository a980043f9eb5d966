"""Random odd conversations rendered by transformers' own function (5.23 or later): python3 fuzz_conversations.py SEED COUNT TEMPLATE.jinja... > cases.jsonl

A line is {"name", "source"} of a template, or {"conversation": JSON text, and "out", "raised" or "err"} for the template before it.
conversations.jsonl.gz is `python3 fuzz_conversations.py 7 600 tags.jinja headers.jinja | gzip -9n` (Python 3.11, Jinja2 3.1.6, transformers 5.23.0).
"""
import datetime
import json
import logging
import random
import sys

import transformers.utils.chat_template_utils as utils

logging.disable(logging.CRITICAL)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 5, 9, 7, 3)


utils.datetime = Clock
R = random.Random(int(sys.argv[1]))
SPECIALS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}

TEXTS = ["", " ", "Hi", "  Hi, it's me \"x\" <y> & 日本  \n", "a\nb\n\n", "<think>\nabc\n</think>\n\nAnswer", "<think>x", "y</think>z", "</think>", "<think></think>\n\nq</think>r",
         "<tool_response>\nok\n</tool_response>", "<tool_response>", "<|im_end|>", "{\"a\": 1}", "\\n\\", "🙂👩‍👩‍👧", "é\u0301\u00a0\u2028", "\ttab\r\n", "{{ x }}{% if %}", "ẞß", "null", "/no_think", "\u0000\u0007\u007f",
         "a\x1cb\x85", "long " * 20]
WORDS = ["get_weather", "f", "naïve", "search web", "a\"b", "日"]


def text():
    return R.choice(TEXTS) if R.random() < .8 else "".join(R.choice("ab \n<>&'\"\\/日é{}%") for _ in range(R.randint(0, 30)))


def number():
    return R.choice([0, 1, -1, 3, 10**20, 1.0, 0.1, 1e5, 1e16, 1e-7, 2.5e300, -0.0, 123456789])


def value(depth=2):
    k = R.random()
    if depth <= 0 or k < .5:
        return R.choice([text, number, lambda: R.choice([True, False, None])])()
    if k < .7:
        return [value(depth - 1) for _ in range(R.randint(0, 3))]
    return {R.choice(["city", "n", "unit", "é", "b", "a", "", "items", "x y"]): value(depth - 1) for _ in range(R.randint(0, 4))}


def call():
    f = {"name": R.choice(WORDS), "arguments": R.choice([lambda: {}, lambda: value(3), lambda: {"city": text(), "n": number(), "deep": value(2)}, lambda: json.dumps(value(2)), text])()}
    if R.random() < .1:
        del f[R.choice(list(f))]
    if R.random() < .2:
        f = dict(reversed(list(f.items())))
    c = R.choice([{"type": "function", "function": f}, {"id": "call_1", "type": "function", "function": f}, f, {"function": f}])
    return c


def parts():
    return [R.choice([{"type": "text", "text": text()}, {"text": text(), "type": "text"}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "u"}}, text(), None, {"type": "text"}, {"type": "video", "video": 1}]) for _ in range(R.randint(0, 3))]


def content():
    k = R.random()
    if k < .8:
        return text()
    return R.choice([None, parts(), parts(), number(), True, {}, {"a": text()}, []])


def message(role=None):
    m = {"role": role or R.choice(["user", "assistant", "assistant", "tool", "system", "user", "ipython", "developer", "", "User", None, 3]), "content": content()}
    if m["role"] == "assistant":
        k = R.random()
        if k < .35:
            m["tool_calls"] = R.choice([lambda: [call()], lambda: [call()], lambda: [call(), call()], lambda: [], lambda: None, lambda: {}, lambda: "x"])()
            if R.random() < .5:
                m["content"] = R.choice([None, "", "  "])
        if R.random() < .3:
            m[R.choice(["reasoning_content", "reasoning_content", "reasoning", "thinking"])] = R.choice([text(), text(), None, "", [text()], 0])
    if m["role"] == "tool" and R.random() < .5:
        m["name"] = R.choice(WORDS)
        m["tool_call_id"] = "call_1"
    if R.random() < .05:
        del m[R.choice(list(m))]
    if R.random() < .05:
        m["name"] = text()
    if R.random() < .1:
        m = dict(sorted(m.items(), key=lambda _: R.random()))
    return m


def tool():
    f = {"name": R.choice(WORDS), "description": text(), "parameters": {"type": "object", "properties": {R.choice(["city", "n", "é", "z", "items", "keys"]): value(3) if R.random() < .3 else {"type": R.choice(["string", "integer", ["string", "null"]]), "description": text(), "default": value(1), "enum": ["c", "f", 1.0, None]} for _ in range(R.randint(0, 4))}, "required": R.choice([[], ["city"], ["city", "n"]])}}
    if R.random() < .2:
        del f[R.choice(list(f))]
    return R.choice([{"type": "function", "function": f}, {"type": "function", "function": f}, {"function": f, "type": "function"}, f, {"strict": True, "type": "function", "function": f}])


def conversation():
    messages = []
    if R.random() < .6:
        messages.append(message("system"))
    k = R.random()
    if k < .55:
        for _ in range(R.randint(0, 4)):
            messages.append(message("user"))
            messages.append(message("assistant"))
            for _ in range(R.randint(0, 2) if R.random() < .5 else 0):
                messages.append(message("tool"))
        if R.random() < .7:
            messages.append(message("user"))
    else:
        messages += [message() for _ in range(R.randint(0, 6))]
    c = {"messages": messages, "add_generation_prompt": R.random() < .6}
    k = R.random()
    if k < .35:
        c["tools"] = [tool() for _ in range(R.randint(1, 3))]
    elif k < .4:
        c["tools"] = []
    if R.random() < .2:
        c["continue_final_message"] = True
        c["add_generation_prompt"] = False
    if R.random() < .05:
        c["documents"] = [{"title": text(), "text": text()}]
    kwargs = {}
    for name, options in {"enable_thinking": [True, False, None, 0, "x"], "date_string": ["01 Jan 2025", "", None], "tools_in_user_message": [True, False], "custom_tools": [None, [], [tool()]],
                          "builtin_tools": [["code_interpreter"], ["brave_search", "code_interpreter"], []], "keep_reasoning": [True], "add_vision_id": [True], "reasoning_effort": ["high", "low"], "xml_tools": [[tool()]],
                          "bos_token": [""], "preserve_thinking": [True], "model_identity": ["x"]}.items():
        if R.random() < .15:
            kwargs[name] = R.choice(options)
    if kwargs:
        c["kwargs"] = kwargs
    return c


def render(source, c):
    try:
        rendered, _ = utils.render_jinja_template([c["messages"]], tools=c.get("tools"), documents=c.get("documents"), chat_template=source,
                                                  continue_final_message=c.get("continue_final_message", False), add_generation_prompt=c["add_generation_prompt"], **{**SPECIALS, **c.get("kwargs", {})})
        return {"out": rendered[0]}
    except Exception as e:
        return {"raised": str(e)} if type(e).__name__ == "TemplateError" else {"err": type(e).__name__, "message": str(e)[:200]}


for path in sys.argv[3:]:
    source = open(path, newline="").read()
    print(json.dumps({"name": path.rsplit("/", 1)[-1], "source": source}, ensure_ascii=False))
    made = 0
    while made < int(sys.argv[2]):
        given = json.dumps(conversation(), ensure_ascii=R.random() < .3)
        result = render(source, json.loads(given))
        if " at 0x" in str(result):
            continue
        made += 1
        print(json.dumps({"conversation": given, **result}, ensure_ascii=False))
