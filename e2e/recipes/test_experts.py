"""A model with mixtures of experts is served, trained and sampled; its adapter leaves as PEFT reads it and in the Tinker
service's layout, and comes back from both with equal bits."""

import json
import shutil
import subprocess

import pytest
import tinker
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from test_export import apart, datum, equal, reference
from tinker import types
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

import tinsmith
import world

TOLERANCE = 1e-4
NAME = "tinsmith/tiny-experts"


# Families with experts: the kind of the configuration of transformers, and how PEFT has LoRA on the experts.
FAMILIES = {"qwen3_moe": "apart", "qwen3_5_moe_text": "fused", "qwen3_next": "fused", "qwen3_vl_moe": "fused", "gpt_oss": "fused"}

HYBRID = {
    "shared_expert_intermediate_size": 48, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"],
}
VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 4, "deepstack_visual_indexes": [0],
}


def auto(family):
    return AutoModelForImageTextToText if family == "qwen3_vl_moe" else AutoModelForCausalLM


def mixture(folder, family="qwen3_moe", **settings):
    """Writes a model with experts of random weights with the built-in model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(world.MODEL)
    torch.manual_seed(5)
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True, "max_position_embeddings": 512,
        "tie_word_embeddings": False, "initializer_range": 0.1, **ids, **settings,
    }
    if family in ("qwen3_5_moe_text", "qwen3_next"):
        text |= HYBRID
    if family == "gpt_oss":
        text |= {"num_local_experts": text.pop("num_experts"), "intermediate_size": text.pop("moe_intermediate_size"), "sliding_window": 16}
        text["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 64,
        }
    if family == "qwen3_vl_moe":
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        config = AutoConfig.for_model(family, text_config=text, vision_config=VISION, tie_word_embeddings=False)
    else:
        config = AutoConfig.for_model(family, **text)
    model = auto(family).from_config(config).float()
    with torch.no_grad():  # transformers begins experts with other values than zero only in some versions
        for name, p in model.named_parameters():
            if ".experts." in name or "shared_expert_gate" in name or name.endswith(("bias", "sinks")):
                p.copy_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def mxfp4(folder):
    """Has the experts of a gpt-oss in MXFP4, as it is published. Their values become those that this can say."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks = tensors.pop(name).transpose(1, 2).unflatten(-1, (-1, 32))
        exponents = torch.floor(torch.log2(blocks.abs().amax(-1).clamp_min(1e-30))) - 2
        codes = (blocks[..., None] / torch.exp2(exponents)[..., None, None] - values).abs().argmin(-1)
        tensors[name + "_blocks"], tensors[name + "_scales"] = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8), (exponents + 127).to(torch.uint8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (folder / "config.json").write_text(json.dumps(config))


def served(own_server, tmp_path, family="qwen3_moe", change=lambda _: None, **settings):
    model = mixture(tmp_path / "model", family, **settings)
    change(model)
    backend = {"plugin": "single", "device": "cpu", "dtype": "float32"}
    server = own_server(config={"listen": "127.0.0.1:0", "data_dir": str(tmp_path / "data"), "models": [{"name": NAME, "path": str(model), "backend": backend}]})
    return server, model


def command(server, *arguments):
    return subprocess.run([tinsmith.BINARY, *arguments, "--url", server.url, "--key", server.key], capture_output=True, text=True, timeout=120)


def trained(server):
    """A training client after some steps, rows of text, and the metrics of the last step."""
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    training = service.create_lora_training_client(base_model=NAME, rank=8, seed=7).result()
    tokenizer = AutoTokenizer.from_pretrained(world.MODEL)
    rows = [tokenizer.encode(f"What is {a} + {b}? {a * b}") for a, b in world.sums(11, 6)]
    for _ in range(3):
        result = training.forward_backward([datum(row) for row in rows], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    return service, training, rows, result.result().metrics


def logprobs(client, rows):
    import numpy as np

    futures = [client.compute_logprobs(types.ModelInput.from_ints(row)) for row in rows]
    return [np.asarray(future.result()[1:], np.float32) for future in futures]


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_leave_and_return(own_server, tmp_path, family):
    server, model = served(own_server, tmp_path, family)
    service, training, rows, metrics = trained(server)
    assert 0 < metrics["e_frac_with_tokens:mean"] <= 1 and metrics["e_max_violation:max"] >= metrics["e_max_violation:mean"]
    path = training.save_weights_for_sampler("leaves").result().path
    ours = logprobs(service.create_sampling_client(model_path=path).result(), rows)

    peft, stacked, merged = tmp_path / "peft", tmp_path / "tinker", tmp_path / "merged"
    for arguments in (["export", path, peft], ["export", path, stacked, "--names", "tinker"], ["export", path, merged, "--merge"]):
        done = command(server, *arguments)
        assert done.returncode == 0, done.stderr
    tensors = load_file(stacked / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers.1.mlp.experts."
    assert tensors[prefix + "w1.lora_A.weight"].shape == (1, 8, 64) and tensors[prefix + "w2.lora_B.weight"].shape == (1, 64, 8)
    assert tensors[prefix + "w3.lora_B.weight"].shape == (6, 32, 8) and tensors[prefix + "w2.lora_A.weight"].shape == (6, 8, 32)
    assert "base_model.model.model.unembed_tokens.lora_A.weight" in tensors
    assert any(".experts.base_layer." in name for name in load_file(peft / "adapter_model.safetensors")) == (FAMILIES[family] == "fused")

    base = auto(family).from_pretrained(model, dtype=torch.float32).eval()
    alone = [reference(base, row) for row in rows]
    adapted = PeftModel.from_pretrained(base, peft).eval()
    assert apart(alone, ours) > 0.05, "the adapter does nothing"
    assert apart([reference(adapted, row) for row in rows], ours) < TOLERANCE
    whole, info = auto(family).from_pretrained(merged, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert apart([reference(whole.eval(), row) for row in rows], ours) < TOLERANCE

    for name, folder in (("from-peft", peft), ("from-tinker", stacked)):
        done = command(server, "import", folder, "--base", NAME, "--name", name)
        assert done.returncode == 0, done.stderr
        sampler = dict(line.split(":", 1) for line in done.stdout.strip().splitlines())["sample it"].strip()
        again = logprobs(service.create_sampling_client(model_path=sampler).result(), rows)
        assert equal(again, ours), name


def test_gpt_oss_as_published(own_server, tmp_path):
    server, _ = served(own_server, tmp_path, "gpt_oss", mxfp4)
    service, training, rows, _ = trained(server)
    path = training.save_weights_for_sampler("leaves").result().path
    ours = logprobs(service.create_sampling_client(model_path=path).result(), rows)
    merged = tmp_path / "merged"
    done = command(server, "export", path, merged, "--merge", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    whole, info = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert apart([reference(whole.eval(), row) for row in rows], ours) < TOLERANCE


def test_what_peft_reads_wrong_is_refused(own_server, tmp_path):
    server, _ = served(own_server, tmp_path, mlp_only_layers=[0])
    _, training, _, _ = trained(server)
    path = training.save_weights_for_sampler("leaves").result().path
    done = command(server, "export", path, tmp_path / "peft")
    assert done.returncode != 0 and "PEFT reads an adapter on both wrong" in done.stderr and "use tinker" in done.stderr
    done = command(server, "export", path, tmp_path / "tinker", "--names", "tinker")
    assert done.returncode == 0, done.stderr
    assert "w1" in json.loads((tmp_path / "tinker" / "adapter_config.json").read_text())["target_modules"]
    live = tmp_path / "live"  # the run itself has the same weights
    done = command(server, "export", training.get_info().model_id, live, "--names", "tinker")
    assert done.returncode == 0, done.stderr
    tensors, saved = (load_file(folder / "adapter_model.safetensors") for folder in (live, tmp_path / "tinker"))
    head = "base_model.model.{}.lora_A.weight".format  # as it is asked for, whatever export_names says
    assert head("model.unembed_tokens") in tensors and head("model.unembed_tokens") in saved and head("lm_head") not in tensors
    assert tensors.keys() == saved.keys() and all(torch.equal(tensors[name], saved[name]) for name in saved)
    shutil.rmtree(tmp_path / "tinker")
