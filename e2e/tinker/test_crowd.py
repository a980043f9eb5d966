"""A run among 31 others, which train and sample all the time, has the bits of the same run alone, however the backend cuts its work."""

import itertools
import os
import random
import threading

import numpy as np
import pytest
from tinker import types

import sdkcalls
import tinsmith
from sdkcalls import VERSION, arrays, datum

pytestmark = [
    pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: what is tested is the server"),
    pytest.mark.skipif(os.environ.get("E2E_LEVEL") != "all", reason="crowds take a minute for each of eight settings: make test-all"),
]

STEPS, OTHERS = 20, 31
VOCABULARY = 4000  # token ids below this are ordinary ones of the built-in model

# Settings by the arithmetic that they have in common.
SETTINGS = {
    "float32": [
        {"plugin": "single", "threads": 2},
        {"plugin": "single", "threads": 1, "batch_tokens": 256, "recompute": "on"},
        {"plugin": "dataparallel", "devices": ["cpu"] * 3, "batch_tokens": 300},
        {"plugin": "dataparallel", "devices": ["cpu"], "sample_devices": ["cpu"], "sample_plugin": "single"},
        {"plugin": "tensorparallel", "devices": ["cpu"] * 2},
        {"plugin": "tensorparallel", "devices": ["cpu"] * 2, "batch_tokens": 300},
    ],
    "bfloat16": [{"plugin": "single", "dtype": "bfloat16"}, {"plugin": "single", "dtype": "bfloat16", "threads": 1, "batch_tokens": 200}],
}


def live(service, seed: int, name: str | None = None, ended=lambda: False) -> list[bytes]:
    """Trains and samples as the seed says: all log-probabilities that came back. Those of sampled tokens must be what forward gives. With a name the last weights are saved under it."""
    r = random.Random(seed)
    run = sdkcalls.trainer(service, rank=r.choice([1, 4, 8, 32]), seed=seed, **r.choice([{}, {"train_mlp": False}, {"train_attn": False}, {"train_unembed": False}]))
    seen = []
    for step in range(STEPS):
        if ended():
            return seen
        sequences = [[r.randrange(VOCABULARY) for _ in range(r.choice([2, 3, 17, 64, 100, 200, 333]))] for _ in range(r.randint(1, 6))]
        loss = r.choice(["cross_entropy", "importance_sampling", "ppo"])
        numbers = [[r.random() for _ in tokens[1:]] for tokens in sequences]
        if loss == "cross_entropy":
            data = [datum(tokens, weights=w) for tokens, w in zip(sequences, numbers)]
        else:
            data = [datum(tokens, logprobs=[-8 * x for x in w], advantages=[x - 0.5 for x in w]) for tokens, w in zip(sequences, numbers)]
        passed = run.forward_backward(data, loss)
        stepped = run.optim_step(types.AdamParams(learning_rate=r.choice([1e-4, 1e-3, 5e-3]), grad_clip_norm=r.choice([0.0, 0.3]), weight_decay=r.choice([0.0, 0.1])))
        seen += [each.tobytes() for each in arrays(passed.result())]
        stepped.result()
        if step % 4 == 3:
            sampler = sdkcalls.client(run.save_weights_and_get_sampling_client())
            tokens = [r.randrange(VOCABULARY) for _ in range(r.randint(1, 90))]
            params = types.SamplingParams(max_tokens=r.randint(5, 40), temperature=r.choice([0.0, 1.0]), top_p=r.choice([0.9, 1.0]), seed=r.randrange(1 << 30), stop=[])
            for sequence in sampler.sample(prompt=sdkcalls.prompt(tokens), num_samples=3, sampling_params=params).result().sequences:
                sampled = np.asarray(sequence.logprobs, np.float32).tobytes()
                assert sampled == sdkcalls.sampled_logprobs(run, tokens, sequence.tokens).tobytes()
                seen.append(sampled)
    if name:
        run.save_state(name).result()
    return seen


def result(server, others: int) -> tuple[list[bytes], dict[str, str]]:
    """What one run saw and the checksums of its checkpoint, with so many others beside it."""
    ended, failures = threading.Event(), []

    def other(number: int) -> None:
        service = sdkcalls.service(server)
        try:
            for turn in itertools.count():
                live(service, 1000 * (number + 1) + turn, ended=ended.is_set)
                if ended.is_set():
                    return
        except Exception as failure:  # noqa: BLE001 any is one too many
            failures.append(failure)

    beside = [threading.Thread(target=other, args=(i,)) for i in range(others)]
    for each in beside:
        each.start()
    try:
        seen = live(sdkcalls.service(server), 7, "last")
    finally:
        ended.set()
        for each in beside:
            each.join()
    assert failures == []
    return seen, server.checkpoint("last")


@pytest.mark.parametrize("arithmetic", SETTINGS)
def test_alone_and_in_a_crowd(arithmetic, own_server, tmp_path):
    want = None
    for number, backend in enumerate(SETTINGS[arithmetic]):
        for others in (0, OTHERS):
            config = tinsmith.default_config(tmp_path / f"{number}-{others}")
            config["models"][0]["backend"] = {"dtype": "float32"} | backend
            server = own_server(config=config)
            got = result(server, others)
            server.stop()
            want = want or got
            assert got == want, f"{backend} with {others} others"
