"""A long run of reinforcement learning, with a new unnamed sampler at every step: what it leaves on the disk is bounded."""

import os

import numpy as np
import pytest
import tinker
from tinker import types

import sdkcalls
import tinsmith

STEPS = 5000 if os.environ.get("E2E_LEVEL") == "all" else 60
ROOM = 4  # MiB for the unnamed samplers of a key, which is five of these adapters
DRAWN = 16


def below(folder) -> int:
    """The bytes of all files in a folder where files come and go."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                pass
    return total


def rollouts(sampler, seed: int) -> list[types.Datum]:
    """Eight continuations, every second one good and the others bad."""
    data = []
    for i, sequence in enumerate(sdkcalls.sample(sampler, num_samples=8, max_tokens=DRAWN, seed=seed, stop=[]).sequences):
        tokens = sdkcalls.TOKENS + list(sequence.tokens)
        before = np.zeros(len(sdkcalls.TOKENS) - 1, np.float32)
        advantages = np.concatenate([before, np.full(DRAWN, (-1) ** i, np.float32)])
        logprobs = np.concatenate([before, np.asarray(sequence.logprobs, np.float32)])
        data.append(sdkcalls.datum(tokens, logprobs=logprobs, advantages=advantages))
    return data


def test_first_and_last_sampler_of_a_long_run(tmp_path):
    config = tinsmith.default_config(tmp_path)
    config["sampling"] = {"unnamed_mib": ROOM}
    server = tinsmith.Server(tmp_path, config=config).start()
    try:
        trainer = sdkcalls.trainer(sdkcalls.service(server))
        samplers, said = [], []

        def ask(sampler):
            sequence = sdkcalls.sample(sampler, max_tokens=DRAWN, seed=1, stop=[]).sequences[0]
            return list(sequence.tokens), list(sequence.logprobs)

        for step in range(STEPS):
            sampler = sdkcalls.client(trainer.save_weights_and_get_sampling_client())
            if step in (0, 1, STEPS - 1):
                samplers.append(sampler)
                said.append(ask(sampler))
            passed = trainer.forward_backward(rollouts(sampler, step), "importance_sampling")
            stepped = trainer.optim_step(types.AdamParams(learning_rate=1e-4))
            passed.result(), stepped.result()
            # The newest ones are pinned, and one may be just being written.
            assert below(tmp_path / "data" / "snapshots") < (ROOM + 4) << 20, step
        assert ask(samplers[0]) == said[0]
        assert ask(samplers[2]) == said[2]
        assert said[0] != said[2]
        with pytest.raises(tinker.RequestFailedError, match="sampling.unnamed_mib.*saved under a name"):
            ask(samplers[1])
    finally:
        server.stop()
