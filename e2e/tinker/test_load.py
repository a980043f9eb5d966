"""What takes long or comes in large numbers: operations of minutes, idle and dead clients, thousands of samples, a server that is full."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest
from tinker import types

import proxy
import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum

slow = pytest.mark.skipif(os.environ.get("E2E_LEVEL") != "all", reason="takes minutes: runs with make test-all")


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def metric(server, name: str) -> float:
    """The sum of one metric over its labels."""
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", fetch(server.url + "/metrics"), re.M)
    assert found, f"no metric {name}"
    return sum(map(float, found))


def until(true, seconds: float) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(1)
    return true()


def config(folder: pathlib.Path, **more) -> dict:
    return tinsmith.default_config(folder) | more


def script(tmp_path: pathlib.Path, server, text: str, **environment: str) -> subprocess.CompletedProcess:
    """A client in a process of its own."""
    file = tmp_path / "client.py"
    file.write_text(text)
    return subprocess.run([sys.executable, file], env=tinsmith.environment(server, PYTHONPATH=tinsmith.modules(), **environment), capture_output=True, text=True, timeout=240)


# In a process of its own, because clients that earlier tests have left behind there would say that their servers are gone.
PATIENT = """
import json, logging, sdkcalls, time, tinker
if __name__ == "__main__":
    said = []
    keep = logging.Handler(logging.WARNING)
    keep.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tinker").addHandler(keep)
    run = sdkcalls.trainer(tinker.ServiceClient())
    begun = time.monotonic()
    outputs = run.forward_backward([sdkcalls.datum()], "cross_entropy").result().loss_fn_outputs
    print(json.dumps({"outputs": len(outputs), "took": time.monotonic() - begun, "begun": begun, "said": said}), flush=True)
