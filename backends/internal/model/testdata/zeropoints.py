"""Makes the folders gptq, gptq-order and awq: python zeropoints.py AUTO_GPTQ AUTOAWQ     (torch 2.15.0, transformers 5.5.4, the unpacked files of auto-gptq 0.7.1 and autoawq 0.2.9)

A random Qwen3, hidden 64, ffn 96, vocabulary 64, packed by these libraries: GPTQ of 4 bits in groups of 32, of 8 bits with columns in another order and zero points of gptq_v2, and AWQ. dequantized.json has SHA-256 of the bfloat16
elements that each weight stands for, as the libraries unpack them in float32; base are transformers' log-probabilities in float64 of the model that has them.
"""
import hashlib, importlib.util, json, os, re, shutil, sys, types
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from selection import here, pack

torch.set_num_threads(1)
gen = torch.Generator().manual_seed(35)
GROUP = 32


def library(name, path, **packages):
    """A file of a library, without what the library begins with."""
    for package, folder in packages.items():
        package = package.replace("__", ".")
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [folder]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gptq = library("auto_gptq_linear", sys.argv[1] + "/auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear
root = sys.argv[2] + "/awq"
awq = library("awq_gemm", root + "/modules/linear/gemm.py", awq=root, awq__utils=root + "/utils")


def quantized(w, bits, order):
    """Scales and zero points of groups of columns, and the weights that can be told with them."""
    out, n = w.shape
    groups = n // GROUP
    most = 2 ** bits - 1
    scales, zeros = torch.empty(groups, out), torch.empty(groups, out)
    exact = torch.empty(out, n)
    for g in range(groups):
        part = w[:, order == g]
        low, high = part.min(1).values.clamp(max=0), part.max(1).values.clamp(min=0)
        scales[g] = ((high - low) / most).half().float()
        zeros[g] = (-low / scales[g]).round().clamp(1, most - 1)
        q = (part / scales[g][:, None] + zeros[g][:, None]).round().clamp(0, most)
        exact[:, order == g] = (q - zeros[g][:, None]) * scales[g][:, None]
    return scales, zeros, exact


def linear(w):
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = w.clone()
    return layer


def of_gptq(bits, shuffled, second):
    def make(w):
        order = torch.arange(w.shape[1]) // GROUP
        if shuffled:
            order = order[torch.randperm(len(order), generator=gen)]
        scales, zeros, exact = quantized(w, bits, order)
        m = gptq(bits, GROUP, w.shape[1], w.shape[0], False)
        m.pack(linear(exact), scales.t().contiguous(), zeros.t().contiguous(), order.int())
        m.scales = m.scales.float()
        told = m(torch.eye(w.shape[1])).t()
        assert torch.equal(told, exact)
        qzeros = m.qzeros
        if second:  # as gptqmodel writes them
            qzeros = qzeros + sum(1 << bits * i for i in range(32 // bits))
        return {"qweight": m.qweight, "qzeros": qzeros, "scales": m.scales.half(), "g_idx": m.g_idx.int()}, told.to(torch.bfloat16)
    return make


def of_awq(w):
    scales, zeros, exact = quantized(w, 4, torch.arange(w.shape[1]) // GROUP)
    m = awq.WQLinear_GEMM.from_linear(linear(exact), 4, GROUP, scales=scales, zeros=zeros)
    told = awq.dequantize_gemm(m.qweight, m.qzeros, m.scales.float(), 4, GROUP).t()
    assert torch.equal(told, exact)
    return {"qweight": m.qweight, "qzeros": m.qzeros, "scales": m.scales}, told.to(torch.bfloat16)


config = AutoConfig.for_model("qwen3", vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
                              bos_token_id=0, eos_token_id=1, pad_token_id=None, tie_word_embeddings=False, rope_theta=1e4)
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
weights = {}
for n, p in model.named_parameters():
    r = torch.randn(p.shape, generator=gen)
    weights[n] = (1 + 0.2 * r if p.dim() == 1 else r * (0.7 if "embed" in n else (2.5 if "lm_head" in n else 1) / p.shape[1] ** 0.5)).half()
sequences = [torch.randint(0, 64, (2, n), generator=gen) for n in (1, 7, 33)]
GPTQ = {"quant_method": "gptq", "group_size": GROUP, "sym": False, "damp_percent": 0.01, "true_sequential": True, "static_groups": False}

for name, make, section in (
        ("gptq", of_gptq(4, False, False), {**GPTQ, "bits": 4, "desc_act": False}),
        ("gptq-order", of_gptq(8, True, True), {**GPTQ, "bits": 8, "desc_act": True, "checkpoint_format": "gptq_v2", "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:2.0.0"]}}),
        ("awq", of_awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm", "modules_to_not_convert": None})):
    dst = os.path.join(here, name)
    shutil.rmtree(dst, ignore_errors=True)
    os.makedirs(dst)
    files, whole, sums = {}, {}, {}
    for n, w in weights.items():
        whole[n] = w
        if not re.search(r"_proj\.weight$", n):
            files[n] = w
            continue
        parts, whole[n] = make(w.float())
        files |= {n.removesuffix("weight") + k: v for k, v in parts.items()}
        if name == "gptq" and n.endswith("o_proj.weight"):
            files[n.removesuffix("weight") + "bias"] = torch.zeros(w.shape[0]).half()  # as files of GPTQ have them where the model has none
        sums[n.removesuffix(".weight")] = hashlib.sha256(whole[n].contiguous().view(torch.int16).numpy().tobytes()).hexdigest()
    pack(dst + "/model.safetensors", {k: v.contiguous().numpy() for k, v in files.items()}, {"format": "pt"})
    model.load_state_dict({k: v.float() for k, v in whole.items()})
    model.double()
    base = {}
    with torch.no_grad():
        for i, (tokens, wanted) in enumerate(sequences):
            lp = model(tokens[None]).logits[0].log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
            base |= {f"tokens.{i}": tokens.numpy(), f"targets.{i}": wanted.numpy(), f"logprobs_f64.{i}": lp.numpy()}
    model.float()
    pack(dst + "/base.safetensors", base)
    c = {**config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "float16", "quantization_config": section}
    json.dump(c, open(dst + "/config.json", "w"), indent=1)
    json.dump(sums, open(dst + "/dequantized.json", "w"), indent=1)
