"""Makes the folders beside it: python make.py   (torch 2.15.0, transformers 5.5.4, PEFT 0.21.2, float32 on one thread)

Each has an adapter as PEFT's save_pretrained writes it, on a model of ../../../model/testdata, and in golden.json.gz what PEFT and PyTorch make of it: log-probabilities of a sequence,
and of `train` five steps of torch.optim.AdamW on it, read back with is_trainable=True: losses, and log-probabilities and weights after the last one. `refused` has configurations only.
"""
import gzip, json, os, pathlib, shutil, tempfile
import torch
from peft import LoraConfig, PeftModel, get_peft_model, initialize_lora_eva_weights, EvaConfig
from peft.tuners.lora.config import CordaConfig, LoraGAConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
here = pathlib.Path(__file__).parent
models = here / ".." / ".." / ".." / "model" / "testdata"
generator = torch.Generator().manual_seed(5)
PROMPT = [509, 5, 17, 40, 77, 123, 200, 311, 402, 33, 9, 8, 7]
DATA = [torch.randint(0, 512, (n,), generator=generator) for n in (24, 15)]
STEPS, RATE, DECAY = 5, 5e-3, 0.01


def model(name, dtype=torch.float32):
    """The model of that folder, whose files are gzipped there."""
    with tempfile.TemporaryDirectory() as folder:
        for file in ("config.json", "model.safetensors"):
            source = models / name / file
            content = source.read_bytes() if source.exists() else gzip.decompress(source.with_name(file + ".gz").read_bytes())
            (pathlib.Path(folder) / file).write_bytes(content)
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    loaded.name_or_path = loaded.config._name_or_path = name
    return loaded


def fill(peft):
    """Random A and B: as after a training."""
    with torch.no_grad():
        for name, p in peft.named_parameters():
            if ".lora_" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * (0.3 / p.shape[1] ** 0.5 if "lora_A" in name else 0.1))


def score(m, tokens):
    logits = m(torch.as_tensor(tokens)[None]).logits[0].float()
    return logits[:-1].log_softmax(-1).gather(-1, torch.as_tensor(tokens)[1:, None])[:, 0]


