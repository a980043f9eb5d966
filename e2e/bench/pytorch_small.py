"""Prints how fast PyTorch + PEFT alone, without a server, take the training steps that e2e/demo/speed.py asks a server for: the small Qwen3 of
e2e/demo/randommodel.py, LoRA of rank 32 on every linear layer and the output head, cross-entropy forward and backward over 8 sequences of 128 tokens, and AdamW.

    python pytorch_small.py MODEL_DIRECTORY

The line is ENGINE KIND DTYPE TOKENS_PER_SECOND: the best of three rounds of 12 steps after one to warm up, as speed.py takes it."""

import os
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ROWS, LENGTH, STEPS, ROUNDS = 8, 128, 12, 3


def main():
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    net = get_peft_model(base, LoraConfig(r=32, lora_alpha=32, target_modules=modules, bias="none"))
    adam = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4, betas=(0.9, 0.95), eps=1e-12)
    batches = torch.randint(4, 400, (STEPS, ROWS, LENGTH + 1))

    def step(ids):
        logits = net(input_ids=ids[:, :-1], use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").backward()
        adam.step()
        adam.zero_grad()

    step(batches[0])
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for ids in batches:
            step(ids)
        seconds.append(time.perf_counter() - start)
    print("torch train-small float32", round(STEPS * ROWS * LENGTH / min(seconds)), flush=True)


main()
