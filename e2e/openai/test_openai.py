"""openai-python, unmodified, against the real server."""

import openai
import pytest

import tinsmith

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as made:
        yield made


def ask(client, **more):
    return client.chat.completions.create(**{"model": tinsmith.MODEL, "messages": QUESTION, "max_tokens": 16, "seed": 5} | more)


def test_plain(client):
    answer = ask(client)
    assert answer.id.startswith("chatcmpl-") and answer.model == tinsmith.MODEL and answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer._request_id
    assert ask(client).choices[0].message.content == answer.choices[0].message.content
    greedy = {ask(client, temperature=0, seed=seed).choices[0].message.content for seed in range(3)}
    assert len(greedy) == 1


def test_the_model_stops_by_itself(client):
    answer = ask(client, temperature=0, max_tokens=200)
    assert answer.choices[0].finish_reason == "stop" and "<|im_end|>" not in answer.choices[0].message.content


def test_stream_with_usage(client):
    whole = ask(client, n=2)
    texts, reasons, used = ["", ""], [None, None], None
    for chunk in ask(client, n=2, stream=True, stream_options={"include_usage": True}):
        assert used is None
        used = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [c.message.content for c in whole.choices]
    assert reasons == [c.finish_reason for c in whole.choices]
    assert used == whole.usage


def test_stop(client):
    text = ask(client, temperature=0).choices[0].message.content
    stop = text[len(text) // 2 :][:2]
    cut = ask(client, temperature=0, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == text[: text.index(stop)]


def test_logprobs(client):
    choice = ask(client, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    assert "".join(t.token for t in choice.logprobs.content) == choice.message.content
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(t.logprob for t in token.top_logprobs)


def test_scoring_as_evaluation_tools_do(client):
    answer = client.completions.create(model=tinsmith.MODEL, prompt=[[10, 11, 12, 13], [20, 21]], max_tokens=1, temperature=0, echo=True, logprobs=1, seed=1)
    for choice, length in zip(answer.choices, (4, 2), strict=True):
        scores = choice.logprobs
        assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
        assert len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.tokens) == length + 1
        assert scores.token_logprobs[-1] == max(scores.top_logprobs[-1].values())


def test_models(client, server):
    models = {m.id: m for m in client.models.list()}
    assert tinsmith.MODEL in models and set(tinsmith.ALIASES) <= set(models)
    assert client.models.retrieve(tinsmith.MODEL).created == models[tinsmith.MODEL].created > 1_600_000_000


@pytest.mark.parametrize(
    ("change", "error", "code", "param"),
    [
        ({"model": "no/model"}, openai.NotFoundError, "model_not_found", "model"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        ({"temperature": 3}, openai.BadRequestError, None, "temperature"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, openai.BadRequestError, "unsupported_parameter", "tools[0].type"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "unsupported_parameter", "response_format.type"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_error_classes(client, change, error, code, param, stream):
    with pytest.raises(error) as caught:
        ask(client, stream=stream, **change)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id


def test_keys(two_key_server):
    with openai.OpenAI(base_url=two_key_server.url + "/v1", api_key="not-needed", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as caught:
            ask(stranger)
        assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=two_key_server.url + "/v1", api_key=two_key_server.keys["bob"]) as client:
        assert ask(client).choices


def test_timeout_leaves_the_server_well(client):
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.05), max_tokens=3000, extra_body={"ignore_eos": True})  # an answer that takes seconds
    stream = ask(client, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert ask(client).choices