"""


@slow
@pytest.mark.version
def test_operation_of_two_minutes(own_server, tmp_path):
    """The client polls without haste and without a warning, and its heartbeats go on meanwhile."""
    settings = config(tmp_path / "slow")
    settings["models"][0]["backend"] = {"plugin": "fake", "delays": [{"operation": "forward_backward", "seconds": 125}]}
    server = own_server(config=settings)
    with proxy.Proxy(server.url) as between:
        done = script(tmp_path, server, PATIENT, TINKER_BASE_URL=between.url)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.strip().splitlines()[-1])
        end = told["begun"] + told["took"]  # the clock of all processes
        polls = [e for e in between.seen if e.path.startswith(proxy.API + "/retrieve_future") and told["begun"] < e.time < end]
        heartbeats = [e for e in between.to("/session_heartbeat") if told["begun"] < e.time < end]
    assert told["outputs"] == 1 and told["took"] > 120
    assert all(20 <= later.time - earlier.time <= 40 for earlier, later in zip(polls, polls[1:])), [e.time - told["begun"] for e in polls]
    assert 3 <= len(polls) <= 7
    assert 9 <= len(heartbeats) <= 15 and all(e.status == 200 for e in heartbeats)
    assert told["said"] == []


ABANDONED = """
import json, os, signal
import sdkcalls, tinker
if __name__ == "__main__":
    run = sdkcalls.trainer(tinker.ServiceClient())
    sdkcalls.train(run)
    path = run.save_weights_for_sampler("left").result().path
    print(json.dumps({"path": path, "model": run.get_info().model_id, "logprobs": sdkcalls.logprobs(run).tolist()}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@slow
@pytest.mark.version
def test_session_of_a_killed_client_expires(own_server, tmp_path):
    """Its model leaves the memory, its checkpoints stay."""
    server = own_server(config=config(tmp_path / "expiring", sessions={"expire_after": "2m"}))
    done = script(tmp_path, server, ABANDONED)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = json.loads(done.stdout.strip().splitlines()[-1])
    served = lambda: {m["id"] for m in json.loads(fetch(server.url + "/v1/models"))["data"]}  # noqa: E731
    ended = time.monotonic()
    run = f"tinker://{left['model']}"
    assert run in served()
    assert until(lambda: metric(server, "tinsmith_adapters") == 1, 20)  # the plugin tells its state once in a while
    assert until(lambda: metric(server, "tinsmith_adapters") == 0, 240)
    assert time.monotonic() - ended > 100
    assert metric(server, "tinsmith_adapter_memory_bytes") == 0
    assert run not in served()
    service = sdkcalls.service(server)
    assert [c.tinker_path for c in service.create_rest_client().list_checkpoints(left["model"]).result().checkpoints] == [left["path"]]
    sampler = sdkcalls.client(service.create_sampling_client(model_path=left["path"]))
    assert sampler.compute_logprobs(sdkcalls.prompt()).result()[1:] == left["logprobs"]


@slow
@pytest.mark.version
def test_two_thousand_samples_at_once(own_server):
    """All finish, and the gateway needs no more memory and threads of control for them than the requests in flight explain."""
    server = own_server()
    sampler = sdkcalls.client(sdkcalls.service(server).create_sampling_client(base_model=tinsmith.MODEL))
    ask = lambda i: sampler.sample(  # noqa: E731
        prompt=sdkcalls.prompt([*TOKENS, i]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=8, seed=i, stop=[])
    )
    expected = {i: ask(i).result().sequences[0].tokens for i in (0, 777, 1999)}
    gateway = psutil.Process(server.process.pid)
    before, peak, threads = gateway.memory_info().rss, 0, 0
    futures = [ask(i) for i in range(2000)]
    for i, future in enumerate(futures):
        tokens = future.result(timeout=600).sequences[0].tokens
        assert len(tokens) == 8 and tokens == expected.get(i, tokens)
        if i % 100 == 0:
            peak, threads = max(peak, gateway.memory_info().rss), max(threads, metric(server, "go_goroutines"))
    print(f"resident {before >> 20} MiB before, at most {peak >> 20} MiB; at most {threads:.0f} goroutines")
    assert peak - before < 300 << 20
    assert threads < 10000
    # What is left over are the client's idle connections, which both sides keep for a while.
    assert until(lambda: metric(server, "go_goroutines") < len(gateway.net_connections("tcp")) + 200, 60)


@pytest.mark.version
def test_full_server_slows_clients_down(own_server, tmp_path):
    """Samples that are refused for now come again; none is lost and none fails."""
    server = own_server(config=config(tmp_path / "full", sampling={"max_waiting": 8}))
    with proxy.Proxy(server.url) as between:
        sampler = sdkcalls.client(sdkcalls.service(server, base_url=between.url).create_sampling_client(base_model=tinsmith.MODEL))
        ask = lambda i: sampler.sample(  # noqa: E731
            prompt=sdkcalls.prompt([*TOKENS, i]), num_samples=1, sampling_params=types.SamplingParams(max_tokens=24, seed=i, stop=[])
        )
        refused = lambda: [e for e in between.to("/asample") if e.status == 429]  # noqa: E731
        (backend,) = psutil.Process(server.process.pid).children()
        backend.suspend()  # else a fast one is never full
        try:
            futures = [ask(i) for i in range(40)]
            assert until(refused, 60)
        finally:
            backend.resume()
        got = [future.result(timeout=240).sequences[0].tokens for future in futures]
        assert all(json.loads(e.answer)["detail"] for e in refused())
        assert all(ask(i).result().sequences[0].tokens == got[i] for i in (0, 20, 39))


@pytest.mark.skipif(VERSION < (0, 23), reason="bodies are compressed since 0.22")
@pytest.mark.version
def test_compressed_requests(server):
    """A server behind which the client compresses (client/config can ask for it) computes the same."""
    plain, squeezed = [], []
    for settings, results in (({}, plain), ({"proto_write_fwdbwd": True, "proto_compress_fwdbwd": True}, squeezed)):
        with proxy.Proxy(server.url, settings=settings) as between:
            run = sdkcalls.trainer(sdkcalls.service(server, base_url=between.url))
            for _ in range(2):
                results.append(sdkcalls.train(run).loss_fn_outputs[0]["logprobs"].data)
            sent = between.to("/forward_backward")
            encodings = {e.headers.get("content-encoding") for e in sent}
            assert encodings == ({"zstd"} if settings else {None})
            assert sent[0].body.startswith(b"\x28\xb5\x2f\xfd") == bool(settings)
    assert squeezed == plain
