"""One script of Tinker and OpenAI calls over the four configurations that differ in the line `backend:` only, and over copies that share the weights out;
and a server whose line `backend:` changes between two starts over the same data."""

import pathlib
import subprocess

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
    assert set(arithmetic.values()) == {arithmetic["single"]}, arithmetic  # equal strings promise equal bits
    want = seen["single"]
    for name in placements:
        got = seen[name]
        assert {k: got[k] for k in ("losses", "tokens", "logprobs")} == {k: want[k] for k in ("losses", "tokens", "logprobs")}, name
        assert got["weights"].keys() == want["weights"].keys()
        assert all(got["weights"][k].tobytes() == want["weights"][k].tobytes() for k in want["weights"]), name


def sent(run, i: int):
    """A pass that i varies and a step, sent but not waited for."""
    data = [datum([*TOKENS[k:], 7 + i, 3 * k]) for k in range(5)]
    return run.forward_backward(data, "cross_entropy"), run.optim_step(types.AdamParams(learning_rate=2e-3, weight_decay=0.1))


def seen(passed, stepped, *samplers) -> dict:
    """What comes back from them, and samples from weights."""
    sequences = [
        sequence
        for sampler in samplers
        for sequence in sdkcalls.sample(sampler, num_samples=2, max_tokens=16, seed=3, temperature=0.8, top_k=20, stop=[]).sequences
    ]
    return {
        "losses": [passed.result().metrics["loss:sum"], stepped.result().metrics["grad_norm"]],
        "tokens": [list(s.tokens) for s in sequences],
        "logprobs": [lp for s in sequences for lp in s.logprobs] + np.concatenate([a.ravel() for a in sdkcalls.arrays(passed.result())]).tolist(),
    }


def step(run, i: int) -> dict:
    ahead = sent(run, i)
    return seen(*ahead, sdkcalls.client(run.save_weights_and_get_sampling_client()))


def test_a_checkpoint_of_one_placement_goes_on_under_another(own_server, tmp_path):
    config = tinsmith.default_config(tmp_path)
    config["models"][0]["backend"] = backend("single")
    server = own_server(config=config)
    first = sdkcalls.trainer(sdkcalls.service(server))
    for i in range(3):
        step(first, i)
    path = first.save_state("saved").result().path
    saved, went_on = server.checkpoint("saved"), {}
    for name in ("single", "dataparallel", "tensorparallel"):
        if name != "single":
            server.stop()
            server.place(backend(name))
            server.start()
        service = sdkcalls.service(server)
        run = sdkcalls.client(service.create_training_client_from_state_with_optimizer(path))
        went_on[name] = step(run, 3)
        run.save_state(name).result()
        loaded = sdkcalls.trainer(service, seed=99)  # the other way: into a run that has done nothing
        loaded.load_state_with_optimizer(path).result()
        assert step(loaded, 3) == went_on[name]
    for name in ("dataparallel", "tensorparallel"):
        assert went_on[name] == went_on["single"]
        assert server.checkpoint(name) == server.checkpoint("single")
    assert server.checkpoint("saved") == saved


class Live:
    """A client whose run and samplers live on while its server is started with other placements."""

    def __init__(self, server):
        self.run = sdkcalls.trainer(sdkcalls.service(server))
        step(self.run, 0)
        self.run.save_weights_for_sampler("named").result()
        self.run.save_state("before").result()
        self.unnamed = sdkcalls.client(self.run.save_weights_and_get_sampling_client())

    def send(self, i: int) -> None:
        self.ahead = sent(self.run, i)

    def receive(self) -> dict:
        later = self.run.save_weights_and_get_sampling_client()
        return seen(*self.ahead, self.unnamed, sdkcalls.client(later))


def test_a_live_run_goes_on_under_another_placement(own_server, tmp_path):
    """Its past is replayed to the same bits, because the arithmetic is the same. What was sent ahead is neither lost nor done twice."""
    config = tinsmith.default_config(tmp_path)
    config["models"][0]["backend"] = backend("single")
    server, undisturbed = own_server(config=config), own_server()
    lives = [Live(server), Live(undisturbed)]
    saved = [server.checkpoint(name) for name in ("named", "before")]
    for i, name in enumerate(("dataparallel", "tensorparallel", "single"), start=1):
        for each in lives:
            each.send(i)
        server.stop()
        server.place(backend(name))
        server.start()
        got, want = (each.receive() for each in lives)
        told = subprocess.run([tinsmith.BINARY, "runs", "--url", server.url], capture_output=True, text=True, check=True).stdout
        assert got == want
        assert "not bit-equal" not in told and "may differ in its bits" not in server.log()
        assert "lost:" not in told and lives[0].run.get_info().model_id in told
        assert not tinsmith.trouble(server.log())
        assert [server.checkpoint(name) for name in ("named", "before")] == saved
