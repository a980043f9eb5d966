"""What goes wrong between client and server, and in the server: lost answers, killed plugins, restarts, malformed requests."""

import http.client
import json
import signal
import time
import urllib.parse

import numpy as np
import pytest
import tinker
from tinker import types

import proxy
import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum


@pytest.mark.version
@pytest.mark.parametrize("path", ["/forward_backward", "/optim_step", "/create_model", "/save_weights_for_sampler", "/retrieve_future"])
def test_lost_answer_changes_nothing(server, path):
    """The client repeats a request whose answer was lost; it must count once."""
    undisturbed = sdkcalls.trainer(sdkcalls.service(server))
    for _ in range(2):
        sdkcalls.train(undisturbed)
    with proxy.Proxy(server.url, drop=proxy.drop_first(path)) as between:
        run = sdkcalls.trainer(sdkcalls.service(server, base_url=between.url))
        for _ in range(2):
            sdkcalls.train(run)
        sampler = sdkcalls.client(run.save_weights_and_get_sampling_client())
        computed = np.asarray(sampler.compute_logprobs(sdkcalls.prompt()).result()[1:], np.float32)
        assert [e.dropped for e in between.to(path)].count(True) == 1 and len(between.to(path)) >= 2
        assert np.array_equal(computed, sdkcalls.logprobs(undisturbed))


@pytest.mark.version
def test_lost_answer_of_a_sample(server):
    with proxy.Proxy(server.url, drop=proxy.drop_first("/asample")) as between:
        sampler = sdkcalls.client(sdkcalls.service(server, base_url=between.url).create_sampling_client(base_model=tinsmith.MODEL))
        got = sdkcalls.sample(sampler, seed=3, stop=[]).sequences[0].tokens
        assert got == sdkcalls.sample(sampler, seed=3, stop=[]).sequences[0].tokens
        assert [e.dropped for e in between.to("/asample")].count(True) == 1


def raw(server, method, path, body=None, key=None, content_type="application/json", accept="*/*"):
    """One request as it is: status, headers, body."""
    where = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    content = json.dumps(body).encode() if isinstance(body, dict | list) else body
    connection.request(method, proxy.API + path, body=content, headers={"X-API-Key": key or server.key, "Content-Type": content_type, "Accept": accept})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


MALFORMED = [
    ("POST", "/create_session", b"{"),
    ("POST", "/create_session", b'{"tags": 7}'),
    ("POST", "/create_session", b"null"),
    ("POST", "/create_model", {"session_id": 5}),
    ("POST", "/create_model", {"session_id": "nobody", "model_seq_id": 0, "base_model": "x", "lora_config": {"rank": 8}}),
    ("POST", "/forward_backward", b"\xff\xff\xff"),
    ("POST", "/optim_step", {"model_id": "nobody:train:0", "seq_id": 1}),
    ("POST", "/asample", {"sampling_session_id": "nobody"}),
    ("POST", "/asample", {"sampling_session_id": "nobody", "seq_id": 2**70}),
    ("POST", "/retrieve_future", {"request_id": "nothing"}),
    ("POST", "/retrieve_futures", {"target": {"type": "moon"}}),
    ("POST", "/weights_info", {"tinker_path": "tinker://a/weights/../../x"}),
    ("POST", "/weights_info", {"tinker_path": "http://a/b"}),
    ("GET", "/training_runs?limit=-1", None),
    ("GET", "/training_runs?offset=x", None),
    ("GET", "/training_runs/nobody:train:0", None),
    ("GET", "/sessions/nobody", None),
    ("PUT", "/training_runs/a/checkpoints/weights/b/ttl", {"ttl_seconds": 0}),
    ("DELETE", "/training_runs/a/checkpoints/weights/b", None),
    ("DELETE", "/training_runs/a/checkpoints/b", None),
    ("GET", "/billing/usage/events?starting_on=yesterday&ending_before=now", None),
    ("GET", "/no/such/endpoint", None),
]


@pytest.mark.parametrize(("method", "path", "body"), MALFORMED, ids=lambda v: str(v)[:60])
def test_malformed_request_gets_a_reason_with_its_length(server, method, path, body):
    status, headers, answer = raw(server, method, path, body, content_type="application/x-protobuf" if path == "/forward_backward" else "application/json")
    assert status in (400, 403, 404, 422), (status, answer)
    assert int(headers["content-length"]) == len(answer) > 0
    assert len(json.loads(answer)["detail"]) > 10


def test_same_poll_twice_gives_the_same_bytes(server):
    with proxy.Proxy(server.url) as between:
        sdkcalls.train(sdkcalls.trainer(sdkcalls.service(server, base_url=between.url)))
        polls = [e for e in between.to("/retrieve_future") if e.status == 200]
        token = polls[0].headers["x-api-key"]
        for poll in polls:
            again = [raw(server, "POST", "/retrieve_future", poll.body, key=token, accept=poll.headers["accept"])[2] for _ in range(2)]
            assert again == [poll.answer, poll.answer]
            in_json = [raw(server, "POST", "/retrieve_future", poll.body, key=token)[2] for _ in range(2)]
            assert in_json[0] == in_json[1] and json.loads(in_json[0])


