"""The statuses that docs/api.md states, without any SDK."""

import json

import pytest

import tinsmith

CHAT = {"model": tinsmith.MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT = {"model": tinsmith.MODEL, "prompt": "Hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def run(shared_server):
    """The session and the id of a run."""
    session = ask(shared_server, "POST", "/api/v1/create_session", {})[1]["session_id"]
    made = ask(shared_server, "POST", "/api/v1/create_model", model(session, 0))[1]
    while ask(shared_server, "POST", "/api/v1/retrieve_future", {"request_id": made["request_id"]})[0] == 408:
        pass
    return {"SESSION": session, "RUN": made["model_id"]}


def ask(server, method, path, body=None, **headers):
    status, _, content = tinsmith.request(server, method, path, body, **headers)
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content


def model(session, number, **more):
    return {"session_id": session, "model_seq_id": number, "base_model": tinsmith.MODEL, "lora_config": {"rank": 4}} | more


ADAM = {"model_id": "RUN", "optimizer_params": {"type": "dimuon", "learning_rate": 1e-4}}
SAMPLER = {"session_id": "SESSION", "sampling_session_seq_id": 0, "model_path": "tinker://RUN/sampler_weights/nothing"}
TINKER = [
    ("POST", "/create_model", model("SESSION", 1, lora_config={"rank": 3}), 400, "power of two"),
    ("POST", "/create_model", model("SESSION", 1, lora_config={"rank": 1024}), 400, "power of two"),
    ("POST", "/create_model", model("SESSION", 1, optimizer_config={"type": "dimuon"}), 400, "must be adamw"),
    ("POST", "/create_model", model("SESSION", 1, base_model="no/model"), 400, "is not served here"),
    ("POST", "/create_model", model("SESSION", 1, lora_config=None), 400, "lora_config: is required"),
    ("POST", "/create_model", model("nothing", 1), 403, "Invalid session_id"),
    ("POST", "/get_info", {"model_id": "nothing"}, 404, "no training run"),
    ("POST", "/forward_backward", "nothing", 400, "body"),
    ("POST", "/optim_step", ADAM, 400, "allowed is adamw"),
    ("POST", "/save_weights_for_sampler", {"model_id": "RUN", "path": "a", "kind": "inflight"}, 400, "must be snapshot"),
    ("POST", "/save_weights_external", {"model_id": "RUN", "path": "a", "age_encryption_recipients": ["age1x"]}, 400, "encryption is not offered"),
    ("POST", "/save_weights", {"model_id": "RUN", "path": ".hidden"}, 400, "must not begin with a dot"),
    ("POST", "/save_weights", {"model_id": "RUN", "path": "x" * 201}, 400, "at most 200"),
    ("POST", "/load_weights", {"model_id": "RUN", "path": "tinker://RUN/weights/nothing"}, 404, "no checkpoint"),
    ("POST", "/create_custom_loss", {}, 400, "runs them in the client"),
    ("POST", "/create_sampling_session", SAMPLER, 404, "no checkpoint"),
    ("POST", "/asample", {"sampling_session_id": "nothing", "model_path": "tinker://RUN/sampler_weights/a", "prompt": {"chunks": []}}, 400, "model_path"),
    ("POST", "/retrieve_future", {"request_id": "nothing"}, 404, "no future"),
    ("POST", "/cancel_future", {"request_id": "nothing"}, 204, ""),
    ("POST", "/session_heartbeat", {"session_id": "nothing"}, 404, "no session"),
    ("DELETE", "/auth/apikey/me", None, 400, "no keys file"),
    ("GET", "/training_runs/RUN/checkpoints/nothing", None, 400, "weights/NAME"),
    ("DELETE", "/training_runs/RUN/checkpoints/nothing", None, 400, "weights/NAME"),
    ("GET", "/training_runs/RUN/checkpoints/weights/nothing/archive", None, 400, "training checkpoints cannot be downloaded"),
    ("PUT", "/training_runs/RUN/checkpoints/weights/nothing/ttl", {"ttl_seconds": 0}, 400, "ttl_seconds"),
    ("GET", "/archives/nothing", None, 403, "not valid or has expired"),
    ("GET", "/create_session", None, 405, "does not take that method"),
    ("GET", "/nothing", None, 404, "no such endpoint"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "words"), TINKER)
def test_refusals_of_the_tinker_api(shared_server, run, method, path, body, status, words):
    text = json.dumps(body)
    for name, value in run.items():
        path, text = path.replace(name, value), text.replace(name, value)
    got, answer = ask(shared_server, method, "/api/v1" + path, json.loads(text))
    assert got == status and words in str(answer), answer
    assert not words or isinstance(answer["detail"], str)


def test_session_that_was_finished(shared_server):
    session = {"session_id": ask(shared_server, "POST", "/api/v1/create_session", {})[1]["session_id"]}
    assert ask(shared_server, "POST", "/api/v1/session_heartbeat", session)[0] == 200
    assert ask(shared_server, "POST", f"/api/v1/sessions/{session['session_id']}/finish", {"reason": {"type": "success"}})[0] == 204
    assert ask(shared_server, "POST", "/api/v1/session_heartbeat", session)[0] == 410
    assert ask(shared_server, "POST", "/api/v1/create_model", model(session["session_id"], 0))[0] == 403


# What a field is set to that asks for something that is not served.
UNSERVED = {
    "modalities": ["text", "audio"], "audio": {"voice": "a"}, "prediction": {"type": "content"}, "web_search_options": {},
    "truncate_prompt_tokens": 3, "use_beam_search": True, "bad_words": ["a"], "allowed_token_ids": [1], "chat_template": "a", "echo": True,
}  # fmt: skip


@pytest.mark.parametrize("field", UNSERVED)
def test_fields_that_are_not_served(shared_server, field):
    status, answer = ask(shared_server, "POST", "/v1/chat/completions", CHAT | {field: UNSERVED[field]})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unsupported_parameter", field)


OPENAI = [
    ("POST", "/v1/chat/completions", CHAT | {"tools": [], "tool_choice": "auto", "functions": [], "modalities": ["text"]}, 200, None),
    ("POST", "/v1/chat/completions", CHAT | {"user": "me", "metadata": {}, "store": False, "unknown": 1}, 200, None),
    ("POST", "/oai/api/v1/chat/completions", CHAT, 200, None),
    ("POST", "/v1/chat/completions", CHAT | {"max_completion_tokens": 3}, 400, None),
    ("POST", "/v1/chat/completions", CHAT | {"max_tokens": 1_000_000}, 400, "context_length_exceeded"),
    ("POST", "/v1/chat/completions", CHAT | {"model": "no/model"}, 404, "model_not_found"),
    ("POST", "/v1/chat/completions", CHAT | {"n": 129}, 400, None),
    ("POST", "/v1/chat/completions", CHAT | {"reasoning_effort": "extreme"}, 400, None),
    ("POST", "/v1/chat/completions", CHAT | {"chat_template_kwargs": {"no_such_variable": 1}}, 400, None),
    ("POST", "/v1/completions", TEXT | {"suffix": "end"}, 400, "unsupported_parameter"),
    ("POST", "/v1/completions", TEXT | {"best_of": 2}, 400, "unsupported_parameter"),
    ("POST", "/v1/completions", TEXT | {"stop": ["x"] * 64}, 200, None),
    ("POST", "/v1/completions", TEXT | {"stop": ["x"] * 65}, 400, None),
    ("GET", "/v1/models/" + tinsmith.MODEL, None, 200, None),
    ("POST", "/v1/responses", {}, 400, None),
    ("POST", "/v1/embeddings", {}, 404, "unsupported_endpoint"),
    ("POST", "/v1/chat/completions", CHAT | {"tool_choice": "required"}, 400, None),
    ("POST", "/v1/chat/completions", CHAT | {"function_call": {"name": "f"}}, 400, None),
    ("POST", "/v1/chat/completions", CHAT | {"guided_grammar": "a"}, 400, None),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), OPENAI)
def test_refusals_of_the_openai_api(shared_server, method, path, body, status, code):
    got, answer = ask(shared_server, method, path, body)
    assert got == status, answer
    if status != 200:
        assert answer["error"]["code"] == code and answer["error"]["message"], answer
