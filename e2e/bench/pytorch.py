"""Prints what PyTorch + PEFT reach on the shape that the Go benchmark Qwen3/layers=28 has: that of Qwen3-0.6B with random
weights, LoRA of rank 32 on every linear layer and the output head.

A line is ENGINE KIND DTYPE TOKENS_PER_SECOND: `train` is forward and backward of cross-entropy over one sequence of 512
tokens, `forward` the last token's logits behind 512 tokens, `decode` one sequence token by token behind a context of 256,
`decode8` eight such sequences at once.
One warm-up, then the mean of the repetitions, as Go's benchmarks take it, with as many threads as this process may use processors,
as the Go benchmarks have."""

import os
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

TOKENS, CONTEXT, SEQUENCES = 512, 256, 8
TRAIN_REPEATS, DECODE_STEPS = 3, 32


def model(dtype):
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, tie_word_embeddings=True,
    )
    torch.set_default_dtype(dtype)
    base = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    return get_peft_model(base, LoraConfig(r=32, lora_alpha=32, target_modules=modules, bias="none"))


def train(net, ids):
    targets = ids[0].roll(-1)
    seconds = []
    for _ in range(1 + TRAIN_REPEATS):
        start = time.perf_counter()
        logits = net(input_ids=ids, use_cache=False).logits[0].float()
        torch.nn.functional.cross_entropy(logits, targets, reduction="sum").backward()
        seconds.append(time.perf_counter() - start)
    return TOKENS * TRAIN_REPEATS / sum(seconds[1:])


@torch.inference_mode()
def forward(net, ids):
    net.eval()
    seconds = []
    for _ in range(1 + TRAIN_REPEATS):
        start = time.perf_counter()
        logits = net(input_ids=ids, use_cache=True, logits_to_keep=1).logits
        torch.log_softmax(logits[0, -1].float(), -1)
        seconds.append(time.perf_counter() - start)
    return TOKENS * TRAIN_REPEATS / sum(seconds[1:])


@torch.inference_mode()
def decode(net, ids, sequences=1):
    net.eval()
    ids = torch.cat([ids + i for i in range(sequences)]).remainder(ids.max() + 1)
    out = net(input_ids=ids[:, :CONTEXT], use_cache=True, logits_to_keep=1)
    token, seconds = ids[:, :1], []
    for _ in range(1 + DECODE_STEPS):
        start = time.perf_counter()
        out = net(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
        torch.log_softmax(out.logits[:, -1].float(), -1)
        token = out.logits[:, -1:].argmax(-1)
        seconds.append(time.perf_counter() - start)
    return sequences * DECODE_STEPS / sum(seconds[1:])


def decode8(net, ids):
    return decode(net, ids, SEQUENCES)


def main():
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for dtype in (torch.float32, torch.bfloat16):
        net = model(dtype)
        ids = torch.arange(TOKENS).mul(7919).remainder(151936)[None]
        name = str(dtype).removeprefix("torch.")
        for kind in (train, forward, decode, decode8):
            print("torch", kind.__name__, name, round(kind(net, ids), 2), flush=True)
        del net


main()
