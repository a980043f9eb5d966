"""Requests as other clients and other test suites make them: what data carry besides, what is left out, loads at any time, web pages."""

import json
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tinker
from tinker import types

import sdkcalls
import tinsmith
from sdkcalls import TOKENS, VERSION, datum
from tinsmith import request

N = len(TOKENS) - 1
WEIGHTS = np.array([0, 1, 0.5, 2, 0, 1, 0.3, 3, 0, 0.25, 1], np.float32)
POLICY = {"logprobs": [-2.0] * N, "advantages": [0.0, 1.0, -1.0, 0.5, 2.0, -0.5, 1.0, 0.0, -2.0, 1.0, 1.0]}


def run(client, data, loss="cross_entropy", config=None):
    return client.forward_backward(data, loss, config).result()


def terms(output) -> np.ndarray:
    return np.asarray(output.loss_fn_outputs[0]["elementwise_loss"].data, np.float32)


def post(server, path, body):
    status, _, content = request(server, "POST", "/api/v1/" + path, body)
    assert status == 200, content
    return json.loads(content)


def wait(server, submitted):
    while True:
        answer = post(server, "retrieve_future", {"request_id": submitted["request_id"]})
        if answer.get("type") != "try_again":
            assert "error" not in answer, answer
            return answer


@pytest.mark.version
def test_inputs_that_a_loss_does_not_read(server, service):
    loaded, plain = sdkcalls.trainer(service), sdkcalls.trainer(service)
    got = run(loaded, [datum(weights=WEIGHTS, **POLICY), datum(weights=WEIGHTS, mask=[1.0])])
    want = run(plain, [datum(weights=WEIGHTS), datum(weights=WEIGHTS)])
    assert got.metrics["loss:sum"] == want.metrics["loss:sum"]
    for each in (loaded, plain):
        each.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert np.array_equal(sdkcalls.logprobs(loaded), sdkcalls.logprobs(plain))
    listed = json.loads(request(server, "GET", "/api/v1/tinsmith/runs")[2])["runs"]
    unread = {each["run_id"]: each["unread_inputs"] for each in listed}
    assert unread[loaded.get_info().model_id] == ["advantages", "logprobs", "mask"] and not unread[plain.get_info().model_id]


@pytest.mark.version
def test_cross_entropy_without_weights_has_ones(service):
    training = sdkcalls.trainer(service)
    without, ones = datum(logprobs=[0.0] * N), datum()
    assert "weights" not in without.loss_fn_inputs
    assert terms(run(training, [without])).tobytes() == terms(run(training, [ones])).tobytes()


