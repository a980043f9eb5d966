"""A model of a family that Tinsmith's engine does not have, through the plugin `transformers`: refused by name without it, with it trained, sampled, chatted with, and taken out for PEFT."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import openai
import psutil
import pytest
import torch
import transformers
from peft import PeftModel
from tinker import types

import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: what is tested is the server")

TINY = tinsmith.ROOT / "configs" / "models" / "tiny-chat"
NAME = "tests/tiny-gemma"
BACKEND = {"plugin": "transformers", "python": sys.executable, "dtype": "float32", "threads": 2, "max_context_length": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Gemma 2 of random weights with the tokenizer of the built-in model."""
    made = tmp_path_factory.mktemp("gemma")
    for file in TINY.glob("*"):
        if file.is_file() and file.name not in ("config.json", "model.safetensors", "README.md"):
            shutil.copy(file, made)
    config = transformers.Gemma2Config(
        vocab_size=4096, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=12, query_pre_attn_scalar=12, sliding_window=32,
        max_position_embeddings=512, pad_token_id=4087, bos_token_id=4087, eos_token_id=4089,
    )
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made)
    shutil.copy(TINY / "generation_config.json", made)
    return made


def configuration(place: pathlib.Path, model: pathlib.Path, **backend) -> dict:
    config = tinsmith.default_config(place)
    config["models"] = [{"name": NAME, "path": str(model), "backend": backend or BACKEND}]
    return config


@pytest.fixture(scope="module")
def server(tmp_path_factory, folder):
    place = tmp_path_factory.mktemp("other")
    server = tinsmith.Server(place, config=configuration(place, folder)).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def trained(server):
    run = sdkcalls.trainer(sdkcalls.service(server), base_model=NAME, rank=4, seed=5)
    losses = [sdkcalls.train(run, rate=1e-2).metrics["loss:sum"] for _ in range(6)]
    assert losses[-1] < 0.7 * losses[0], losses
    return run


def test_what_is_sampled_has_the_trainers_bits(trained):
    sampler = sdkcalls.client(trained.save_weights_and_get_sampling_client())
    for temperature in (1.0, 0.0):
        answer = sdkcalls.sample(sampler, num_samples=2, max_tokens=12, temperature=temperature, seed=3, stop=[])
        for sequence in answer.sequences:
            assert len(sequence.tokens) == 12
            assert np.array_equal(np.asarray(sequence.logprobs, np.float32), sdkcalls.sampled_logprobs(trained, TOKENS, sequence.tokens))
    again = sdkcalls.sample(sampler, num_samples=1, max_tokens=12, temperature=1.0, seed=3, stop=[])
    first = sdkcalls.sample(sampler, num_samples=2, max_tokens=12, temperature=1.0, seed=3, stop=[])
    assert again.sequences[0].tokens == first.sequences[0].tokens


def test_chat(server, trained):
    trained.save_weights_for_sampler("chat").result()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key)
    tuned = next(m.id for m in client.models.list() if m.id.endswith("/sampler_weights/chat"))
    for model in (NAME, tuned):
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Who are you?"}], temperature=0, max_tokens=8)
        assert answer.usage.completion_tokens == 8 or answer.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Who are you?"}], temperature=0, max_tokens=8, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream if part.choices) == (answer.choices[0].message.content or "")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}
    answer = client.chat.completions.create(
        model=tuned, messages=[{"role": "user", "content": "A number?"}], extra_body=form, max_tokens=64, reasoning_effort="none"
    )
    assert json.loads(answer.choices[0].message.content)["n"] in (1, 2)


def test_export_for_peft(server, trained, folder, tmp_path):
    path = trained.save_weights_for_sampler("out").result().path
    ours = sdkcalls.logprobs(trained)
    done = subprocess.run(
        [tinsmith.BINARY, "export", path, tmp_path / "peft", "--url", server.url, "--key", server.key], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    def reference(of):
        with torch.no_grad():
            scores = torch.log_softmax(of(torch.tensor([TOKENS])).logits[0, :-1].double(), -1)
        return scores.gather(1, torch.tensor(TOKENS[1:])[:, None])[:, 0].numpy()

    base = reference(model)
    assert np.abs(reference(PeftModel.from_pretrained(model, tmp_path / "peft").eval()) - ours).max() < 1e-4
    assert np.abs(base - ours).max() > 0.5, "the training has changed too little to show anything"


def test_a_worker_that_is_killed_comes_back_with_the_same_bits(own_server, folder, tmp_path):
    server = own_server(config=configuration(tmp_path / "killed", folder))
    run = sdkcalls.trainer(sdkcalls.service(server), base_model=NAME, rank=4, seed=5)
    for _ in range(2):
        sdkcalls.train(run)
    before = sdkcalls.logprobs(run)
    (plugin,) = [p for p in server.plugins() if p.name() == "transformers"]
    (worker,) = plugin.children()
    worker.kill()
    psutil.wait_procs([plugin, worker], timeout=60)
    assert np.array_equal(sdkcalls.logprobs(run), before)
    said = server.log()
    assert f"process {worker.pid}" in said and "died: signal: killed" in said
    left = server.plugins()
    server.kill_gateway()
    deadline = time.monotonic() + 30
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in left):
        assert time.monotonic() < deadline, f"the gateway's end left {left}"
        time.sleep(0.1)


def test_without_the_plugin_it_is_refused_and_told_where_to_go(folder, tmp_path):
    config = configuration(tmp_path / "refused", folder, plugin="single", device="cpu")
    config["models"] += tinsmith.default_config(tmp_path / "refused")["models"]  # a server without any model ends
    server = tinsmith.Server(tmp_path / "refused", config=config).start(status="degraded")
    try:
        assert re.search(r"Gemma2ForCausalLM.*plugin transformers.*docs/other-models\.md", server.log())
    finally:
        server.stop()
    assert (tinsmith.ROOT / "docs" / "other-models.md").exists()


def test_check_config_knows_the_section(folder, tmp_path):
    for backend, says in (
        (BACKEND, None),
        (BACKEND | {"python": "python3"}, "python"),
        (BACKEND | {"trust_remote_code": "yes"}, "trust_remote_code"),
        (BACKEND | {"dtype": "int4"}, "dtype"),
    ):
        file = tmp_path / "config.yaml"
        file.write_text(json.dumps(configuration(tmp_path / "checked", folder, **backend)))
        done = subprocess.run([tinsmith.BINARY, "check-config", file], capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == (says is None), done.stdout + done.stderr
        assert says is None or says in done.stdout + done.stderr
