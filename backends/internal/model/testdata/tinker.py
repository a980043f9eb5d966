"""Makes the folders qwen3-next, qwen3-vl and those of windows: python tinker.py [NAME ...]     (torch 2.15.0, transformers 5.5.4)

Random models of transformers' own classes, with an adapter in the Tinker service's layout, alpha 32. It is put on by giving the class weights to which it has been added, so that gradients are those of A and B.
Everything is float64 but for logprobs_bf16weights; files and tensors are as in README.md. Weights are of bfloat16, which packs well; what is rounded by it is another test's.
"""
import json, os, re, shutil, sys
import torch
from safetensors.torch import load_file
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from refmodel import loss_fn
from selection import ENDS, here, pack

ALPHA, STEPS, RATE = 32, 50, 1e-4
LOSSES = {"cross_entropy": {}, "importance_sampling": {}, "ppo": {}, "cispo": {}, "dro": {"beta": 0.05}}
KEPT = (*ENDS, ".layers.1.mlp.experts.w1.", ".layers.0.mlp.experts.w2.", ".layers.0.linear_attn.in_proj_z.", ".layers.2.linear_attn.in_proj_k.", ".layers.1.self_attn.q_proj.")
P = "base_model.model."
MARGIN = 2e-5  # between the last expert that is chosen and the first that is not, in logits

SMALL = dict(vocab_size=96, hidden_size=24, intermediate_size=28, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, rms_norm_eps=1e-5)
VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, in_channels=1, patch_size=2, spatial_merge_size=1, temporal_patch_size=1, out_hidden_size=36, num_position_embeddings=4, deepstack_visual_indexes=[0])
MODELS = {
    "qwen3-next": (3, dict(model_type="qwen3_next", vocab_size=160, hidden_size=36, intermediate_size=40, num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                   num_attention_heads=3, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=12, linear_conv_kernel_dim=4, num_experts=6,
                   num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=10, mlp_only_layers=[2], max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
                   rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25))),
    "qwen3-vl": (3, dict(model_type="qwen3_vl", tie_word_embeddings=True, image_token_id=2, video_token_id=3, vision_start_token_id=4, vision_end_token_id=5, vision_config=VISION,
                 text_config=dict(vocab_size=160, hidden_size=36, intermediate_size=44, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=12, max_position_embeddings=512, bos_token_id=0,
                                  eos_token_id=1, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=5e5, mrope_interleaved=True, mrope_section=[2, 2, 2])))),
    "mistral-window": (2, dict(model_type="mistral", sliding_window=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=10, **SMALL)),
    "phi3-window": (2, dict(model_type="phi3", sliding_window=33, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, pad_token_id=None, **SMALL)),
    "qwen3-window": (2, dict(model_type="qwen3", use_sliding_window=True, sliding_window=7, max_window_layers=1, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, **SMALL)),
}


class Double:
    """torch for a module of transformers: what it makes float32 is float64."""

    def __getattr__(self, name):
        return torch.float64 if name == "float32" else getattr(torch, name)


def doubled(model, on):
    """makes what transformers computes in float32, whatever the model's type, be computed in float64"""
    sys.modules[type(model).__module__].torch = Double() if on else torch
    torch.Tensor.float = torch.Tensor.double if on else single


single = torch.Tensor.float


def new(spec, dtype=torch.float32):
    spec = dict(spec)
    config = AutoConfig.for_model(spec.pop("model_type"), **spec)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval().to(dtype)
    doubled(model, dtype == torch.float64)
    for c in (model.config, getattr(model.config, "text_config", None)):
        if c is not None:
            c._experts_implementation = "eager"
    return model


