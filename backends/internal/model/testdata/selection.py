"""Selects what the tests of this package commit from a folder of golden models and one of further fixtures (see README.md): python selection.py GOLDENS FAMILIES"""
import gzip, json, os, shutil, sys
from safetensors.numpy import load_file, save

LOSSES = {"llama": ["cross_entropy", "ppo"], "qwen2": ["cross_entropy", "dro"], "qwen3": ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "nk"]}
ENDS = (".layers.0.mlp.down_proj.", ".layers.0.self_attn.v_proj.", ".lm_head.")  # weights and moments after the training runs are kept of these
here = os.path.dirname(os.path.abspath(__file__))


def pack(path, tensors, metadata=None):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".gz", "wb") as f:
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=f, mtime=0) as z:
            z.write(save(tensors, metadata))


def main():
    for name, losses in LOSSES.items():
        src, dst = os.path.join(sys.argv[1], name), os.path.join(here, name)
        shutil.rmtree(dst, ignore_errors=True)
        pack(dst + "/model.safetensors", load_file(src + "/model.safetensors"), {"format": "pt"})
        keep = ("tokens.", "targets.", "logprobs_f64.", "logprobs_bf16weights.")
        pack(dst + "/base.safetensors", {k: v for k, v in load_file(src + "/base.safetensors").items() if k.startswith(keep)})
        for a in ("lora", "lora-unembed"):
            pack(f"{dst}/{a}/adapter_model.safetensors", load_file(f"{src}/{a}/adapter_model.safetensors"))
            keep = ["in.", "logprobs_f64.", "nk."] + [f"grad.{x}." for x in (losses if a == "lora" else losses[:1])]
            pack(f"{dst}/{a}.safetensors", {k: v for k, v in load_file(f"{src}/{a}.safetensors").items() if k.startswith(tuple(keep))})
        keep = ("tokens.", "targets.", "weights.", *(f"{r}.{x}" for r in ("adam", "adamw-clip") for x in ("loss", "grad_norm", "lr")))
        train = load_file(src + "/train.safetensors")
        pack(dst + "/train.safetensors", {k: v for k, v in train.items() if k.startswith(keep) or (k.split(".")[1] in ("final", "m", "v") and any(m in k for m in ENDS))})
        for f in ("config.json", "losses.json", "generate.json", "lora/adapter_config.json", "lora-unembed/adapter_config.json"):
            shutil.copyfile(f"{src}/{f}", f"{dst}/{f}")


def experts():
    """A model with experts, and an adapter in the layout of the Tinker service."""
    name = "qwen3-moe-mixed"
    src, own, dst = os.path.join(sys.argv[1], name), os.path.join(sys.argv[2], name), os.path.join(here, name)
    shutil.rmtree(dst, ignore_errors=True)
    pack(dst + "/model.safetensors", load_file(src + "/model.safetensors"), {"format": "pt"})
    keep = ("tokens.", "targets.", "logprobs_f64.", "logprobs_bf16weights.")
    pack(dst + "/base.safetensors", {k: v for k, v in load_file(src + "/base.safetensors").items() if k.startswith(keep)})
    pack(dst + "/tinker/adapter_model.safetensors", load_file(own + "/tinker/adapter_model.safetensors"))
    keep = ("in.", "logprobs_f64.", "grad.cross_entropy.", "grad.cispo.")
    pack(dst + "/tinker.safetensors", {k: v for k, v in load_file(own + "/tinker.safetensors").items() if k.startswith(keep)})
    pack(dst + "/train.safetensors", {k: v for k, v in load_file(src + "/train.safetensors").items() if k.startswith(("tokens.", "targets.", "weights."))})
    keep = tuple(f"{r}.{x}" for r in ("adam", "adamw-clip") for x in ("loss", "grad_norm", "lr", "final"))
    pack(dst + "/train-tinker.safetensors", {k: v for k, v in load_file(own + "/train-tinker.safetensors").items() if k.startswith(keep)})
    shutil.copyfile(src + "/config.json", dst + "/config.json")
    for f in ("losses-tinker.json", "tinker/adapter_config.json"):
        shutil.copyfile(f"{own}/{f}", f"{dst}/{f}")


if __name__ == "__main__":
    main()
    experts()
