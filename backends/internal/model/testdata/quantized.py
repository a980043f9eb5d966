"""Makes the folders fp8, int4 and int8: python quantized.py     (torch 2.15.0, transformers 5.5.4, compressed-tensors 0.20.0)

A random Qwen3, hidden 160, ffn 96, vocabulary 128, with its weights in FP8 (blocks of 128 x 128 as the Qwen files have them, of which some are partial) and in compressed-tensors' pack-quantized form (int4 in
groups of 32 columns, int8 by rows), packed and unpacked by compressed-tensors itself. dequantized.json has SHA-256 of the bfloat16 elements that each weight stands for; base are transformers' log-probabilities in
float64 of the model that has them.
"""
import gzip, hashlib, json, os, re, shutil
import torch
import torch.nn.functional as F
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForCausalLM
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from selection import here

V, H = 128, 160
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(31)
config = AutoConfig.for_model("qwen3", vocab_size=V, hidden_size=H, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=40, max_position_embeddings=512,
                              bos_token_id=0, eos_token_id=1, pad_token_id=None, tie_word_embeddings=False, rope_theta=1e4)
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
weights = {}
for n, p in model.named_parameters():
    r = torch.randn(p.shape, generator=gen)
    weights[n] = (1 + 0.2 * r if p.dim() == 1 else r * (0.7 if "embed" in n else (2.5 if "lm_head" in n else 1) / p.shape[1] ** 0.5)).to(torch.bfloat16)
sequences = [torch.randint(0, V, (2, n), generator=gen) for n in (1, 7, 33)]


def pack(path, tensors, metadata=None):
    with open(path + ".gz", "wb") as f, gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=f, mtime=0) as z:
        z.write(save({k: v.contiguous() for k, v in tensors.items()}, metadata))


def fp8(w):
    r, c = w.shape
    R, C = -(-r // 128), -(-c // 128)
    w = w.float()
    s = (F.pad(w, (0, C * 128 - c, 0, R * 128 - r)).view(R, 128, C, 128).abs().amax((1, 3)) / 448).to(torch.bfloat16)
    big = s.repeat_interleave(128, 0).repeat_interleave(128, 1)[:r, :c]
    q = (w / big.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    exact = (q.float() * big.float()).to(torch.bfloat16)
    assert torch.equal(exact, q.to(torch.bfloat16) * big)             # as transformers dequantizes
    return {"weight": q, "weight_scale_inv": s}, exact


def packed(bits, group):
    def make(w):
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="group" if group else "channel", group_size=group or None))
        top = w.float().view(w.shape[0], -1, group or w.shape[1]).abs().amax(-1)
        state = {"weight": w, "weight_scale": (top / (2 ** (bits - 1) - 1)).to(torch.bfloat16)}
        small = PackedQuantizationCompressor.compress(state, scheme)
        exact = PackedQuantizationCompressor.decompress(small, scheme)["weight"]
        assert exact.dtype == torch.bfloat16
        return small, exact
    return make


def ours(bits, group):
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "output_activations": None,
                                          "weights": {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel", "group_size": group or None, "actorder": None, "dynamic": False}}}}


for name, make, section in (
        ("fp8", fp8, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]}),
        ("int4", packed(4, 32), ours(4, 32)), ("int8", packed(8, 0), ours(8, 0))):
    dst = os.path.join(here, name)
    shutil.rmtree(dst, ignore_errors=True)
    os.makedirs(dst)
    files, whole, sums = {}, {}, {}
    for n, w in weights.items():
        whole[n] = w
        if not re.search(r"_proj\.weight$", n):
            files[n] = w
            continue
        parts, whole[n] = make(w)
        files |= {n.removesuffix("weight") + k: v for k, v in parts.items()}
        sums[n.removesuffix(".weight")] = hashlib.sha256(whole[n].contiguous().view(torch.int16).numpy().tobytes()).hexdigest()
    pack(dst + "/model.safetensors", files, {"format": "pt"})
    model.load_state_dict({k: v.float() for k, v in whole.items()})
    model.double()
    base = {}
    with torch.no_grad():
        for i, (tokens, wanted) in enumerate(sequences):
            lp = model(tokens[None]).logits[0].log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
            base |= {f"tokens.{i}": tokens, f"targets.{i}": wanted, f"logprobs_f64.{i}": lp}
    model.float()
    pack(dst + "/base.safetensors", base)
    c = {**config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16", "quantization_config": section}
    json.dump(c, open(dst + "/config.json", "w"), indent=1)
    json.dump(sums, open(dst + "/dequantized.json", "w"), indent=1)