class Adapter:
    """The modules of a model that LoRA is on, under the official names: the shapes of A and B, a weight, and where in that weight the product is added."""

    def __init__(self, model, rank):
        self.model, self.rank, self.scale = model, rank, ALPHA / rank
        c = self.c = getattr(model.config, "text_config", model.config)
        self.modules, weights = {}, dict(model.named_parameters(remove_duplicate=False))
        self.names = weights
        for name, w in weights.items():
            base, leaf = name.removesuffix(".weight").replace("language_model.", "").rpartition(".")[::2]
            if ".visual." in name or ".vision" in name:
                continue
            if re.fullmatch("[qkvo]_proj|(gate|up|down)_proj|in_proj_z|out_proj", leaf) and w.dim() == 2:
                self.put(f"{base}.{leaf}", name, w)
            elif leaf == "lm_head":
                self.put("model.unembed_tokens", name, w)
            elif leaf == "qkv_proj":
                d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
                self.rows(base, name, w, q_proj=c.num_attention_heads * d, k_proj=c.num_key_value_heads * d, v_proj=c.num_key_value_heads * d)
            elif leaf == "in_proj_qkv":
                k = c.linear_num_key_heads * c.linear_key_head_dim
                self.rows(base, name, w, in_proj_q=k, in_proj_k=k, in_proj_v=w.shape[0] - 2 * k)
            elif leaf == "in_proj_qkvz":
                k, v = c.linear_key_head_dim, c.linear_num_value_heads // c.linear_num_key_heads * c.linear_value_head_dim
                self.rows(base, name, w, groups=c.linear_num_key_heads, in_proj_q=k, in_proj_k=k, in_proj_v=v, in_proj_z=v)
            elif leaf == "gate_up_proj" and w.dim() == 2:
                self.rows(base, name, w, gate_proj=w.shape[0] // 2, up_proj=w.shape[0] // 2)
            elif leaf == "gate_up_proj":
                self.experts(base, name, w)

    def put(self, module, name, w):
        self.modules[module] = ((self.rank, w.shape[1]), (w.shape[0], self.rank), name, lambda d: d)

    def rows(self, base, name, w, groups=1, **parts):
        """parts of so many rows, one below another, in each of several groups"""
        at, each = 0, sum(parts.values())
        for part, n in parts.items():
            places = torch.cat([torch.arange(n) + at + g * each for g in range(groups)])
            self.modules[f"{base}.{part}"] = ((self.rank, w.shape[1]), (n * groups, self.rank), name, lambda d, places=places, w=w: torch.zeros(w.shape, dtype=d.dtype).index_copy(0, places, d))
            at += n

    def experts(self, base, name, w):
        c = self.c
        count, hidden, width, r = w.shape[0], c.hidden_size, getattr(c, "moe_intermediate_size", None) or c.intermediate_size, self.rank
        transposed = tuple(w.shape[1:]) == (hidden, 2 * width) and c.model_type in ("gpt_oss", "qwen3_vl_moe_text")
        interleaved = c.model_type == "gpt_oss"

        def place(d, second):  # experts × width × hidden
            zero = torch.zeros_like(d)
            two = [zero, d] if second else [d, zero]
            d = torch.stack(two, 2).flatten(1, 2) if interleaved else torch.cat(two, 1)
            return d.transpose(1, 2) if transposed else d
        down = name.replace("gate_up_proj", "down_proj")
        self.modules[base + ".w1"] = ((1, r, hidden), (count, width, r), name, lambda d: place(d, False))
        self.modules[base + ".w3"] = ((1, r, hidden), (count, width, r), name, lambda d: place(d, True))
        self.modules[base + ".w2"] = ((count, r, width), (1, hidden, r), down, lambda d: d.transpose(1, 2) if transposed else d)

    def fill(self, randn):
        t = {}
        for n, (a, b, _, _) in self.modules.items():
            t[f"{P}{n}.lora_A.weight"] = randn(*a) * a[-1] ** -0.5
            t[f"{P}{n}.lora_B.weight"] = 0.03 * randn(*b)
        return t

    def weights(self, tensors):
        """the model's weights with an adapter"""
        out = dict(self.names)
        for n, (_, _, name, place) in self.modules.items():
            out[name] = out[name] + place(tensors[f"{P}{n}.lora_B.weight"] @ tensors[f"{P}{n}.lora_A.weight"] * self.scale)
        return out


def weights_of(model, randn):
    out, tied = {}, getattr(model.config, "text_config", model.config).tie_word_embeddings
    for n, p in model.named_parameters():
        zero_centred = model.config.model_type in ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text") and not n.endswith("linear_attn.norm.weight")
        if n.endswith("norm.weight"):
            w = (0 if zero_centred else 1) + 0.2 * randn(*p.shape)
        elif n.endswith("A_log"):
            w = (0.02 + 0.3 * randn(*p.shape).abs()).log()
        elif n.endswith("dt_bias"):
            w = randn(*p.shape) - 1
        elif n.endswith(("bias", "sinks")):
            w = randn(*p.shape) * (1.0 if "sinks" in n else 0.5)
        elif "embed" in n:
            w = randn(*p.shape) * (2.5 / p.shape[-1] ** 0.5 if tied else 0.7)
        elif "conv1d" in n:
            w = randn(*p.shape) * 0.5
        else:
            w = randn(*p.shape) * (2.0 if re.search(r"lm_head|router|mlp\.gate\.", n) else 1.0) / p.shape[-1] ** 0.5
        out[n] = w.bfloat16().float().contiguous()
    return out


margin = [9.0]


def watch(model):
    """follows how near the choice of experts is to another"""
    c = getattr(model.config, "text_config", model.config)
    k = getattr(c, "num_experts_per_tok", 0)
    for n, m in model.named_modules():
        if re.search(r"mlp\.(gate|router)$", n):
            def hook(m, args, y):
                logits = torch.nn.functional.linear(args[0].detach().reshape(-1, args[0].shape[-1]), m.weight.detach(), getattr(m, "bias", None))
                top = logits.sort(-1, descending=True)[0]
                if k < top.shape[1]:
                    margin[0] = min(margin[0], (top[:, k - 1] - top[:, k]).min().item())
            m.register_forward_hook(hook)


def logprobs(model, weights, tokens, wanted):
    logits = functional_call(model, weights, (tokens[None],), dict(use_cache=False), tie_weights=False).logits[0]
    return logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]


