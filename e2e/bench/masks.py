"""Masks of llguidance for the instances of JSON schemas, beside which our own are measured.

masks.py VOCABULARY_DIR SCHEMAS_DIR OUT [EVERY]

VOCABULARY_DIR has vocab.json and merges.txt of Qwen3; SCHEMAS_DIR has files of lines {id, schema, tests: [{valid, data}]}.
Of each file every EVERY-th line is taken (default 4). For each schema one valid instance is followed, spelled as the tokenizer
spells it. OUT gets a line for each: {id, schema, text, tokens, first_us, masks_us} with llguidance's times, in processor time
of the thread; the last two are absent where it refuses the schema. Prints a summary as a Go benchmark would.
"""
import json
import pathlib
import sys
import time

import llguidance
import llguidance.numpy
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 151_936
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tokenizer(directory):
    out = Tokenizer(models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt")))
    out.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    return out


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0


def main():
    vocabulary, schemas, out = (pathlib.Path(p) for p in sys.argv[1:4])
    every = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    spell = tokenizer(vocabulary)
    ll = llguidance.LLTokenizer(spell.to_str(), n_vocab=VOCABULARY, eos_token=spell.token_to_id("<|im_end|>"), slices=llguidance.LLTokenizer.json_slices())
    bits = llguidance.numpy.allocate_token_bitmask(1, VOCABULARY)
    firsts, masks, refused, wrong = [], [], 0, 0
    lines = []
    for file in sorted(schemas.glob("*.jsonl")):
        for number, line in enumerate(file.open()):
            if number % every:
                continue
            case = json.loads(line)
            valid = next((t["data"] for t in case["tests"] if t["valid"]), None)
            text = None if valid is None else json.dumps(valid, ensure_ascii=False, separators=(", ", ": "))
            tokens = [] if text is None else spell.encode(text, add_special_tokens=False).ids
            record = {"id": case["id"], "schema": case["schema"], "text": text, "tokens": tokens}
            lines.append(record)
            schema = json.dumps(case["schema"])
            start = time.thread_time_ns()
            try:
                grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
                matcher = llguidance.LLMatcher(ll, grammar)
                if matcher.is_error():
                    raise ValueError(matcher.get_error())
                llguidance.numpy.fill_next_token_bitmask(matcher, bits)
            except ValueError:
                refused += 1
                continue
            record["first_us"] = (time.thread_time_ns() - start) / 1000
            firsts.append(record["first_us"])
            record["masks_us"] = []
            for token in tokens:
                start = time.thread_time_ns()
                llguidance.numpy.fill_next_token_bitmask(matcher, bits)
                record["masks_us"].append((time.thread_time_ns() - start) / 1000)
                if not matcher.consume_token(token):
                    wrong += 1
                    break
            masks += record["masks_us"]
    with out.open("w") as f:
        for record in lines:
            f.write(json.dumps(record) + "\n")
    compiles = [us / 1000 for us in firsts]
    figures = [(sum(masks) / max(1, len(masks)), "mean-µs"), (sum(compiles) / max(1, len(compiles)), "compile-mean-ms")]
    for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1)):
        figures += [(quantile(masks, part), f"{name}-µs"), (quantile(compiles, part), f"compile-{name}-ms")]
    counts = [(len(lines), "schemas"), (refused, "refused"), (len(masks), "masks"), (wrong, "wrong")]
    told = [f"{value:.2f} {unit}" for value, unit in figures] + [f"{value} {unit}" for value, unit in counts]
    print(f"BenchmarkLLGuidance/{llguidance.__version__} 1 " + " ".join(told))


main()
