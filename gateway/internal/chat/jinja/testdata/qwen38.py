"""Makes qwen38.json.gz: python qwen38.py TESTDATA     (jinja2 3.1.6)

The chat template of Qwen3.8, which is not committed, over the conversations of goldens/chat-jinja2 in that folder, as they are and with each reasoning effort, one that it does not know too, by Python's jinja2.
"""
import gzip, json, os, sys
from jinja_reference import render

here = os.path.dirname(os.path.abspath(__file__))
source = open(os.path.join(sys.argv[1], "chat_templates", "Qwen3.8.jinja")).read()
conversations = json.load(open(os.path.join(sys.argv[1], "goldens", "chat-jinja2", "rendered.json")))["cases"]
cases = {}
for name, variables in conversations.items():
    cases[name] = variables
    if name in ("basic", "toolcall", "reasoning", "nothink"):
        for effort in ("xhigh", "medium", "low", "high"):
            cases[f"{name}, {effort}"] = {**variables, "reasoning_effort": effort}
out = {name: {"vars": v, **render(source, json.dumps(v))} for name, v in cases.items()}
with open(os.path.join(here, "qwen38.json.gz"), "wb") as f, gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=f, mtime=0) as z:
    z.write(json.dumps(out, ensure_ascii=False, indent=1).encode())