def steps(peft, n):
    optimizer = torch.optim.AdamW([p for p in peft.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses = []
    for _ in range(n):
        optimizer.zero_grad()
        loss = -sum(score(peft, tokens).sum() for tokens in DATA)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write(name, base, peft, train=True, dtype=torch.float32, **save):
    folder = here / name
    shutil.rmtree(folder, ignore_errors=True)
    prompt = [t % peft.config.vocab_size for t in PROMPT]
    with torch.no_grad():
        before = score(peft, prompt).tolist()
    peft.save_pretrained(folder, **save)
    golden = {"base": base, "prompt": prompt, "logprobs": before}
    if not save:
        again = PeftModel.from_pretrained(model(base, dtype), folder)
        with torch.no_grad():
            assert (score(again, prompt) - torch.tensor(before)).abs().max() < 1e-5, name
    if train:
        again = PeftModel.from_pretrained(model(base), folder, is_trainable=True)
        golden |= {"data": [t.tolist() for t in DATA], "rate": RATE, "decay": DECAY, "losses": steps(again, STEPS)}
        with torch.no_grad():
            golden["trained_logprobs"] = score(again, prompt).tolist()
        golden["weights"] = {k.replace(".default", ""): v.flatten().tolist() for k, v in again.state_dict().items() if ".lora_" in k}
    finish(folder, golden)


def finish(folder, golden=None):
    (folder / "README.md").unlink(missing_ok=True)
    if golden:
        (folder / "golden.json.gz").write_bytes(gzip.compress(json.dumps(golden).encode(), mtime=0))


def plain(name, train=True, base="llama", dtype=torch.float32, target_modules=("q_proj", "down_proj"), **options):
    peft = get_peft_model(model(base, dtype), LoraConfig(target_modules=list(target_modules), **options))
    fill(peft)
    write(name, base, peft, train, dtype)


plain("alpha", r=8, lora_alpha=16)
plain("rslora", r=4, lora_alpha=6, use_rslora=True)
plain("rank3", r=3, lora_alpha=6)
plain("patterns", r=4, lora_alpha=6, rank_pattern={"layers.0.self_attn.q_proj": 2, "down_proj": 3}, alpha_pattern={r"layers\.1\..*": 12})
plain("rslora-patterns", r=4, lora_alpha=6, use_rslora=True, rank_pattern={"^model.layers.0.*q_proj": 8}, alpha_pattern={"down_proj": 3})
plain("gaussian", train=False, r=2, lora_alpha=4, init_lora_weights="gaussian", target_modules=["v_proj"])
plain("orthogonal", train=False, r=2, lora_alpha=4, init_lora_weights="orthogonal", target_modules=["v_proj"])
plain("head", r=2, lora_alpha=4, target_modules=["lm_head"])
plain("head-tied-bfloat16", train=False, base="qwen3", dtype=torch.bfloat16, r=2, lora_alpha=4, target_modules=["lm_head", "q_proj"], layers_to_transform=None)

# Modules that are one in Phi-3. The second is what exports write: each part with rows of A and a block of B of its own.
FUSED = {"qkv_proj": [64, 32, 32], "gate_up_proj": [56, 56]}
for name, options in {"fused": {"r": 3, "lora_alpha": 6}, "fused-rslora": {"r": 4, "lora_alpha": 6, "use_rslora": True, "rank_pattern": {"qkv_proj": 2}},
                      "fused-diagonal": {"r": 2, "lora_alpha": 6, "rank_pattern": {"qkv_proj": 6, "gate_up_proj": 4}, "alpha_pattern": {"qkv_proj": 18, "gate_up_proj": 12}}}.items():
    peft = get_peft_model(model("phi3"), LoraConfig(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], **options))
    fill(peft)
    for n, p in peft.named_parameters():
        sizes = next((v for k, v in FUSED.items() if f".{k}.lora_B" in n), None)
        if name == "fused-diagonal" and sizes:
            with torch.no_grad():
                p.mul_(torch.block_diag(*[torch.ones(size, 2) for size in sizes])).add_(0)  # no zero is negative
    write(name, "phi3", peft, train=False)

# EVA chooses ranks, and alphas with them, and names each module.
peft = get_peft_model(model("llama"), LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj"], init_lora_weights="eva", eva_config=EvaConfig(rho=2.0)))
initialize_lora_eva_weights(peft, [{"input_ids": t[None], "attention_mask": torch.ones_like(t)[None]} for t in DATA], show_progress_bar=False)
steps(peft, 3)
write("eva", "llama", peft)

# PiSSA, trained, converted to plain LoRA. It is twice as large, and init_lora_weights is true.
with tempfile.TemporaryDirectory() as folder:
    peft = get_peft_model(model("llama"), LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights="pissa"))
    initial = os.path.join(folder, "initial")
    peft.peft_config["default"].init_lora_weights = True
    peft.save_pretrained(initial)
    peft.peft_config["default"].init_lora_weights = "pissa"
    steps(peft, 3)
    write("pissa-converted", "llama", peft, path_initial_model_for_weight_conversion=initial)

shutil.rmtree(here / "refused", ignore_errors=True)
for name, options in {
    "pissa": {}, "pissa_niter_4": {}, "olora": {}, "corda": {"corda_config": CordaConfig()}, "lora_ga": {"lora_ga_config": LoraGAConfig()}, "loftq": {},
}.items():
    try:
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=name, **options)
    except ImportError:  # loftq wants scipy to compute with
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"])
        config.init_lora_weights, config.loftq_config = name, {"loftq_bits": 4, "loftq_iter": 1}
    config.save_pretrained(here / "refused" / name)
    finish(here / "refused" / name)
