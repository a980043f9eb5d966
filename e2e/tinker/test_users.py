"""Several users on one server: limits of keys as the SDK meets them, HTTPS, rotated keys, and what `tinsmith usage` tells."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest
from tinker import types

import sdkcalls
import tinsmith

LONG = [11 + i % 2000 for i in range(200)]


def limited(own_server, tmp_path, **limits):
    """A server on which ann has limits and bob has none."""
    config = tinsmith.default_config(tmp_path) | {"limits": {"keys": {"ann": limits}}}
    return own_server(config=config, keys=("ann", "bob"))


def of(server, name):
    return sdkcalls.service(server, api_key=server.keys[name])


def test_sdk_waits_for_its_minute(own_server, tmp_path):
    """Every pass of a run over the limit is done in the end, once and in order; the other key does not wait."""
    server = limited(own_server, tmp_path, trained_tokens_per_minute=6000)  # 100 a second
    ann, bob = sdkcalls.trainer(of(server, "ann")), sdkcalls.trainer(of(server, "bob"))
    data = [sdkcalls.datum(LONG) for _ in range(31)]
    outputs = []
    begun = time.monotonic()
    for trainer in (bob, ann):
        done = []
        for _ in range(2):  # the second one begins when the first has run off
            done.append(trainer.forward_backward(data, "cross_entropy"))
            done.append(trainer.optim_step(types.AdamParams(learning_rate=1e-3)))
        outputs.append([one.result() for one in done])
        if trainer is bob:
            undisturbed = time.monotonic() - begun
    assert time.monotonic() - begun > undisturbed, "the limit held nobody up"
    for quick, slow in zip(*outputs):
        if hasattr(quick, "loss_fn_outputs"):
            assert quick.metrics["loss:sum"] == slow.metrics["loss:sum"], "what was refused for a while changed the result"
    assert not tinsmith.trouble(server.log())
    used = json.loads(command(server, "usage", "--json"))
    today = {row["key"]: row for row in used["days"]}
    assert list(today) == ["ann"] and today["ann"]["steps"] == 2 and today["ann"]["trained_tokens"] == 2 * 31 * (len(LONG) - 1)


def test_samples_in_flight(own_server, tmp_path):
    server = limited(own_server, tmp_path, samples=2, sampled_tokens_per_minute=100000)
    sampler = sdkcalls.client(of(server, "ann").create_sampling_client(base_model=tinsmith.MODEL))
    drawn = [
        sampler.sample(prompt=sdkcalls.prompt(), num_samples=1, sampling_params=types.SamplingParams(max_tokens=16, seed=i, temperature=1.0)) for i in range(12)
    ]
    tokens = [tuple(one.result().sequences[0].tokens) for one in drawn]
    free = sdkcalls.client(of(server, "bob").create_sampling_client(base_model=tinsmith.MODEL))
    assert tokens == [tuple(sdkcalls.sample(free, max_tokens=16, seed=i, temperature=1.0).sequences[0].tokens) for i in range(12)]


def test_runs_at_once(own_server, tmp_path):
    server = limited(own_server, tmp_path, runs=1)
    service = of(server, "ann")
    first = sdkcalls.trainer(service)
    run = first.get_info().model_id
    status, headers, body = tinsmith.request(
        server, "POST", "/api/v1/create_model", {"session_id": run.split(":")[0], "model_seq_id": 7, "base_model": tinsmith.MODEL, "lora_config": {"rank": 8}}
    )
    assert status == 429 and headers["retry-after"] == "10" and b"key ann: 1 runs are live" in body and b"limits: runs" in body
    made = []
    second = threading.Thread(target=lambda: made.append(sdkcalls.trainer(service)))
    second.start()
    tinsmith.request(server, "POST", "/api/v1/unload_model", {"model_id": run})
    sdkcalls.train(sdkcalls.trainer(of(server, "bob")))
    second.join(timeout=120)
    assert made, "the SDK gave up"
    sdkcalls.train(made[0])


def command(server, *arguments, **environment):
    """The output of one of our commands."""
    done = subprocess.run([tinsmith.BINARY, *arguments], capture_output=True, text=True, env=tinsmith.environment(server, TINSMITH_URL=server.url, **environment))
    assert done.returncode == 0, done.stderr
    return done.stdout


def openssl(*arguments, text=None):
    return subprocess.run(["openssl", *map(str, arguments)], input=text, check=True, capture_output=True, text=True).stdout


def authority(folder):
    """The certificate of an authority, and its key."""
    cert, key = folder / "authority.pem", folder / "authority.key"
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority", "-keyout", key, "-out", cert)
    return cert, key


def certificate(folder, name, by):
    """A certificate of 127.0.0.1 by an authority, and its key. Rust's TLS, which the SDK uses, takes none that is an authority itself."""
    request, cert, key, extensions = (folder / f"{name}.{kind}" for kind in ("csr", "pem", "key", "ext"))
    extensions.write_text("basicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1\n")
    openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", by[0], "-CAkey", by[1], "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", cert)
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
def test_https(own_server, tmp_path, monkeypatch):
    """The SDK trains over HTTPS while the certificate is replaced; our commands find the server too."""
    trusted = authority(tmp_path)
    cert, key = certificate(tmp_path, "first", trusted)
    other, other_key = certificate(tmp_path, "second", trusted)
    ca = trusted[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    config = tinsmith.default_config(tmp_path) | {"tls": {"cert_file": str(cert), "key_file": str(key)}}
    server = own_server(config=config, keys=("ann", "bob"))
    assert server.url.startswith("https://")
    service = sdkcalls.service(server)
    trainer = sdkcalls.trainer(service)
    sdkcalls.train(trainer)
    other_key.replace(key)
    other.replace(cert)
    for _ in range(3):
        sdkcalls.train(trainer)
        time.sleep(0.5)
    fresh = sdkcalls.trainer(sdkcalls.service(server))
    sdkcalls.train(fresh)
    assert "CN=second" in openssl("s_client", "-connect", server.url.removeprefix("https://"), "-CAfile", ca, text="").replace(" ", "")
    assert trainer.get_info().model_id in command(server, "runs", "--ca", ca, SSL_CERT_FILE="")
    exported = command(server, "env", "--ca", ca, "--cache", str(tmp_path / "cache"), SSL_CERT_FILE="")
    assert f"export SSL_CERT_FILE='{ca}'" in exported and f"TINKER_BASE_URL='{server.url}'" in exported
    refused = subprocess.run([tinsmith.BINARY, "runs"], capture_output=True, text=True, env=tinsmith.environment(server, TINSMITH_URL=server.url, SSL_CERT_FILE=os.devnull))
    assert refused.returncode != 0 and "--ca" in refused.stderr


def test_key_is_rotated_while_it_is_used(own_server):
    """A run goes on with the old key while that is kept; the new one finds what the old one made."""
    server = own_server(keys=("ann", "bob"))
    trainer = sdkcalls.trainer(of(server, "ann"))
    running = trainer.forward_backward([sdkcalls.datum(LONG)], "cross_entropy")
    made = command(server, "key", "rotate", "ann", "--config", server.config_path, "--keep", "1h").strip()
    running.result()
    time.sleep(2.5)  # after which the server has seen the file
    sdkcalls.train(trainer)
    trainer.save_state("kept").result()
    renewed = sdkcalls.service(server, api_key=made)
    paths = [c.tinker_path for c in renewed.create_rest_client().list_user_checkpoints().result().checkpoints]
    assert any(path.endswith("/kept") for path in paths)
    listed = command(server, "key", "list", "--config", server.config_path)
    assert listed.count("ann ") == 2 and made not in listed


