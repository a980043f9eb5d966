"""Makes the folder odd: a model whose sizes are no multiple of anything, with float64 values by refmodel.py: python odd.py

Hidden 37, heads of 10 in groups of 3, ffn 51, vocabulary 307, adapters of rank 3 and 5; the rest as in README.md, for cross_entropy and ppo.
"""
import json, os, shutil
import numpy, torch
from safetensors.torch import save_file
from refmodel import Ref, loss_fn
from selection import here, pack

H, HEADS, KV, D, F, V, LAYERS = 37, 6, 2, 10, 51, 307, 2
gen = torch.Generator().manual_seed(20)
randn = lambda *s: torch.randn(s, generator=gen)
dst = os.path.join(here, "odd")
shutil.rmtree(dst, ignore_errors=True)
os.makedirs(dst)
config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=H, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=D, intermediate_size=F, vocab_size=V,
              num_hidden_layers=LAYERS, max_position_embeddings=257, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, rope_theta=10000.0,
              rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))
json.dump(config, open(dst + "/config.json", "w"), indent=1)
shapes = {"model.embed_tokens": (V, H), "lm_head": (V, H), "model.norm": (H,)}
for i in range(LAYERS):
    p = f"model.layers.{i}."
    shapes |= {p + "self_attn.q_proj": (HEADS * D, H), p + "self_attn.k_proj": (KV * D, H), p + "self_attn.v_proj": (KV * D, H), p + "self_attn.o_proj": (H, HEADS * D),
               p + "mlp.gate_proj": (F, H), p + "mlp.up_proj": (F, H), p + "mlp.down_proj": (H, F), p + "input_layernorm": (H,), p + "post_attention_layernorm": (H,)}
weights = {k + ".weight": 1 + 0.2 * randn(*s) if len(s) == 1 else randn(*s) * (0.7 if "embed" in k else (2.5 if k == "lm_head" else 1) / s[1] ** 0.5) for k, s in shapes.items()}
save_file(weights, dst + "/model.safetensors")                       # for Ref; packed below
ref, half = Ref(dst), Ref(dst, round_bf16=True)
pack(dst + "/model.safetensors", {k: v.numpy() for k, v in weights.items()})

sequences = [torch.randint(0, V, (2, n), generator=gen) for n in (1, 7, 33, 64, 129)]
base = {}
for i, (tokens, targets) in enumerate(sequences):
    base |= {f"tokens.{i}": tokens.numpy(), f"targets.{i}": targets.numpy(), f"logprobs_f64.{i}": ref.logprobs(tokens, targets).numpy(),
             f"logprobs_bf16weights.{i}": half.logprobs(tokens, targets).float().numpy()}
pack(dst + "/base.safetensors", base)
losses = {}
for adapter, rank, head in (("lora", 3, False), ("lora-unembed", 5, True)):
    lora = {}
    for k, s in shapes.items():
        if k.endswith("_proj") or head and k == "lm_head":
            lora |= {f"base_model.model.{k}.lora_A.weight": randn(rank, s[1]) / s[1] ** 0.5, f"base_model.model.{k}.lora_B.weight": 0.03 * randn(s[0], rank)}
    pack(f"{dst}/{adapter}/adapter_model.safetensors", {k: v.numpy() for k, v in lora.items()})
    leaf = {k: v.double().requires_grad_() for k, v in lora.items()}
    ref.set_lora(leaf, 32 / rank)
    lps = [ref.logprobs(*s) for s in sequences]
    out, losses[adapter] = {}, {}
    inputs = []
    for i, lp in enumerate(lps):
        n = len(lp)
        x = dict(weights=randn(n), advantages=randn(n), logprobs=(lp.detach() - 0.4 * randn(n)).float())
        x["weights"][: n // 4] = x["advantages"][: n // 4] = 0
        inputs.append(x)
        out |= {f"logprobs_f64.{i}": lp.detach().numpy()} | {f"in.{k}.{i}": v.numpy() for k, v in x.items()}
    for name in ("cross_entropy", "ppo", "importance_sampling", "cispo", "dro"):
        total = sum(loss_fn(name, lp, x) for lp, x in zip(lps, inputs))
        losses[adapter][name] = {"loss_sum_f64": total.item()}
        if name in ("cross_entropy", "ppo"):
            grads = torch.autograd.grad(total, list(leaf.values()), retain_graph=True)
            out |= {f"grad.{name}.{k}": g.float().numpy() for k, g in zip(leaf, grads)}
    pack(f"{dst}/{adapter}.safetensors", out)
json.dump(losses, open(dst + "/losses.json", "w"), indent=1)
os.remove(dst + "/model.safetensors")
