"""Makes tiny models with random weights of families of transformers, for tests: tiny.py DIR writes DIR/FAMILY for each. Seeded; nothing is downloaded."""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

small = dict(vocab_size=96, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=256)
grouped = dict(num_key_value_heads=2, head_dim=8)
tokens = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
CONFIGS = {
    "gemma2": lambda: transformers.Gemma2Config(**small, **grouped, **tokens, sliding_window=16, query_pre_attn_scalar=8),
    "glm4": lambda: transformers.Glm4Config(**small, **grouped, **tokens, partial_rotary_factor=0.5),
    "mixtral": lambda: transformers.MixtralConfig(**small, **grouped, **tokens, num_local_experts=4, num_experts_per_tok=2),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**small, **tokens),
    "gpt_oss": lambda: transformers.GptOssConfig(**small, **grouped, **tokens, num_local_experts=4, num_experts_per_tok=2, sliding_window=16, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
}
for family, config in CONFIGS.items():
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:  # larger than transformers' own, so that the model is sure of something
                p.copy_(torch.randn(p.shape) * (1.5 if "embed" in name else 2.0) / p.shape[-1] ** 0.5)
            else:
                p.add_(torch.randn(p.shape) * 0.1)
    model.save_pretrained(os.path.join(sys.argv[1], family))
