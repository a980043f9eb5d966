"""Makes the folders of small families, which selection.py does not have: python families.py [NAME ...]     (torch 2.15.0, transformers 5.5.4)

Random models of transformers' own classes, hidden 40, ffn 56, vocabulary 256, with adapters of rank 3 and 5 put on by hooks; the rest as in README.md, float64 values by the same classes in float64, for cross_entropy and ppo.
"""
import json, os, shutil, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from refmodel import loss_fn
from selection import here, pack

V, H, F = 256, 40, 56
SIZES = dict(vocab_size=V, hidden_size=H, intermediate_size=F, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512, bos_token_id=0, eos_token_id=1,
             pad_token_id=None, tie_word_embeddings=False, rms_norm_eps=1e-5)
LONG = dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75, short_factor=[1.0, 1.05, 1.2], long_factor=[1.0, 2.1, 11.5])
LENGTHS = {"longrope": (17, 20, 33, 64, 129)}  # all of them are long, because transformers takes other factors for a sequence that is not
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)
FAMILIES = {
    "mistral": dict(model_type="mistral", sliding_window=None, rope_theta=1e6, **SIZES),
    "phi3": dict(model_type="phi3", sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75), **SIZES),
    "longrope": dict(model_type="phi3", sliding_window=None, original_max_position_embeddings=16, rope_parameters=LONG, **{**SIZES, "hidden_size": 32, "head_dim": 8, "vocab_size": 128}),
    "smollm3": {**SIZES, "model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": True, "rope_theta": 5e6},
    "yarn": dict(model_type="qwen3", rope_parameters=YARN, **SIZES),
    "yarn-exact": dict(model_type="llama", rope_parameters={**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.4}, **SIZES),
}
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}  # of phi3


def targets(model):
    """name of a module that LoRA is on -> its linear layer and which rows of its output those are."""
    out = {}
    for name, m in model.named_modules():
        if not isinstance(m, torch.nn.Linear):
            continue
        base, leaf = name.rpartition(".")[::2]
        queries, keys = (n * model.config.head_dim for n in (model.config.num_attention_heads, model.config.num_key_value_heads))
        sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "gate_proj": F, "up_proj": F}
        at = 0
        for part in FUSED.get(leaf, (leaf,)):
            n = sizes[part] if leaf in FUSED else m.out_features
            out[f"{base}.{part}".lstrip(".")] = (m, at, at + n)
            at += n
    return out


def adapt(model, tensors, scale):
    """Hooks that add scale * B(Ax) to rows of outputs; gives what removes them."""
    handles = []
    for name, (m, start, end) in targets(model).items():
        a, b = (tensors.get(f"base_model.model.{name}.lora_{x}.weight") for x in "AB")
        if a is None:
            continue

        def hook(_, args, y, a=a, b=b, start=start, end=end):
            return torch.cat([y[..., :start], y[..., start:end] + (args[0] @ a.T) @ b.T * scale, y[..., end:]], -1)
        handles.append(m.register_forward_hook(hook))
    return lambda: [h.remove() for h in handles]


def logprobs(model, tokens, wanted):
    return model(tokens[None]).logits[0].log_softmax(-1).gather(-1, wanted[:, None])[:, 0]


def make(name, spec):
    gen = torch.Generator().manual_seed(sum(map(ord, name)))
    randn = lambda *s: torch.randn(s, generator=gen)
    dst = os.path.join(here, name)
    shutil.rmtree(dst, ignore_errors=True)
    os.makedirs(dst)
    spec = dict(spec)
    config = AutoConfig.for_model(spec.pop("model_type"), **spec)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(1 + 0.2 * randn(*p.shape) if p.dim() == 1 else randn(*p.shape) * (0.7 if "embed" in n else (2.5 if "lm_head" in n else 1) / p.shape[1] ** 0.5))
    model.save_pretrained(dst)
    for f in os.listdir(dst):
        if f not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(dst, f))
    weights = {k: v.detach().clone().numpy() for k, v in model.state_dict().items() if not (config.tie_word_embeddings and k == "lm_head.weight")}
    os.remove(dst + "/model.safetensors")
    pack(dst + "/model.safetensors", weights, {"format": "pt"})
    sequences = [torch.randint(0, config.vocab_size, (2, n), generator=gen) for n in LENGTHS.get(name, (1, 7, 33, 64, 129))]
    half = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    half.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    base = {}
    with torch.no_grad():
        rounded = [logprobs(half, *s) for s in sequences]
        single = [logprobs(model, *s) for s in sequences]
        model.double()
        double = [logprobs(model, *s) for s in sequences]
    for i, (tokens, wanted) in enumerate(sequences):
        base |= {f"tokens.{i}": tokens.numpy(), f"targets.{i}": wanted.numpy(), f"logprobs_f64.{i}": double[i].numpy(), f"logprobs_bf16weights.{i}": rounded[i].numpy()}
    print(name, "transformers float32 is off by", max((a - b).abs().max().item() for a, b in zip(single, double)))
    pack(dst + "/base.safetensors", base)
    losses = {}
    for adapter, rank, head in (("lora", 3, False), ("lora-unembed", 5, True)):
        lora = {}
        for k, (m, start, end) in targets(model).items():
            if k != "lm_head" or head:
                lora |= {f"base_model.model.{k}.lora_A.weight": randn(rank, m.in_features) / m.in_features ** 0.5, f"base_model.model.{k}.lora_B.weight": 0.03 * randn(end - start, rank)}
        pack(f"{dst}/{adapter}/adapter_model.safetensors", {k: v.numpy() for k, v in lora.items()})
        leaf = {k: v.double().requires_grad_() for k, v in lora.items()}
        remove = adapt(model, leaf, 32 / rank)
        lps = [logprobs(model, *s) for s in sequences]
        out, losses[adapter], inputs = {}, {}, []
        for i, lp in enumerate(lps):
            n = len(lp)
            x = dict(weights=randn(n), advantages=randn(n), logprobs=(lp.detach() - 0.4 * randn(n)).float())
            x["weights"][: n // 4] = x["advantages"][: n // 4] = 0
            inputs.append(x)
            out |= {f"logprobs_f64.{i}": lp.detach().numpy()} | {f"in.{k}.{i}": v.numpy() for k, v in x.items()}
        for loss in ("cross_entropy", "ppo", "importance_sampling", "cispo", "dro"):
            total = sum(loss_fn(loss, lp, x) for lp, x in zip(lps, inputs))
            losses[adapter][loss] = {"loss_sum_f64": total.item()}
            if loss in ("cross_entropy", "ppo"):
                grads = torch.autograd.grad(total, list(leaf.values()), retain_graph=True)
                out |= {f"grad.{loss}.{k}": g.float().numpy() for k, g in zip(leaf, grads)}
        remove()
        pack(f"{dst}/{adapter}.safetensors", out)
    json.dump(losses, open(dst + "/losses.json", "w"), indent=1)


torch.set_num_threads(1)
for n in sys.argv[1:] or FAMILIES:
    make(n, FAMILIES[n])
