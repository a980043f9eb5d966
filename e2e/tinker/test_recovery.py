"""The server dies at random moments, or the network is bad, while the SDK trains and samples: its user sees no error, and everything is what an
undisturbed server gives, bit by bit."""

import os
import random
import threading
import time

import numpy as np
import pytest
from tinker import types

import proxy
import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum

pytestmark = pytest.mark.skipif(VERSION < (0, 38), reason="one version is enough: what is tested is the server")

ALL = os.environ.get("E2E_LEVEL") == "all"


class Life:
    """A client that trains two runs, samples from unnamed samplers of one of them, and writes down all that it sees."""

    def __init__(self, server, **options):
        service = sdkcalls.service(server, **options)
        self.runs = [sdkcalls.trainer(service), sdkcalls.trainer(service, rank=4, seed=6)]
        self.base = sdkcalls.client(service.create_sampling_client(base_model=tinsmith.MODEL))
        self.seen: list = []

    def step(self, i: int) -> None:
        """One step of each run, sent ahead; then samples from the new weights and from the base model, at once."""
        passes = [run.forward_backward([datum([*TOKENS, i, i + j]), datum(TOKENS[j:])], "cross_entropy") for j, run in enumerate(self.runs)]
        steps = [run.optim_step(types.AdamParams(learning_rate=1e-3)) for run in self.runs]
        for each in passes:
            self.seen += [a.tobytes() for a in sdkcalls.arrays(each.result())]
        self.seen += [each.result().metrics["grad_norm"] for each in steps]
        sampler = sdkcalls.client(self.runs[i % 2].save_weights_and_get_sampling_client())
        params = types.SamplingParams(max_tokens=12, seed=i, stop=[])
        futures = [s.sample(prompt=sdkcalls.prompt([*TOKENS, n]), num_samples=2, sampling_params=params) for s in (sampler, self.base) for n in range(4)]
        for future in futures:
            for sequence in future.result().sequences:
                self.seen += [tuple(sequence.tokens), np.asarray(sequence.logprobs, np.float32).tobytes()]

    def end(self) -> None:
        for name, run in zip(("first", "second"), self.runs, strict=True):
            run.save_state(name).result()


def same(server, life: Life, undisturbed, steps: int) -> None:
    """Compares a life with an undisturbed one of as many steps."""
    other = Life(undisturbed)
    for i in range(steps):
        other.step(i)
    other.end()
    assert len(life.seen) == len(other.seen)
    different = [i for i, (a, b) in enumerate(zip(life.seen, other.seen, strict=True)) if a != b]
    assert not different, f"{len(different)} of {len(life.seen)} results differ, the first is number {different[0]}"
    for name in ("first", "second"):
        assert server.checkpoint(name) == undisturbed.checkpoint(name)


def test_killed_at_random_moments(own_server):
    server = own_server()
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    kills, over, failed = 60 if ALL else 5, threading.Event(), []

    def reaper() -> None:
        try:
            for n in range(kills):
                time.sleep(chance.uniform(0.05, 1.2))
                victim = ("gateway", "backend", "both")[n % 3]
                if victim == "backend":
                    for plugin in server.plugins():
                        plugin.kill()
                    continue
                (server.kill_gateway if victim == "gateway" else server.kill)()
                server.start()
        except Exception as error:  # noqa: BLE001
            failed.append(error)
        finally:
            over.set()

    life = Life(server)
    thread = threading.Thread(target=reaper)
    thread.start()
    steps = 0
    while not over.is_set() or steps < 3:
        life.step(steps)
        steps += 1
    thread.join()
    assert not failed, failed
    life.end()
    same(server, life, own_server(), steps)


@pytest.mark.parametrize("seed", range(8 if ALL else 2))
def test_bad_network(own_server, seed):
    server = own_server()
    network = proxy.BadNetwork(seed, 0.25)
    with proxy.Proxy(server.url, network=network) as between:
        life = Life(server, base_url=between.url)
        steps = 0
        while steps < 4 or (set(network.done) != set(network.KINDS) and steps < 40):
            life.step(steps)
            steps += 1
        life.end()
        assert set(network.done) == set(network.KINDS), network.done
        same(server, life, own_server(), steps)
