"""Writes a model directory of a small Qwen3 (hidden size 256, 4 layers, 4,096 tokens) with random weights and the built-in model's tokenizer, for `make bench CASE=sdk`.

    python randommodel.py DIRECTORY"""

import json
import pathlib
import random
import shutil
import struct
import sys

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_HEADS, HEAD_SIZE = 4096, 256, 768, 4, 8, 4, 32
CONTEXT = 4096


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        yield layer + "self_attn.q_proj.weight", (HEADS * HEAD_SIZE, HIDDEN)
        yield layer + "self_attn.k_proj.weight", (KEY_HEADS * HEAD_SIZE, HIDDEN)
        yield layer + "self_attn.v_proj.weight", (KEY_HEADS * HEAD_SIZE, HIDDEN)
        yield layer + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_SIZE)
        yield layer + "self_attn.q_norm.weight", (HEAD_SIZE,)
        yield layer + "self_attn.k_norm.weight", (HEAD_SIZE,)
        yield layer + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield layer + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield layer + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
        yield layer + "input_layernorm.weight", (HIDDEN,)
        yield layer + "post_attention_layernorm.weight", (HIDDEN,)


def values(source, shape):
    """Bfloat16: 1 for norms, else random signs and fractions with the exponent of 1/32."""
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if len(shape) == 1:
        return struct.pack("<H", 0x3F80) * count
    mask, exponent = (int.from_bytes(struct.pack("<H", bits) * count, "little") for bits in (0x807F, 0x3D00))
    return (source.getrandbits(16 * count) & mask | exponent).to_bytes(2 * count, "little")


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True)
    tiny_chat = pathlib.Path(__file__).parents[2] / "configs" / "models" / "tiny-chat"
    for name in "tokenizer.json", "tokenizer_config.json":
        shutil.copy(tiny_chat / name, directory)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps(config))
    source, header, data = random.Random(1), {}, []
    end = 0
    for name, shape in shapes():
        data.append(values(source, shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    text = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(data)


if __name__ == "__main__":
    main()
