"""Prints what llama.cpp reaches on the models that families.py writes: their own bfloat16 weights as a GGUF file below a
temporary folder, without an adapter.

`llamacpp_families.py FOLDER` prints lines NAME bfloat16 KIND TOKENS_PER_SECOND, where KIND is decode-1 or decode-8: so many
sequences token by token behind a context of 256, as families.py measures them. `llamacpp_families.py FOLDER TOKENS…` prints
the last token's logits behind these tokens instead, one model after the other, to be compared with another engine's.

Vectors, and the matrices that choose experts, are float32 in the file, as llama.cpp's own converter has them."""

import json
import os
import pathlib
import sys
import tempfile

import gguf
import llamacpp
import numpy

ATTENTION = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
}
LINEAR = {
    "in_proj_qkv.weight": "attn_qkv.weight", "in_proj_z.weight": "attn_gate.weight",
    "in_proj_a.weight": "ssm_alpha.weight", "in_proj_b.weight": "ssm_beta.weight",
    "conv1d.weight": "ssm_conv1d.weight", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight",
}
TOP = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def read_tensors(directory):
    """The tensors of a model's files by name, bfloat16 as 16 bits each."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                if entry["dtype"] != "BF16":
                    raise ValueError(f"{path}: {name} is {entry['dtype']}; only BF16 is read")
                tensors[name] = numpy.memmap(path, numpy.uint16, "r", 8 + size + entry["data_offsets"][0], tuple(entry["shape"]))
    return tensors


def widened(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def add(writer, name, bits):
    if bits.ndim == 1 or name.endswith(("ffn_gate_inp.weight", "ssm_conv1d.weight")):
        writer.add_tensor(name, widened(bits))
    else:
        writer.add_tensor(name, numpy.ascontiguousarray(bits).view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_layer(writer, config, layer, tensors):
    """Adds a layer, whose tensors are named without its prefix. Norms of Qwen3.5 are kept less one."""
    at, hybrid = f"blk.{layer}.", config["model_type"] == "qwen3_5_text"
    for name, bits in tensors.items():
        part, _, rest = name.partition(".")
        if part == "input_layernorm":
            to = "attn_norm.weight"
        elif part == "post_attention_layernorm":
            to = "post_attention_norm.weight" if hybrid else "ffn_norm.weight"
        elif part == "self_attn":
            to = ATTENTION[rest.partition(".")[0]] + ".weight"
        elif part == "linear_attn":
            to = LINEAR[rest]
        elif rest.startswith("experts."):
            continue
        elif rest == "gate.weight":
            to = "ffn_gate_inp.weight"
        else:
            to = "ffn_" + rest.partition("_")[0] + ".weight"
        if to == "ssm_a":
            writer.add_tensor(at + to, -numpy.exp(widened(bits)))
        elif to == "ssm_conv1d.weight":
            add(writer, at + to, bits[:, 0])
        elif hybrid and to.endswith("norm.weight") and to != "ssm_norm.weight":
            writer.add_tensor(at + to, 1 + widened(bits))
        else:
            add(writer, at + to, bits)
    for kind in ("gate", "up", "down") if "num_experts" in config else ():
        each = [tensors[f"mlp.experts.{e}.{kind}_proj.weight"] for e in range(config["num_experts"])]
        add(writer, f"{at}ffn_{kind}_exps.weight", numpy.stack(each))


def write(path, directory):
    """Writes a model directory as a GGUF file, and gives the size of its vocabulary."""
    config = json.loads((directory / "config.json").read_text())
    if "num_local_experts" in config:  # as transformers 5 writes it
        config["num_experts"] = config["num_local_experts"]
    architectures = {"qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35"}
    if config["model_type"] not in architectures:
        raise ValueError(f"{directory}: model_type is {config['model_type']}; allowed are {', '.join(architectures)}")
    writer = gguf.GGUFWriter(path, architectures[config["model_type"]])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    else:
        turned = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
        writer.add_rope_dimension_count(turned)
        writer.add_rope_dimension_sections([turned // 2, 0, 0, 0])  # text has one axis
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    layers = [{} for _ in range(config["num_hidden_layers"])]
    for name, bits in read_tensors(directory).items():
        name = name.removeprefix("model.").removeprefix("language_model.")
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            layers[int(layer)][rest] = bits
        elif name == "norm.weight" and config["model_type"] == "qwen3_5_text":
            writer.add_tensor(TOP[name], 1 + widened(bits))
        else:
            add(writer, TOP[name], bits)
    for layer, tensors in enumerate(layers):
        add_layer(writer, config, layer, tensors)
    llamacpp.finish(writer)
    return config["vocab_size"]


def main():
    threads, tokens = len(os.sched_getaffinity(0)), [int(t) for t in sys.argv[2:]]
    llamacpp.start(threads)
    for directory in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.gguf")
            engine = llamacpp.Engine(path, threads, write(path, directory))
            if tokens:
                engine.run([(t, i, 0, i == len(tokens) - 1) for i, t in enumerate(tokens)])
                print(directory.name, *engine.logits(len(tokens) - 1), flush=True)
                continue
            for sequences in 1, 8:
                print(directory.name, "bfloat16", f"decode-{sequences}", round(engine.decode(sequences), 2), flush=True)


main()
