"""lm-eval, unmodified, against the real server: generation through chat, and log-likelihoods through completions with echo."""

import json
import math

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

import tinsmith

TOKENIZER = str(tinsmith.ROOT / "configs" / "models" / "tiny-chat")
ROWS = [{"question": f"{a} + {b} =", "answer": str(a + b), "wrong": str(a + b + 7)} for a in range(4) for b in range(3)]

GENERATE = """
task: sums_generate
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n", "<|im_end|>"], max_gen_toks: 12, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
task: sums_choose
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{[answer, wrong]}}"
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def tasks(tmp_path):
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, text in {"generate": GENERATE, "choose": CHOOSE}.items():
        (tmp_path / f"{name}.yaml").write_text(text.replace("DATA", json.dumps(str(data))))
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


@pytest.fixture(autouse=True)
def key(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", server.key)


def evaluate(tasks, model, name, arguments, **more):
    return lm_eval.simple_evaluate(model=model, model_args={"model": tinsmith.MODEL, "max_retries": 1, **arguments}, tasks=[name], task_manager=tasks, log_samples=True, bootstrap_iters=0, **more)


def test_chat(tasks, server):
    made = evaluate(
        tasks, "local-chat-completions", "sums_generate", {"base_url": server.url + "/v1/chat/completions", "num_concurrent": 4, "eos_string": "<|im_end|>"}, apply_chat_template=True
    )
    samples = made["samples"]["sums_generate"]
    assert len(samples) == len(ROWS) and all(isinstance(sample["resps"][0][0], str) and sample["resps"][0][0] for sample in samples)
    right = sum(sample["exact_match"] for sample in samples) / len(samples)
    assert made["results"]["sums_generate"]["exact_match,none"] == pytest.approx(right)


@pytest.mark.parametrize("tokenized", [True, False])
def test_log_likelihoods(tasks, server, tokenized):
    made = evaluate(tasks, "local-completions", "sums_choose", {"base_url": server.url + "/v1/completions", "tokenizer": TOKENIZER, "tokenizer_backend": "huggingface", "tokenized_requests": tokenized, "batch_size": 1})
    samples = made["samples"]["sums_choose"]
    assert len(samples) == len(ROWS)
    for sample in samples:
        likelihoods = [response[0][0] for response in sample["resps"]]
        assert len(likelihoods) == 2 and all(math.isfinite(float(each)) and float(each) < 0 for each in likelihoods)
    assert 0 <= made["results"]["sums_choose"]["acc,none"] <= 1