@pytest.mark.version
@pytest.mark.parametrize(
    ("loss", "config"),
    [("importance_sampling", {}), ("ppo", {}), ("cispo", {}), ("dro", {"beta": 0.5}), ("gspo", {})],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_weights_multiply_each_term_of_a_policy_loss(service, loss, config):
    if VERSION < (0, 20) and loss == "gspo" or VERSION < (0, 6) and loss in ("cispo", "dro"):
        pytest.skip(f"this release sends no {loss}")
    mask = {"sequence_ratio_mask": [1.0] * N} if loss == "gspo" else {}
    made = [sdkcalls.trainer(service) for _ in range(4)]
    without, ones, weighted, surrogate = made
    for each in made:
        sdkcalls.train(each)
    plain = run(without, [datum(**POLICY, **mask)], loss, config)
    same = run(ones, [datum(weights=[1.0] * N, **POLICY, **mask)], loss, config)
    got = run(weighted, [datum(weights=WEIGHTS, **POLICY, **mask)], loss, config)
    assert plain.metrics["loss:sum"] == same.metrics["loss:sum"]
    assert terms(plain).tobytes() == terms(same).tobytes()
    for output in (plain, got):
        assert output.metrics["loss:sum"] == pytest.approx(terms(output).astype(float).sum(), rel=1e-5, abs=1e-6)
    assert np.allclose(terms(got), WEIGHTS * terms(plain), rtol=1e-6, atol=1e-7)
    # Each position's gradient is multiplied as well: a datum in parts, each weighted once and with the other positions at zero, adds up to the whole.
    for i in np.flatnonzero(WEIGHTS):
        alone = np.zeros(N, np.float32)
        alone[i] = WEIGHTS[i]
        run(surrogate, [datum(weights=alone, **POLICY, **mask)], loss, config)
    for each in (without, ones, weighted, surrogate):
        each.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert np.array_equal(sdkcalls.logprobs(without), sdkcalls.logprobs(ones))
    assert not np.array_equal(sdkcalls.logprobs(without), sdkcalls.logprobs(weighted))
    assert np.allclose(sdkcalls.logprobs(surrogate), sdkcalls.logprobs(weighted), rtol=0, atol=2e-3)


@pytest.mark.version
def test_bad_weights_of_a_policy_loss_are_refused(service):
    training = sdkcalls.trainer(service)
    bad = [([1.0], "weights.*shape"), ([1.0] * (N - 1) + [-1.0], "weights.*element 10 is -1")]
    if VERSION >= (0, 24):  # before, the client itself refuses it, since JSON has no such number
        bad.append(([np.nan] + [1.0] * (N - 1), "weights.*element 0"))
    for weights, words in bad:
        with pytest.raises(tinker.RequestFailedError, match=words):
            run(training, [datum(weights=weights, **POLICY)], "ppo")


@pytest.mark.version
def test_losses_of_single_positions(service):
    training = sdkcalls.trainer(service)
    output = run(training, [datum(weights=WEIGHTS)])
    assert np.allclose(terms(output), -WEIGHTS * sdkcalls.arrays(output)[0], rtol=1e-6)
    assert output.metrics["loss:sum"] == pytest.approx(terms(output).astype(float).sum(), rel=1e-6)
    targets = np.arange(3 * N).reshape(N, 3)
    wide = types.Datum(model_input=sdkcalls.prompt(TOKENS[:-1]), loss_fn_inputs={"target_tokens": targets, "weights": np.full((N, 3), 0.5, np.float32)})
    output = run(training, [wide])
    assert output.loss_fn_outputs[0]["elementwise_loss"].shape == [N, 3]
    assert output.metrics["loss:sum"] == pytest.approx(terms(output).astype(float).sum(), rel=1e-6)


@pytest.mark.version
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_load_in_the_middle_of_training(service, with_optimizer):
    if VERSION < (0, 6):
        pytest.skip("before 0.6 every load has the state of the optimizer, which test_first_release tests")
    training = sdkcalls.trainer(service)
    for _ in range(2):
        sdkcalls.train(training)
    path = training.save_state("middle").result().path
    at_save = sdkcalls.logprobs(training)
    sdkcalls.train(training)
    run(training, [datum([9, 8, 7, 6])])  # its gradient is cleared
    load = training.load_state_with_optimizer if with_optimizer else training.load_state
    load(path).result()
    assert np.array_equal(sdkcalls.logprobs(training), at_save)
    resume = service.create_training_client_from_state_with_optimizer if with_optimizer else service.create_training_client_from_state
    other = sdkcalls.client(resume(path))
    for each in (training, other):
        sdkcalls.train(each)
        each.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert np.array_equal(sdkcalls.logprobs(training), sdkcalls.logprobs(other))


def test_loaded_state_survives_a_restart(own_server):
    server = own_server()
    service = sdkcalls.service(server)
    training, undisturbed = sdkcalls.trainer(service), sdkcalls.trainer(service)
    for each in (training, undisturbed):
        sdkcalls.train(each)
        path = each.save_state("one").result().path
        sdkcalls.train(each)
        each.load_state_with_optimizer(path).result()
        sdkcalls.train(each)
    want = sdkcalls.logprobs(undisturbed)
    server.kill()
    server.start()
    assert np.array_equal(sdkcalls.logprobs(training), want)


def test_load_of_another_scale_in_the_middle(own_server, tmp_path):
    """A checkpoint whose lora_alpha is another one changes the run from there on, not what was sampled from before, and it survives a restart."""
    server = own_server()
    service = sdkcalls.service(server)
    training, undisturbed = sdkcalls.trainer(service), sdkcalls.trainer(service)
    sdkcalls.train(training)
    training.save_weights_for_sampler("x").result()
    (saved,) = pathlib.Path(server.config["data_dir"]).glob("checkpoints/*/sampler_weights/x~*")
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_model.safetensors").write_bytes((saved / "adapter_model.safetensors").read_bytes())
    config = json.loads((saved / "adapter_config.json").read_text())
    (tmp_path / "peft" / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": config["lora_alpha"] / 4}))
    imported = subprocess.run(
        [tinsmith.BINARY, "import", tmp_path / "peft", "--base", tinsmith.MODEL, "--name", "quarter", "--url", server.url], capture_output=True, text=True, check=True
    ).stdout
    path = re.search(r"tinker://\S+/weights/\S+", imported).group()
    before = sdkcalls.client(training.save_weights_and_get_sampling_client())
    early = before.compute_logprobs(sdkcalls.prompt()).result()
    made = sdkcalls.client(service.create_training_client_from_state(path))
    for each in (training, undisturbed):
        each.load_state(path).result()
        assert np.array_equal(sdkcalls.logprobs(each), sdkcalls.logprobs(made))
        sdkcalls.train(each)
    server.kill()
    server.start()
    assert np.array_equal(sdkcalls.logprobs(training), sdkcalls.logprobs(undisturbed))
    assert not np.array_equal(sdkcalls.logprobs(training), sdkcalls.logprobs(made))
    assert before.compute_logprobs(sdkcalls.prompt()).result() == early
    for each in (training, undisturbed, made):
        sdkcalls.train(each)
    sdkcalls.train(made)
    assert np.array_equal(sdkcalls.logprobs(training), sdkcalls.logprobs(made))


@pytest.mark.version
def test_top_prompt_logprobs_alone(service):
    sampler = sdkcalls.client(service.create_sampling_client(base_model=tinsmith.MODEL))
    alone = sdkcalls.sample(sampler, max_tokens=1, options={"topk_prompt_logprobs": 2})
    both = sdkcalls.sample(sampler, max_tokens=1, options={"topk_prompt_logprobs": 2, "include_prompt_logprobs": True})
    assert alone.prompt_logprobs == both.prompt_logprobs and len(alone.prompt_logprobs) == len(TOKENS)
    assert alone.topk_prompt_logprobs == both.topk_prompt_logprobs


def test_requests_without_a_number(server):
    session = post(server, "create_session", {"tags": [], "user_metadata": {}, "sdk_version": "none"})["session_id"]
    made = wait(server, post(server, "create_model", {"session_id": session, "model_seq_id": 0, "base_model": tinsmith.MODEL, "lora_config": {"rank": 8}}))
    model = made["model_id"]
    for _ in range(2):
        wait(server, post(server, "optim_step", {"model_id": model, "adam_params": {"learning_rate": 1e-3}}))
    saved = wait(server, post(server, "save_weights", {"model_id": model, "path": "a"}))
    wait(server, post(server, "load_weights", {"model_id": model, "path": saved["path"], "optimizer": True}))
    numbered = post(server, "optim_step", {"model_id": model, "seq_id": 5, "adam_params": {"learning_rate": 1e-3}})
    wait(server, numbered)
    assert post(server, "optim_step", {"model_id": model, "adam_params": {}})["request_id"] == model + ":6"
    status, _, content = request(server, "POST", "/api/v1/optim_step", {"model_id": model, "seq_id": 0, "adam_params": {}})
    assert status == 400 and b"seq_id" in content
    sampler = post(server, "create_sampling_session", {"session_id": session, "sampling_session_seq_id": 0, "base_model": tinsmith.MODEL})["sampling_session_id"]
    sample = {"sampling_session_id": sampler, "prompt": {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}, "sampling_params": {"max_tokens": 1}}
    ids = [post(server, "asample", sample)["request_id"] for _ in range(3)]
    assert ids == [f"{sampler}:{i}" for i in range(3)]


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", (tinsmith.ROOT / "docs" / "requests.md").read_text(), re.M | re.S)


def test_document(server, service, tmp_path):
    """What docs/requests.md shows works as it is printed."""
    (python,) = blocks("python")
    names = {"training": sdkcalls.trainer(service), "data": [datum(**POLICY)]}
    exec(python, names)
    assert len(names["lost"]) == N
    (shell,) = blocks("sh")
    environment = {"TINKER_BASE_URL": server.url, "TINKER_API_KEY": server.key, "MODEL": names["training"].get_info().model_id, "PATH": os.environ["PATH"]}
    answer = subprocess.run(["bash", "-c", shell], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["request_id"].endswith(":2")
    (yaml,) = blocks("yaml")
    config = tmp_path / "tinsmith.yaml"
    config.write_text(yaml + f"models: [{{name: a, path: {tinsmith.ROOT / 'configs' / 'models' / 'tiny-chat'}}}]\n")
    subprocess.run([tinsmith.BINARY, "check-config", config], check=True, capture_output=True)


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_web_pages_of_this_machine(server):
    page = {"Origin": "http://localhost:5173"}
    for path in ("/v1/chat/completions", "/api/v1/create_session"):
        status, headers, content = request(server, "OPTIONS", path, **page, **PREFLIGHT)
        assert (status, content) == (204, b"")
        assert headers["access-control-allow-origin"] == page["Origin"]
        assert "POST" in headers["access-control-allow-methods"] and headers["access-control-allow-headers"] == "authorization,content-type"
    chat = {"model": tinsmith.MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
    for body, code in [(chat, 200), (chat | {"stream": True}, 200), (chat | {"model": "no/model"}, 404)]:
        status, headers, _ = request(server, "POST", "/v1/chat/completions", body, **page)
        assert status == code and headers["access-control-allow-origin"] == page["Origin"]
    status, headers, _ = request(server, "OPTIONS", "/v1/chat/completions", Origin="https://evil.example", **PREFLIGHT)
    assert status == 403 and "access-control-allow-origin" not in headers


def test_web_pages_with_keys(own_server, tmp_path):
    config = tinsmith.default_config(tmp_path / "pages") | {"cors_origins": ["https://app.example.org"]}
    server = own_server(config=config, keys=("ann",))
    for origin, allowed in [("https://app.example.org", True), ("http://localhost:3000", True), ("https://evil.example", False)]:
        status, headers, _ = request(server, "OPTIONS", "/v1/models", Origin=origin, **PREFLIGHT)
        assert (status == 204) == allowed and (headers.get("access-control-allow-origin") == origin) == allowed
        status, headers, _ = request(server, "GET", "/v1/models", Origin=origin)
        assert status == 200 and (headers.get("access-control-allow-origin") == origin) == allowed
        status, headers, _ = request(server, "GET", "/v1/models", Origin=origin, **{"X-API-Key": "tml-wrong"})
        assert status == 401 and (headers.get("access-control-allow-origin") == origin) == allowed
