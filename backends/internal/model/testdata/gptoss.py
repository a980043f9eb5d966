"""Makes the folder gpt-oss: python gptoss.py     (torch 2.15.0, transformers 5.5.4, PEFT 0.21.2 for the configuration's form only)

A random model of transformers' own class: hidden 48, experts of 32, vocabulary 256, windows of 12 positions in two of three layers, gates that the limit of 7 often cuts off. Its adapter is in the Tinker service's layout, rank 4,
alpha 32; it is put on by giving the class weights to which it has been added, so that gradients are those of A and B. Everything is float64 but for logprobs_bf16weights; files and tensors are as in README.md.
"""
import json, os, shutil
import torch
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForCausalLM
from refmodel import loss_fn
from selection import ENDS, here, pack

NAME, V, D, F, E, LAYERS, RANK, ALPHA, STEPS = "gpt-oss", 256, 48, 32, 6, 3, 4, 32, 50
HEADS, KEYS, DIM = 4, 2, 16
CONFIG = dict(vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KEYS, head_dim=DIM, num_local_experts=E, num_experts_per_tok=3, sliding_window=12,
              layer_types=["sliding_attention", "full_attention", "sliding_attention"], tie_word_embeddings=False, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=None,
              rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=64))
LOSSES = {"cross_entropy": {}, "importance_sampling": {}, "ppo": {}, "cispo": {}, "dro": {"beta": 0.05}}
SAVED = ("cross_entropy", "importance_sampling", "ppo")
KEPT = (*ENDS, ".layers.1.mlp.experts.w1.", ".layers.0.mlp.experts.w2.", ".layers.2.mlp.experts.w3.", ".layers.1.self_attn.k_proj.")
P = "base_model.model."
MARGIN = 2e-5  # between the last expert that is chosen and the first that is not, in logits

torch.set_num_threads(1)
gen = torch.Generator().manual_seed(20)
randn = lambda *s: torch.randn(s, generator=gen)


def new(weights=None):
    m = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **CONFIG), dtype=torch.float32, attn_implementation="eager").eval()
    m.config._experts_implementation = "eager"
    if weights:
        m.load_state_dict(weights)
    return m


def weights_of(model):
    out = {}
    for n, p in model.named_parameters():
        if n.endswith("norm.weight") or n.endswith("layernorm.weight"):
            w = 1 + 0.2 * randn(*p.shape)
        elif n.endswith(("bias", "sinks")):
            w = randn(*p.shape) * (1.0 if "sinks" in n else 0.5)
        elif "embed" in n:
            w = 0.7 * randn(*p.shape)
        elif n.endswith("gate_up_proj"):
            w = 3.0 * randn(*p.shape) / p.shape[1] ** 0.5  # beyond the limit now and then
        elif n.endswith("down_proj"):
            w = 0.25 * randn(*p.shape) / p.shape[1] ** 0.5
        else:
            w = randn(*p.shape) * (2.0 if "lm_head" in n or "router" in n else 1.0) / p.shape[1] ** 0.5
        out[n] = w.contiguous()
    return out


def modules():
    """official name -> (A, B, the weight's name)"""
    out = {}
    for i in range(LAYERS):
        a, m = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp.experts."
        for n, o, x in (("q", HEADS * DIM, D), ("k", KEYS * DIM, D), ("v", KEYS * DIM, D), ("o", D, HEADS * DIM)):
            out[a + n + "_proj"] = ((RANK, x), (o, RANK), a + n + "_proj.weight")
        out[m + "w1"] = out[m + "w3"] = ((1, RANK, D), (E, F, RANK), m + "gate_up_proj")
        out[m + "w2"] = ((E, RANK, F), (1, D, RANK), m + "down_proj")
    out["model.unembed_tokens"] = ((RANK, D), (V, RANK), "lm_head.weight")
    return out


def fill(zero_b=False):
    t = {}
    for n, (a, b, _) in modules().items():
        t[f"{P}{n}.lora_A.weight"] = randn(*a) * a[-1] ** -0.5
        t[f"{P}{n}.lora_B.weight"] = torch.zeros(b) if zero_b else 0.03 * randn(*b)
    return t


def adapted(model, t, scale=ALPHA / RANK):
    """the model's weights with an adapter"""
    out = dict(model.named_parameters())
    for n, (_, _, name) in modules().items():
        delta = t[f"{P}{n}.lora_B.weight"] @ t[f"{P}{n}.lora_A.weight"] * scale
        if delta.dim() == 2:
            out[name] = out[name] + delta
            continue
        delta = delta.transpose(1, 2)  # experts × in × out, as the class has them
        if name.endswith("gate_up_proj"):
            zero = torch.zeros_like(delta)
            delta = torch.stack([delta, zero] if n.endswith("w1") else [zero, delta], -1).flatten(-2)
        out[name] = out[name] + delta
    return out


margin = [9.0]


def watch(model):
    for n, m in model.named_modules():
        if n.endswith("mlp.router"):
            def hook(m, args, y):
                top = y[0].detach().sort(-1, descending=True)[0]
                k = CONFIG["num_experts_per_tok"]
                margin[0] = min(margin[0], (top[:, k - 1] - top[:, k]).min().item())
            m.register_forward_hook(hook)


def logprobs(model, weights, tokens, wanted):
    logits = functional_call(model, weights, (tokens[None],)).logits[0]
    return logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]


def draw(lengths):
    return [torch.randint(2, V, (2, n), generator=gen) for n in lengths]


