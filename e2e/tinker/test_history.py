"""What a run was like stays: its series are the same live, after the server was killed, after the session has ended and after a restart."""

import json
import subprocess
import urllib.parse

import numpy as np
import pytest
from tinker import types

import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: what is tested is the server")


def get(server, path, **query):
    status, _, body = tinsmith.request(server, "GET", f"/api/v1/tinsmith/runs{path}?{urllib.parse.urlencode(query)}")
    assert status == 200, body
    return json.loads(body)


def series(server, run, **query):
    return {(s["source"], s["name"]): (s["steps"], s["values"]) for s in get(server, f"/{run}/series", points=10000, **query)["series"]}


def tinsmith_command(server, *arguments, good=True):
    done = subprocess.run([tinsmith.BINARY, *arguments, "--url", server.url], capture_output=True, text=True, timeout=120)
    assert not good or done.returncode == 0, done.stderr
    return done.stdout


def test_series_of_a_run(own_server, tmp_path):
    server = own_server()
    service = sdkcalls.service(server, user_metadata={"recipe_name": "facts"}, display_name="the first try")
    training = sdkcalls.trainer(service, user_metadata={"colour": "red"})
    run = training.get_info().model_id
    losses, norms, rates = [], [], []

    def step(i):
        rates.append(1e-3 * (i + 1))
        data = [datum([*TOKENS, i]), datum(TOKENS[2:])]
        backward, update = training.forward_backward(data, "cross_entropy"), training.optim_step(types.AdamParams(learning_rate=rates[-1]))
        result = backward.result()
        weights = sum(np.asarray(d.loss_fn_inputs["weights"].data).sum() for d in data)
        losses.append(result.metrics["loss:sum"] / weights)
        norms.append(update.result().metrics["grad_norm"])

    for i in range(4):
        step(i)
    training.forward([datum()], "cross_entropy").result()
    training.forward_backward([datum()], "cross_entropy").result()  # belongs to the step that comes after the kill
    server.kill()
    server.start()
    update = training.optim_step(types.AdamParams(learning_rate=5e-3))
    norms.append(update.result().metrics["grad_norm"])
    rates.append(5e-3)
    for i in range(5, 70):
        step(i)

    # What the likeliest tokens of a prompt leave open: their entropy, with all others as one class.
    sampler = training.save_weights_and_get_sampling_client()
    answer = sampler.sample(types.ModelInput.from_ints([5, 6, 7, 8]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=1), topk_prompt_logprobs=5).result()
    entropies = []
    for row in answer.topk_prompt_logprobs[1:]:
        p = np.exp(np.array([logprob for _, logprob in row], np.float64))
        p = np.append(p, 1 - p.sum())
        entropies.append(-np.sum(p * np.log(p)))
    assert len(entropies) == 3

    # A policy that has moved on from the one that sampled.
    old = np.asarray(sdkcalls.logprobs(training), np.float32)
    advantages = np.ones(len(old), np.float32)
    policy = datum(logprobs=old + 0.3, advantages=advantages)
    training.forward_backward([policy], "ppo").result()
    training.optim_step(types.AdamParams(learning_rate=1e-4)).result()

    def check():
        got = series(server, run)
        steps = list(range(1, 72))
        assert got["server", "learning_rate"] == (steps, [*rates, 1e-4])
        assert got["server", "grad_norm"][0] == steps and got["server", "grad_norm"][1][:-1] == norms
        loss = got["server", "loss"]
        assert loss[0] == steps
        np.testing.assert_allclose(np.delete(loss[1], [4, 70]), losses, rtol=1e-9)
        for name in ("adapter_norm", "tokens", "tokens_per_second", "clock_cycle", "queue_seconds"):
            assert got["server", name][0] == steps, name
        kinds = [values for (_, name), (at, values) in got.items() if name.startswith("adapter_norm/") and at == steps]
        assert len(kinds) == 8 and ("server", "adapter_norm/q_proj") in got
        np.testing.assert_allclose(np.sqrt(np.sum(np.square(kinds), axis=0)), got["server", "adapter_norm"][1], rtol=1e-9)
        assert got["server", "prompt_entropy_topk"][0] == [71]
        np.testing.assert_allclose(got["server", "prompt_entropy_topk"][1], [np.mean(entropies)], rtol=1e-4)
        np.testing.assert_allclose(got["server", "entropy"][1], [-np.mean(old + 0.3)], rtol=1e-4)
        assert got["server", "validation/loss"][0][0] == 4
        (at,), (mean,) = got["server", "ratio_mean"]
        assert at == 71
        np.testing.assert_allclose([mean, got["server", "kl_k1"][1][0], got["server", "kl_k3"][1][0]], [np.exp(-0.3), 0.3, np.exp(-0.3) - 1 + 0.3], rtol=1e-4)
        assert got["server", "clipped_share"][1] == [0]
        return got

    live = check()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 0, "env/all/reward/total": 0.25, "x": NaN}\n{"step": 1, "env/all/reward/total": 0.5, "name": "no number"}\n')
    assert "2 lines sent" in tinsmith_command(server, "metrics", run, str(metrics))
    assert "2 lines sent" in tinsmith_command(server, "metrics", run, str(metrics))  # again, which changes nothing
    assert series(server, run, names="x,env/all/reward/total") == {("client", "env/all/reward/total"): ([0, 1], [0.25, 0.5]), ("client", "x"): ([0], [None])}
    for text in (tinsmith_command(server, "runs"), tinsmith_command(server, "runs", run), tinsmith_command(server, "models")):
        assert "the first try, facts" in text and "colour=red" in text
    drawn = tinsmith_command(server, "runs", run)
    assert "env/all/reward/total: 0.5, from the client" in drawn and "loss: " in drawn and "⠉" in drawn
    assert json.loads(tinsmith_command(server, "runs", "--json"))["runs"][0]["display_name"] == "the first try"
    assert json.loads(tinsmith_command(server, "models", "--json"))["data"]

    session = run.split(":")[0]
    status, _, body = tinsmith.request(server, "POST", f"/api/v1/sessions/{session}/finish", {"reason": {"type": "success"}})
    assert status < 300, body
    server.stop()
    server.start()
    ended = check()
    assert {k: v for k, v in ended.items() if k[0] == "server"} == live
    (one,) = get(server, "", state="all")["runs"]
    assert (one["run_id"], one["state"], one["display_name"], one["recipe"]) == (run, "ended", "the first try", "facts")
    assert "ended" in tinsmith_command(server, "runs", "--all")

    status, headers, body = tinsmith.request(server, "GET", f"/api/v1/tinsmith/runs/{run}/events?from=71")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert b"event: points" in body and b'"step":71' in body and body.rstrip().endswith(b"}") and b"event: end" in body