def test_requests_of_another_key_see_nothing(two_key_server):
    ann, bob = two_key_server.keys["ann"], two_key_server.keys["bob"]
    with proxy.Proxy(two_key_server.url) as between:
        run = sdkcalls.trainer(sdkcalls.service(two_key_server, base_url=between.url, api_key=ann))
        sdkcalls.train(run)
        model = run.get_info().model_id
        polls = [e.body for e in between.to("/retrieve_future")]
        for body in polls:
            status, _, answer = raw(two_key_server, "POST", "/retrieve_future", body, key=bob)
            assert status in (403, 404) and len(answer) < 500
        for path, body in [
            ("/get_info", {"model_id": model}),
            ("/optim_step", {"model_id": model, "seq_id": 9, "adam_params": {"learning_rate": 1}}),
            ("/save_weights", {"model_id": model, "seq_id": 10, "path": "stolen"}),
            ("/cancel_future", json.loads(polls[0])),
        ]:
            status, _, _ = raw(two_key_server, "POST", path, body, key=bob)
            assert status in (403, 404) or (path == "/cancel_future" and status // 100 == 2), path
        sdkcalls.train(run)


def test_number_that_was_used_for_something_else_is_refused(server):
    with proxy.Proxy(server.url) as between:
        run = sdkcalls.trainer(sdkcalls.service(server, base_url=between.url))
        sdkcalls.train(run)
        step = between.to("/optim_step")[0]
        changed = step.json()
        changed["adam_params"]["learning_rate"] = 1.0
        same = raw(server, "POST", "/optim_step", step.body, key=step.headers["x-api-key"])
        assert (same[0], same[2]) == (200, step.answer)
        assert raw(server, "POST", "/optim_step", changed, key=step.headers["x-api-key"])[0] == 400


def wait_healthy(server):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if server.health().get("status") == "ok":
            return
        time.sleep(0.1)
    raise AssertionError(f"not healthy again: {server.health()}\n{server.log()[-3000:]}")


def test_killed_plugin_is_not_noticed(own_server):
    server = own_server()
    service = sdkcalls.service(server)
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    saved = run.save_weights_for_sampler("safe").result().path
    sampler = sdkcalls.client(service.create_sampling_client(model_path=saved))
    unnamed = sdkcalls.client(run.save_weights_and_get_sampling_client())
    at_save = sdkcalls.logprobs(run)
    sdkcalls.train(run)
    expected = sdkcalls.logprobs(run)
    killed = server.plugins()
    assert len(killed) == 1
    killed[0].send_signal(signal.SIGKILL)
    killed[0].wait(30)
    assert np.array_equal(sdkcalls.logprobs(run), expected)
    wait_healthy(server)
    # Samplers go on, with the weights that they had, and the run with its optimizer.
    for client in (sampler, unnamed):
        assert np.array_equal(np.asarray(client.compute_logprobs(sdkcalls.prompt()).result()[1:], np.float32), at_save)
    assert not service.create_rest_client().get_training_run(run.get_info().model_id).result().corrupted
    sdkcalls.train(run)


def test_state_survives_a_restart(own_server):
    server = own_server()
    service = sdkcalls.service(server, user_metadata={"kept": "yes"})
    run = sdkcalls.trainer(service)
    sdkcalls.train(run)
    state, saved = run.save_state("kept").result().path, run.save_weights_for_sampler("kept").result().path
    expected = sdkcalls.logprobs(run)
    model = run.get_info().model_id
    server.stop()
    server.start()
    later = sdkcalls.service(server)
    rest = later.create_rest_client()
    assert model in {r.training_run_id for r in rest.list_training_runs().result().training_runs}
    assert {c.tinker_path for c in rest.list_checkpoints(model).result().checkpoints} == {state, saved}
    assert np.array_equal(np.asarray(sdkcalls.client(later.create_sampling_client(model_path=saved)).compute_logprobs(sdkcalls.prompt()).result()[1:], np.float32), expected)
    assert np.array_equal(sdkcalls.logprobs(sdkcalls.client(later.create_training_client_from_state(state))), expected)
    # The run itself goes on where it was.
    assert np.array_equal(sdkcalls.logprobs(run), expected)
    sdkcalls.train(run)


def test_results_survive_a_power_failure(own_server):
    server = own_server()
    with proxy.Proxy(server.url) as between:
        sdkcalls.train(sdkcalls.trainer(sdkcalls.service(server, base_url=between.url)))
        polls = [e for e in between.to("/retrieve_future") if e.status == 200]
        server.kill()
        server.start()
        for poll in polls:
            status, _, answer = raw(server, "POST", "/retrieve_future", poll.body, accept=poll.headers["accept"])
            assert (status, answer) == (200, poll.answer)


@pytest.mark.skipif(VERSION < (0, 27), reason="one poll for all samples came with 0.26.2")
def test_samples_finish_across_a_restart(own_server):
    server = own_server()
    sampler = sdkcalls.client(sdkcalls.service(server).create_sampling_client(base_model=tinsmith.MODEL))
    sdkcalls.sample(sampler, max_tokens=1)
    params = lambda i: types.SamplingParams(max_tokens=60, seed=i, stop=[])  # noqa: E731
    futures = [sampler.sample(prompt=sdkcalls.prompt([*TOKENS, i]), num_samples=1, sampling_params=params(i)) for i in range(200)]
    futures[0].result(timeout=120)
    server.kill()
    server.start()
    got = [f.result(timeout=240).sequences[0].tokens for f in futures]
    assert all(len(tokens) == 60 for tokens in got)
    for i in (0, 100, 199):
        assert got[i] == sdkcalls.sample(sampler, [*TOKENS, i], max_tokens=60, seed=i, stop=[]).sequences[0].tokens