def train(model, start, seqs, weights, kind):
    leaf = {k: v.double().requires_grad_() for k, v in start.items()}
    opt = torch.optim.AdamW(list(leaf.values()), lr=1e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0 if kind == "adam" else 0.01)
    losses, norms, rates = [], [], []
    for s in range(STEPS):
        rate = 1e-3 if kind == "adam" else 5e-4 * (1 - s / STEPS)
        opt.param_groups[0]["lr"] = rate
        opt.zero_grad()
        row = []
        for k in (2 * s % 4, 2 * s % 4 + 1):
            whole = adapted(model, leaf)
            loss = sum(loss_fn("cross_entropy", logprobs(model, whole, *seqs[i]), {"weights": weights[i]}) for i in (2 * k, 2 * k + 1))
            loss.backward()
            row.append(loss.item())
        losses.append(row)
        norms.append(torch.stack([p.grad.norm() for p in leaf.values()]).norm().item())
        if kind != "adam":
            torch.nn.utils.clip_grad_norm_(list(leaf.values()), 1.0)
        opt.step()
        rates.append(rate)
    out = {f"{kind}.{n}": torch.tensor(x, dtype=torch.float64).numpy() for n, x in (("loss_f64", losses), ("grad_norm", norms), ("lr", rates))}
    return out | {f"{kind}.final.{k}": v.detach().float().numpy() for k, v in leaf.items() if any(m in k for m in KEPT)}


def main():
    dst = os.path.join(here, NAME)
    shutil.rmtree(dst, ignore_errors=True)
    os.makedirs(dst)
    single = new()
    weights = weights_of(single)
    single.load_state_dict(weights)
    half, model = new({k: v.bfloat16().float() for k, v in weights.items()}), new(weights).double()
    model.config.save_pretrained(dst)
    config = json.load(open(dst + "/config.json"))
    config["architectures"] = ["GptOssForCausalLM"]
    json.dump(config, open(dst + "/config.json", "w"), indent=2)
    pack(dst + "/model.safetensors", {k: v.numpy() for k, v in weights.items()}, {"format": "pt"})
    watch(model)
    own = lambda m: dict(m.named_parameters())
    while True:  # sequences and an adapter under which no choice of experts is close to a tie
        sequences, tensors = draw((1, 7, 33, 64, 129)), fill()
        leaf = {k: v.double().requires_grad_() for k, v in tensors.items()}
        margin[0] = 9.0
        with torch.no_grad():
            double = [logprobs(model, own(model), *s) for s in sequences]
        lps = [logprobs(model, adapted(model, leaf), *s) for s in sequences]
        print("margin", margin[0], flush=True)
        if margin[0] > 10 * MARGIN:
            break
    with torch.no_grad():
        float32 = [logprobs(single, own(single), *s) for s in sequences]
        rounded = [logprobs(half, own(half), *s) for s in sequences]
    print("transformers float32 is off by", max((a - b).abs().max().item() for a, b in zip(float32, double)))
    base = {}
    for i, (tokens, wanted) in enumerate(sequences):
        base |= {f"tokens.{i}": tokens.numpy(), f"targets.{i}": wanted.numpy(), f"logprobs_f64.{i}": double[i].numpy(), f"logprobs_bf16weights.{i}": rounded[i].numpy()}
    pack(dst + "/base.safetensors", base)
    pack(dst + "/tinker/adapter_model.safetensors", {k: v.numpy() for k, v in tensors.items()})
    json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": NAME, "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
               "target_modules": sorted({n.rsplit(".", 1)[-1] for n in modules()}), "inference_mode": True}, open(dst + "/tinker/adapter_config.json", "w"), indent=2, sort_keys=True)
    out, losses, inputs = {}, {}, []
    for i, lp in enumerate(lps):
        n = len(lp)
        x = dict(weights=randn(n), advantages=randn(n), logprobs=(lp.detach() - 0.4 * randn(n)).float())
        x["weights"][: n // 4] = x["advantages"][: n // 4] = 0
        inputs.append(x)
        out |= {f"logprobs_f64.{i}": lp.detach().numpy()} | {f"in.{k}.{i}": v.numpy() for k, v in x.items()}
    for loss, c in LOSSES.items():
        total = sum(loss_fn(loss, lp, x, c) for lp, x in zip(lps, inputs))
        losses[loss] = {"loss_sum_f64": total.item()}
        if loss in SAVED:
            out |= {f"grad.{loss}.{k}": g.float().contiguous().numpy() for k, g in zip(leaf, torch.autograd.grad(total, list(leaf.values()), retain_graph=True))}
    pack(dst + "/tinker.safetensors", out)
    json.dump(losses, open(dst + "/losses-tinker.json", "w"), indent=1)
    while True:
        seqs, data = draw((12, 25, 9, 31, 16, 20, 5, 40)), {}
        marks = [torch.rand(s.shape[1], generator=gen) for s in seqs]
        for i, s in enumerate(seqs):
            data |= {f"tokens.{i}": s[0].numpy(), f"targets.{i}": s[1].numpy(), f"weights.{i}": marks[i].numpy()}
        margin[0] = 9.0
        start = {k: torch.zeros_like(v) if "lora_B" in k else v for k, v in tensors.items()}
        runs = train(model, start, seqs, marks, "adam") | train(model, tensors, seqs, marks, "adamw-clip")
        print("margin while training", margin[0], flush=True)
        if margin[0] > MARGIN:
            break
    pack(dst + "/train.safetensors", data)
    pack(dst + "/train-tinker.safetensors", runs)


main()
