"""Makes bfloat16.safetensors.gz of each model folder here: python bfloat16.py GOLDENS

The gradient of a loss by the adapter in float64 with base and adapter weights rounded to bfloat16 ("grad.LOSS.TENSOR", saved as float32), and how far PyTorch's own bfloat16
arithmetic is from it, norm-wise over all tensors and for the worst one ("torch.LOSS", two values).
"""
import os, sys
import numpy, torch
from safetensors.torch import load_file
from refmodel import Ref, loss_fn
from selection import LOSSES, here, pack

torch.set_num_threads(1)


def gradients(path, adapter, name, dtype):
    ref = Ref(path, dtype=dtype, round_bf16=True)
    leaf = {k: v.to(torch.bfloat16).to(dtype).requires_grad_() for k, v in load_file(f"{path}/{adapter}/adapter_model.safetensors").items()}
    rank = next(v.shape[0] for k, v in leaf.items() if ".lora_A." in k)
    ref.set_lora(leaf, 32 / rank)
    base, values = load_file(path + "/base.safetensors"), load_file(f"{path}/{adapter}.safetensors")
    total = 0
    for i in range(5):
        logits = ref.logits(base[f"tokens.{i}"])
        lp = (logits.float() if dtype == torch.bfloat16 else logits).log_softmax(-1).gather(-1, base[f"targets.{i}"][:, None])[:, 0]
        total = total + loss_fn(name, lp, {k: values[f"in.{k}.{i}"] for k in ("weights", "advantages", "logprobs")})
    return dict(zip(leaf, [g.double() for g in torch.autograd.grad(total, list(leaf.values()))]))


if __name__ == "__main__":
    for model in LOSSES:
        out = {}
        for name in ("cross_entropy", "importance_sampling"):
            want = gradients(os.path.join(sys.argv[1], model), "lora", name, torch.float64)
            got = gradients(os.path.join(sys.argv[1], model), "lora", name, torch.bfloat16)
            cat = lambda g: torch.cat([x.flatten() for x in g.values()])
            errors = [((cat(got) - cat(want)).norm() / cat(want).norm()).item(), max(((got[k] - want[k]).norm() / want[k].norm()).item() for k in want)]
            print(model, name, errors)
            out |= {f"grad.{name}.{k}": x.float().numpy() for k, x in want.items()}
            out[f"torch.{name}"] = numpy.array(errors, dtype=numpy.float32)
        pack(f"{here}/{model}/bfloat16.safetensors", out)
