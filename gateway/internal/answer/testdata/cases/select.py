"""Chooses the committed cases from a whole corpus of tool-call texts: select.py FOLDER, with FOLDER/FAMILY.jsonl.

Of each family that the reader knows, every third case of each source, at most four. Recordings of how the source cut a text are left out: the test cuts at every byte.
"""
import collections
import json
import pathlib
import sys

FAMILIES = """hermes qwen2_5_hermes qwen3_hermes qwq_reasoning thinking_tags qwen3_coder qwen3_5 nemotron3_nano llama3_json harmony kimi_k2 deepseek_v3 deepseek_v3_1
deepseek_r1 deepseek_v3_2 deepseek_v4 glm_4_6 glm_4_7 mistral mistral_ministral3 nemotron_nano_v2""".split()

here = pathlib.Path(__file__).parent
for family in FAMILIES:
    sources = collections.defaultdict(list)
    for line in (pathlib.Path(sys.argv[1]) / (family + ".jsonl")).read_text().splitlines():
        case = json.loads(line)
        if case.get("expected"):
            case.pop("chunks", None)
            sources[case["source"]].append(case)
    with open(here / (family + ".jsonl"), "w") as out:
        for source in sorted(sources):
            for case in sources[source][::3][:4]:
                out.write(json.dumps(case, ensure_ascii=False) + "\n")
