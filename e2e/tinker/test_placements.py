"""One script of Tinker and OpenAI calls over the four configurations that differ in the line `backend:` only, and over copies that share the weights out."""

import pathlib

import numpy as np
import openai
import pytest
import yaml
from safetensors.numpy import load_file
from tinker import types

import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: what is tested is the server")


def backend(name: str) -> dict:
    """The line of a configuration that we ship, with two threads and the type of the tests."""
    config = yaml.safe_load((tinsmith.ROOT / "configs" / f"{name}.yaml").read_text())
    return config["models"][0]["backend"] | {"dtype": "float32", "threads": 2}


def script(server) -> dict:
    """What a client sees: losses, samples with seeds, answers of the chat, and the final weights."""
    service = sdkcalls.service(server)
    run = sdkcalls.trainer(service, rank=8, seed=5)
    seen = {"losses": [], "tokens": [], "logprobs": []}
    data = [datum([*TOKENS[k:], k, 3 * k]) for k in range(5)]
    for i in range(4):
        passed = run.forward_backward(data, "cross_entropy")
        run.optim_step(types.AdamParams(learning_rate=2e-3)).result()
        seen["losses"].append(passed.result().metrics["loss:sum"])
        sampler = sdkcalls.client(run.save_weights_and_get_sampling_client())
        params = types.SamplingParams(max_tokens=16, seed=i, temperature=0.8, top_k=20, stop=[])
        for sequence in sampler.sample(prompt=sdkcalls.prompt(TOKENS), num_samples=3, sampling_params=params).result().sequences:
            seen["tokens"].append(list(sequence.tokens))
            seen["logprobs"] += sequence.logprobs
    run.save_weights_for_sampler("last").result()
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key)
    model = next(m.id for m in client.models.list() if m.id.endswith("/sampler_weights/last"))
    for name in (tinsmith.MODEL, model):
        answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Who are you?"}], temperature=0, max_tokens=24)
        seen["tokens"].append(answer.choices[0].message.content)
    (weights,) = pathlib.Path(server.config["data_dir"]).glob("checkpoints/*/*/last~*/adapter_model.safetensors")
    seen["weights"] = load_file(weights)
    return seen


def test_the_same_script_over_every_placement(own_server, tmp_path):
    seen, arithmetic = {}, {}
    placements = {name: backend(name) for name in ("single", "dataparallel", "split", "tensorparallel")}
    placements["shared out"] = placements["dataparallel"] | {"shard_base": True}
    for name, placed in placements.items():
        config = tinsmith.default_config(tmp_path / name)
        config["models"][0]["backend"] = placed
        server = own_server(config=config)
        arithmetic[name] = server.health()["models"][0]["arithmetic"]
        seen[name] = script(server)
        server.stop()
    # Equal strings promise equal bits, so that only the tensor-parallel ranks, which sum in another order, have another one.
    assert {name for name in placements if arithmetic[name] != arithmetic["single"]} == {"tensorparallel"}, arithmetic
    want = seen["single"]
    for name in ("dataparallel", "split", "shared out"):
        got = seen[name]
        assert {k: got[k] for k in ("losses", "tokens", "logprobs")} == {k: want[k] for k in ("losses", "tokens", "logprobs")}, name
        assert got["weights"].keys() == want["weights"].keys()
        assert all(got["weights"][k].tobytes() == want["weights"][k].tobytes() for k in want["weights"]), name
    got = seen["tensorparallel"]
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=1e-4)
    assert got["tokens"] == want["tokens"]
    np.testing.assert_allclose(got["logprobs"], want["logprobs"], rtol=1e-3, atol=1e-3)
    for key, weights in want["weights"].items():
        assert got["weights"][key].shape == weights.shape
        assert np.abs(got["weights"][key] - weights).max() <= 2e-2 * np.abs(weights).max() + 1e-6, key
