"""The folder that the recipes of tinker-cookbook run in, without a network and without a change to them.

The recipes name models and datasets as on the Hugging Face Hub. transformers and datasets prefer a local directory of the same
relative name, so a process that starts in a folder with `Qwen/Qwen3-8B/` and `openai/gsm8k/` in it never asks the Hub.
All data here is generated: sums, with the answers written as the recipe in question wants them."""

import json
import pathlib
import random
import shutil

import tinsmith

MODEL = tinsmith.ROOT / "configs" / "models" / "tiny-chat"

TOKENIZER_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"]

def sums(seed, count, low=10, high=99):
    """`count` pairs of numbers, the same for the same seed."""
    draw = random.Random(seed)
    return [(draw.randint(low, high), draw.randint(low, high)) for _ in range(count)]


def sentences(pairs):
    """Conversations that answer a sum in a form that the built-in model has never seen: it answers with the bare number."""
    for a, b in pairs:
        yield {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}, {"role": "assistant", "content": f"Together {a + b} of them."}]}


def preferences(pairs):
    """Comparisons in the form of hh-rlhf: the bare sum is chosen, a chatty answer is rejected."""
    for a, b in pairs:
        prompt = f"\n\nHuman: What is {a} + {b}?\n\nAssistant:"
        yield {"chosen": f"{prompt} {a + b}", "rejected": f"{prompt} I like this question, and the answer is {a + b}."}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")


def build(folder):
    """Makes the folder: a tokenizer per model name and every dataset that a tested recipe loads."""
    folder = pathlib.Path(folder)
    for name in tinsmith.ALIASES:
        place = folder / name
        place.mkdir(parents=True)
        for file in TOKENIZER_FILES:
            shutil.copy(MODEL / file, place / file)
    data(folder)


def data(folder):
    """Makes the data sets only."""
    write(folder / "HuggingFaceH4/no_robots/train.jsonl", sentences(sums(1, 1024)))
    write(folder / "HuggingFaceH4/no_robots/test.jsonl", sentences(sums(2, 128)))
    write(folder / "chat.jsonl", sentences(sums(3, 512)))

    gsm8k = folder / "openai/gsm8k"
    for split, seed, count in [("train", 4, 512), ("test", 5, 32)]:
        write(
            gsm8k / f"{split}.jsonl",
            ({"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"} for a, b in sums(seed, count)),
        )
    # A configuration by name needs to be declared; without this datasets knows only "default".
    (gsm8k / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: train.jsonl\n"
        "  - split: test\n    path: test.jsonl\n---\n"
    )

    write(folder / "Anthropic/hh-rlhf/train.jsonl", preferences(sums(6, 512)))
    write(folder / "Anthropic/hh-rlhf/test.jsonl", preferences(sums(7, 32)))
    write(
        folder / "zwhe99/DeepMath-103K/train.jsonl",
        ({"question": f"What is {a} + {b}?", "final_answer": str(a + b)} for a, b in sums(8, 512)),
    )
