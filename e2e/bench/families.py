"""Random models of the shapes of families, and what transformers + PEFT reach on them.

`families.py write FOLDER` writes one model directory for each shape below FOLDER, in bfloat16; the Go benchmark Families of
backends/internal/engine reads them. `families.py run FOLDER` prints lines NAME DTYPE KIND TOKENS_PER_SECOND, or what failed: `train-N` is
forward and backward of cross-entropy over one sequence of N tokens with LoRA of rank 32, `decode-N` so many sequences token
by token behind a context of 256. One warm-up, then the mean of the repetitions, with as many threads as this process may use
processors, as the Go benchmark has.

LoRA is on every linear layer. On the experts PEFT makes a whole matrix for each, in every pass: in bfloat16 that is measured,
in float32 it does not fit into 24 GB, and there the experts have none: transformers has less to do than we have."""

import os
import pathlib
import subprocess
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3MoeConfig

CONTEXT, REPEATS, STEPS = 256, 2, 16
SHAPES = {
    "Qwen3.5-0.8B": Qwen3_5TextConfig(
        vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
        linear_value_head_dim=128, max_position_embeddings=8192, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    ),
    "Qwen3-30B-A3B-4-layers": Qwen3MoeConfig(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=4,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
        norm_topk_prob=True, max_position_embeddings=8192, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
}


def write(folder):
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    for name, config in SHAPES.items():
        print("writing", folder / name, flush=True)
        net = AutoModelForCausalLM.from_config(config)
        for key, value in net.named_parameters():
            if key.endswith("A_log"):  # the logarithm of a draw that bfloat16 may round to 0
                value.data.clamp_(min=-4)
        net.save_pretrained(folder / name)


def load(directory, dtype):
    net = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    config = AutoConfig.from_pretrained(directory)
    modules = r".*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|in_proj_qkv|in_proj_z|out_proj)|lm_head"
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if hasattr(config, "num_experts") and dtype == torch.bfloat16 else None
    return get_peft_model(net, LoraConfig(r=32, lora_alpha=32, target_modules=modules, target_parameters=experts, bias="none"))


def train(net, n):
    ids = torch.arange(n).mul(7919).remainder(net.config.vocab_size)[None]
    targets = ids[0].roll(-1)
    seconds = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        logits = net(input_ids=ids, use_cache=False).logits[0].float()
        torch.nn.functional.cross_entropy(logits, targets, reduction="sum").backward()
        seconds.append(time.perf_counter() - start)
    return ids.shape[1] * REPEATS / sum(seconds[1:])


@torch.inference_mode()
def decode(net, sequences):
    vocab = net.config.vocab_size
    net.eval()
    ids = torch.arange(sequences * CONTEXT).mul(7919).remainder(vocab).view(sequences, CONTEXT)
    out = net(input_ids=ids, use_cache=True, logits_to_keep=1)
    seconds = []
    for _ in range(1 + STEPS):
        token = out.logits[:, -1:].argmax(-1)
        start = time.perf_counter()
        out = net(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
        torch.log_softmax(out.logits[:, -1].float(), -1)
        seconds.append(time.perf_counter() - start)
    return sequences * STEPS / sum(seconds[1:])


KINDS = {"train-512": (train, 512), "train-2048": (train, 2048), "decode-1": (decode, 1), "decode-8": (decode, 8)}


def one(directory, dtype, kind):
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    measure, n = KINDS[kind]
    print(directory.name, dtype, kind, round(measure(load(directory, getattr(torch, dtype)), n), 2), flush=True)


def run(folder):
    """Each in a process of its own: one that has no memory left is killed, and says nothing of the others."""
    for name in SHAPES:
        for dtype in ("bfloat16", "float32"):
            for kind in KINDS:
                if code := subprocess.run([sys.executable, __file__, "one", folder / name, dtype, kind]).returncode:
                    print(name, dtype, kind, "failed: " + ("killed, it needs more memory" if code == -9 else f"exit code {code}"), flush=True)


command, directory, *rest = sys.argv[1:]
{"write": write, "run": run, "one": one}[command](pathlib.Path(directory), *rest)