def train(model, adapter, start, seqs, weights, kind):
    leaf = {k: v.double().requires_grad_() for k, v in start.items()}
    opt = torch.optim.AdamW(list(leaf.values()), lr=RATE, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0 if kind == "adam" else 0.01)
    losses, norms, rates = [], [], []
    for s in range(STEPS):
        rate = RATE if kind == "adam" else RATE / 2 * (1 - s / STEPS)
        opt.param_groups[0]["lr"] = rate
        opt.zero_grad()
        row = []
        for k in (2 * s % 4, 2 * s % 4 + 1):
            whole = adapter.weights(leaf)
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


def save(model, dst, **options):
    """the files of a model, its weights not packed"""
    model.save_pretrained(dst, **options)
    for f in os.listdir(dst):
        if f != "config.json" and not f.startswith("model"):
            os.remove(os.path.join(dst, f))


def make(name, dst, rank, spec, lengths=(1, 7, 33, 64, 129), runs=True, save=save, packed=True, wanted_margin=10 * MARGIN, wanted_noise=2e-5):
    gen = torch.Generator().manual_seed(sum(map(ord, name)))
    randn = lambda *s: torch.randn(s, generator=gen)
    shutil.rmtree(dst, ignore_errors=True)
    os.makedirs(dst)
    small = new(spec)
    weights = weights_of(small, randn)
    small.load_state_dict(weights, strict=False)
    small.tie_weights()
    save(small, dst)
    size = getattr(small.config, "text_config", small.config).vocab_size
    draw = lambda lengths: [torch.randint(min(6, size - 1), size, (2, n), generator=gen) for n in lengths]
    own = lambda m: dict(m.named_parameters(remove_duplicate=False))
    model = new(spec, torch.float64)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    adapter, adapter32 = Adapter(model, rank), Adapter(small, rank)
    watch(model)
    while True:  # an adapter and sequences under which no choice of experts is close to a tie, and nothing else near where a little changes much
        sequences, tensors = draw(lengths), adapter.fill(randn)
        leaf = {k: v.double().requires_grad_() for k, v in tensors.items()}
        with torch.no_grad():
            doubled(small, False)
            float32, adapted32 = ([logprobs(small, w, *s) for s in sequences] for w in (own(small), adapter32.weights(tensors)))
            doubled(small, True)
            margin[0] = 9.0
            double = [logprobs(model, own(model), *s) for s in sequences]
        lps = [logprobs(model, adapter.weights(leaf), *s) for s in sequences]
        noise = max((a - b).abs().max().item() for a, b in zip(float32 + adapted32, double + lps))
        print(f"{name}: margin {margin[0]:.2g}, transformers float32 is off by {noise:.2g}", flush=True)
        if margin[0] > wanted_margin and noise <= wanted_noise:
            break
    base = {}
    for i, (tokens, wanted) in enumerate(sequences):
        base |= {f"tokens.{i}": tokens.numpy(), f"targets.{i}": wanted.numpy(), f"logprobs_f64.{i}": double[i].numpy(), f"logprobs_bf16weights.{i}": float32[i].numpy()}
    pack(dst + "/base.safetensors", base)
    pack(dst + "/tinker/adapter_model.safetensors", {k: v.numpy() for k, v in tensors.items()})
    json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": name, "r": rank, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
               "target_modules": sorted({n.rsplit(".", 1)[-1] for n in adapter.modules}), "inference_mode": True}, open(os.path.join(dst, "tinker", "adapter_config.json"), "w"), indent=2, sort_keys=True)
    out, losses, inputs = {}, {}, []
    for i, lp in enumerate(lps):
        n = len(lp)
        x = dict(weights=randn(n), advantages=randn(n), logprobs=lp.detach().to(torch.float32) - 0.4 * randn(n))
        x["weights"][: n // 4] = x["advantages"][: n // 4] = 0
        inputs.append(x)
        out |= {f"logprobs_f64.{i}": lp.detach().numpy()} | {f"in.{k}.{i}": v.numpy() for k, v in x.items()}
    for loss, c in LOSSES.items():
        total = sum(loss_fn(loss, lp, x, c) for lp, x in zip(lps, inputs))
        losses[loss] = {"loss_sum_f64": total.item()}
        gradients = torch.autograd.grad(total, list(leaf.values()), retain_graph=True)
        out |= {f"grad.{loss}.{k}": g.to(torch.float32).contiguous().numpy() for k, g in zip(leaf, gradients)}
    pack(dst + "/tinker.safetensors", out)
    json.dump(losses, open(dst + "/losses-tinker.json", "w"), indent=1)
    while runs:
        seqs, data = draw((12, 25, 9, 31, 16, 20, 5, 40)), {}
        marks = [torch.rand(s.shape[1], generator=gen) for s in seqs]
        for i, s in enumerate(seqs):
            data |= {f"tokens.{i}": s[0].numpy(), f"targets.{i}": s[1].numpy(), f"weights.{i}": marks[i].numpy()}
        margin[0] = 9.0
        start = {k: torch.zeros_like(v) if "lora_B" in k else v for k, v in tensors.items()}
        trained = train(model, adapter, start, seqs, marks, "adam") | train(model, adapter, tensors, seqs, marks, "adamw-clip")
        print("margin while training", margin[0], flush=True)
        if margin[0] > MARGIN:
            pack(dst + "/train.safetensors", data)
            pack(dst + "/train-tinker.safetensors", trained)
            break
    doubled(small, False)
    if packed:
        for f in sorted(os.listdir(dst)):
            if f.endswith(".safetensors"):
                pack(f"{dst}/{f}", {k: v.numpy() for k, v in load_file(f"{dst}/{f}").items()}, {"format": "pt"})
                os.remove(f"{dst}/{f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        make(name, os.path.join(here, name), *MODELS[name])
