"""Makes directories.json: what transformers gives for directories whose files do not agree: python directories.py

Each is the model of the folder qwen3 (tied, float32) with other files, as the function of its name makes them here and in directories_test.go. Values are log-probabilities of the
first sequence of base.safetensors that has 7 tokens. Made with torch 2.15.0 and transformers 5.5.4.
"""
import gzip, json, os, shutil, tempfile
import torch
from safetensors.torch import load, save_file
from transformers import AutoModelForCausalLM

here = os.path.dirname(os.path.abspath(__file__))
read = lambda name: load(gzip.open(os.path.join(here, "qwen3", name + ".safetensors.gz")).read())
EMBEDDING, HEAD, INDEX = "model.embed_tokens.weight", "lm_head.weight", "model.safetensors.index.json"
shard = lambda i: f"model-0000{i}-of-00002.safetensors"
flip = lambda w: w.flip(0).contiguous()


def whole(dir, tensors, name="model.safetensors"):
    save_file(tensors, os.path.join(dir, name), metadata={"format": "pt"})


def index(dir, place):
    json.dump({"metadata": {}, "weight_map": place}, open(os.path.join(dir, INDEX), "w"))


def halves(tensors):
    """The tensors of each shard: by name, the first half and the rest."""
    names = sorted(tensors)
    return [{n: tensors[n] for n in names[: len(names) // 2]}, {n: tensors[n] for n in names[len(names) // 2 :]}]


def sharded(dir, tensors):
    parts = halves(tensors)
    for i, part in enumerate(parts):
        whole(dir, part, shard(i + 1))
    index(dir, {n: shard(i + 1) for i, part in enumerate(parts) for n in part})


def two_heads(dir, w):
    whole(dir, {**w, HEAD: flip(w[EMBEDDING])})


def equal_heads(dir, w):
    whole(dir, {**w, HEAD: w[EMBEDDING].clone()})


def head_only(dir, w):
    whole(dir, {HEAD if n == EMBEDDING else n: v for n, v in w.items()})


def two_heads_in_shards(dir, w):
    sharded(dir, {**w, HEAD: flip(w[EMBEDDING])})


def whole_file_beside_other_shards(dir, w):
    sharded(dir, {**w, EMBEDDING: flip(w[EMBEDDING])})
    whole(dir, w)


def whole_file_beside_a_stale_index(dir, w):
    index(dir, {n: shard(i % 2 + 1) for i, n in enumerate(sorted(w))})
    whole(dir, w)


def index_that_mixes_shards_up(dir, w):
    sharded(dir, w)
    index(dir, {n: shard(i % 2 + 1) for i, n in enumerate(sorted(w))})


def index_without_a_tensor(dir, w):
    sharded(dir, w)
    index(dir, {n: shard(i % 2 + 1) for i, n in enumerate(sorted(w)) if n != "model.norm.weight"})


if __name__ == "__main__":
    weights, base = read("model"), read("base")
    i = next(i for i in range(9) if base[f"tokens.{i}"].numel() == 7)
    tokens, targets = base[f"tokens.{i}"].long().reshape(1, -1), base[f"targets.{i}"].long()
    out = {}
    for make in (two_heads, equal_heads, head_only, two_heads_in_shards, whole_file_beside_other_shards, whole_file_beside_a_stale_index, index_that_mixes_shards_up, index_without_a_tensor):
        with tempfile.TemporaryDirectory() as dir:
            shutil.copy(os.path.join(here, "qwen3", "config.json"), dir)
            make(dir, weights)
            with torch.no_grad():
                model, info = AutoModelForCausalLM.from_pretrained(dir, dtype=torch.float32, output_loading_info=True)
                assert not info["missing_keys"] and not info["unexpected_keys"], info
                logprobs = model(tokens).logits[0].double().log_softmax(-1)
            out[make.__name__.replace("_", " ")] = logprobs.gather(1, targets.reshape(-1, 1))[:, 0].tolist()
    with open(os.path.join(here, "directories.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")
