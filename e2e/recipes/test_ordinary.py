"""One recipe of ordinary size: 500 supervised steps at rank 16, evaluated before and after."""

import tinker
from tinker import types
from transformers import AutoTokenizer

import tinsmith
import world
from test_recipes import mean, on, series

STEPS = 500


def right(service, tokenizer, model):
    """The share of held-out questions that greedy decoding answers exactly in the form that the data teaches."""
    client = service.create_sampling_client(**model).result()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    rows = [row["messages"] for row in world.sentences(world.sums(21, 64))]
    futures = [
        client.sample(
            prompt=types.ModelInput.from_ints(
                tokenizer.encode(f"<|im_start|>user\n{question['content']}<|im_end|>\n<|im_start|>assistant\n")
            ),
            num_samples=1,
            sampling_params=types.SamplingParams(max_tokens=24, temperature=0.0, stop=[end]),
        )
        for question, _ in rows
    ]
    answers = [tokenizer.decode(future.result().sequences[0].tokens, skip_special_tokens=True) for future in futures]
    # The renderer of Qwen3 trains with an empty thought before the answer.
    return mean([float(text.split("</think>")[-1].strip() == answer["content"]) for text, (_, answer) in zip(answers, rows)])


@on("0.5.8")
def test_chat_sl_of_ordinary_size(recipes):
    service = tinker.ServiceClient(base_url=recipes.server.url, api_key=recipes.server.key)
    tokenizer = AutoTokenizer.from_pretrained(world.MODEL)
    before = right(service, tokenizer, {"base_model": tinsmith.MODEL})
    rows = recipes.run(
        "chat_sl.train", "ordinary", 3000, dataset="no_robots", batch_size=8, num_epochs=4, max_steps=STEPS, lora_rank=16,
        learning_rate=5e-4, eval_every=100, save_every=100, rolling_save_every=20,
    )
    loss, held_out = series(rows, "train_mean_nll"), series(rows, "test/nll")
    assert len(loss) == STEPS
    assert mean(loss[-50:]) < 0.3 * mean(loss[:5]), (mean(loss[:5]), mean(loss[-50:]))
    assert held_out[-1] < 0.3 * held_out[0], held_out
    after = right(service, tokenizer, {"model_path": recipes.sampler("ordinary")})
    print(f"greedy answers right: {before:.0%} before, {after:.0%} after; held-out loss {held_out}")
    assert before == 0.0  # the form is new to the base model
    assert after > 0.7, after
