"""Selects what the tests of this package commit of models with linear attention, from a folder of golden models (see README.md) and one of adapters in the Tinker layout on them: python hybrid.py GOLDENS FAMILIES"""
import json, os, shutil, sys
from safetensors.numpy import load_file
from selection import ENDS, here, pack

LOSSES = ("cross_entropy", "importance_sampling")
KEPT = (*ENDS, ".layers.0.linear_attn.in_proj_k.", ".layers.2.linear_attn.out_proj.", ".layers.1.mlp.experts.w1.", ".layers.0.mlp.experts.w2.", ".layers.0.mlp.shared_expert.down_proj.")


def select(goldens, families, name):
    src, adapters, dst = os.path.join(goldens, name), os.path.join(families, name), os.path.join(here, name)
    shutil.rmtree(dst, ignore_errors=True)
    pack(dst + "/model.safetensors", load_file(src + "/model.safetensors"), {"format": "pt"})
    keep = ("tokens.", "targets.", "logprobs_f64.", "logprobs_bf16weights.")
    pack(dst + "/base.safetensors", {k: v for k, v in load_file(src + "/base.safetensors").items() if k.startswith(keep)})
    pack(dst + "/tinker/adapter_model.safetensors", load_file(adapters + "/tinker/adapter_model.safetensors"))
    keep = ("in.", "logprobs_f64.", *(f"grad.{x}." for x in LOSSES))
    pack(dst + "/tinker.safetensors", {k: v for k, v in load_file(adapters + "/tinker.safetensors").items() if k.startswith(keep)})
    pack(dst + "/train.safetensors", {k: v for k, v in load_file(src + "/train.safetensors").items() if k.startswith(("tokens.", "targets.", "weights."))})
    keep = tuple(f"{r}.{x}" for r in ("adam", "adamw-clip") for x in ("loss", "grad_norm", "lr"))
    train = load_file(adapters + "/train-tinker.safetensors")
    pack(dst + "/train-tinker.safetensors", {k: v for k, v in train.items() if k.startswith(keep) or (k.split(".")[1] == "final" and any(m in k for m in KEPT))})
    for f in ("config.json", "generate.json"):
        shutil.copyfile(f"{src}/{f}", f"{dst}/{f}")
    for f in ("losses-tinker.json", "tinker/adapter_config.json"):
        shutil.copyfile(f"{adapters}/{f}", f"{dst}/{f}")


if __name__ == "__main__":
    for name in ("qwen3.5", "qwen3.5-moe"):
        select(*sys.argv[1:], name)
