"""Anthropic's Python SDK, unmodified, against the real server; and the SDK's accumulators on the streams of scripted answers."""

import json

import anthropic
import httpx2
import pydantic
import pytest

import tinsmith

GOLDEN = json.loads((tinsmith.ROOT / "gateway" / "internal" / "anthropic" / "testdata" / "answers.json").read_text())
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


def client_of(url, key="not-needed", **options):
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, **options)


@pytest.fixture
def client(server):
    with client_of(server.url, server.key) as made:
        yield made


def ask(**more):
    return {"model": tinsmith.MODEL, "max_tokens": 24, "messages": QUESTION, "extra_body": {"seed": 5}} | more


def said(message):
    """What a message comes to, without the ids that differ every time."""
    return [block.model_dump(exclude={"id"}) for block in message.content], message.stop_reason, message.stop_sequence


def test_create_is_what_stream_comes_to(client):
    whole = client.messages.create(**ask())
    assert whole.id.startswith("msg_") and whole.role == "assistant" and whole.model == tinsmith.MODEL
    assert whole._request_id.startswith("req_")
    text = ""
    with client.messages.stream(**ask()) as stream:
        for piece in stream.text_stream:
            text += piece
        streamed = stream.get_final_message()
    assert said(streamed) == said(whole)
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in client.messages.create(**ask(stream=True))]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("prefix", ["/anthropic", "/anthropic/api"])
def test_prefixes_and_bearer(server, prefix):
    with anthropic.Anthropic(base_url=server.url + prefix, auth_token=server.key or "not-needed", max_retries=0) as client:
        assert client.messages.create(**ask()).type == "message"
        assert [model.id for model in client.models.list()]


async def async_text(server):
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=server.key or "not-needed", max_retries=0) as client:
        async with client.messages.stream(**ask()) as stream:
            return await stream.get_final_message()


def test_async_stream(client, server):
    import asyncio

    assert said(asyncio.run(async_text(server))) == said(client.messages.create(**ask()))


def test_count_tokens_is_exact(client):
    for more in ({}, {"system": "Be brief."}, {"tools": [TOOL]}, {"thinking": {"type": "disabled"}}):
        counted = client.messages.count_tokens(model=tinsmith.MODEL, messages=QUESTION, **more).input_tokens
        usage = client.messages.create(**ask(**more)).usage
        assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_stop_and_limit(client):
    cut = client.messages.create(**ask(max_tokens=1))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1
    greedy = {"thinking": {"type": "disabled"}, "extra_body": {"temperature": 0}}
    text = client.messages.create(**ask(**greedy)).content[0].text
    stop = text[len(text) // 2 :][:2]
    stopped = client.messages.create(**ask(stop_sequences=[stop], **greedy))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == text[: text.index(stop)]
    # More than the context is what fits: Claude Code always asks for 32,000.
    assert said(client.messages.create(**ask(max_tokens=32000, stop_sequences=[stop], timeout=60, **greedy))) == said(stopped)


def test_a_conversation_with_tools_thoughts_and_reminders(client):
    first = client.messages.create(**ask(tools=[TOOL], thinking={"type": "adaptive", "display": "omitted"}))
    for block in first.content:
        if block.type == "thinking":
            assert block.signature.startswith("tin1.")
    history = [
        {"role": "user", "content": [{"type": "text", "text": "What is 2 + 3?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "I add.", "signature": "EqQBCkYIBxgC"}, {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "5"}]}, {"type": "text", "text": "So?"}]},
        {"role": "system", "content": "<total_tokens>1000 tokens left</total_tokens>"},
    ]
    answer = client.messages.create(**ask(messages=history, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True}, system=[{"type": "text", "text": "Be brief."}]))
    assert answer.content and answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 100
    prefilled = client.messages.create(**ask(messages=QUESTION + [{"role": "assistant", "content": "2 + 3 ="}]))
    assert prefilled.content


def test_errors_have_their_classes(client, server):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**ask(model="claude-haiku-4-5"))
    assert missing.value.body["type"] == "error" and missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.request_id == missing.value.body["request_id"]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        client.messages.create(**ask(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]))
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(**ask(messages=[{"role": "user", "content": "word " * 5000}]))
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"), client.messages.stream(**ask(stop_sequences=[""])):
        pass


def test_keys(two_key_server):
    with client_of(two_key_server.url, "wrong") as client, pytest.raises(anthropic.AuthenticationError) as refused:
        client.messages.create(**ask())
    assert refused.value.body["error"]["type"] == "authentication_error"
    with client_of(two_key_server.url, two_key_server.keys["ann"]) as client:
        assert client.messages.create(**ask()).content


def test_models(client):
    listed = list(client.models.list())
    assert tinsmith.MODEL in [model.id for model in listed] and all(model.type == "model" and model.created_at.year > 2000 for model in listed)
    assert client.models.retrieve(tinsmith.MODEL) == next(model for model in listed if model.id == tinsmith.MODEL)


def test_tokens_and_training_data(client):
    whole = client.messages.create(**ask(extra_body={"seed": 5, "return_datum": True}))
    targets = whole.datum["loss_fn_inputs"]["target_tokens"]["data"]
    assert targets == (whole.prompt_token_ids + whole.token_ids)[1:] and len(whole.token_ids) == whole.usage.output_tokens
    streamed = []
    for event in client.messages.create(**ask(stream=True, extra_body={"seed": 5, "return_token_ids": True})):
        if event.type == "message_start":
            assert event.prompt_token_ids == whole.prompt_token_ids
        streamed += getattr(event, "token_ids", None) or []
    assert streamed == whole.token_ids


def replayed(body, kind):
    """A client of a server that answers with a body."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers={"content-type": kind}, text=body))
    return client_of("http://127.0.0.1", http_client=anthropic.DefaultHttpxClient(transport=transport))


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden["name"] for golden in GOLDEN])
def test_accumulators_make_the_whole_answer_of_a_stream(golden):
    with replayed(json.dumps(golden["whole"]), "application/json") as client:
        whole = client.messages.create(**ask())
    with replayed(golden["stream"], "text/event-stream") as client, client.messages.stream(**ask()) as stream:
        streamed = stream.get_final_message()
    assert said(streamed) == said(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    with replayed(golden["stream"], "text/event-stream") as client, client.beta.messages.stream(**ask()) as stream:
        assert said(stream.get_final_message())[1:] == said(whole)[1:]


def test_tool_runner_goes_on_with_what_a_tool_gives(client):
    whole = {golden["name"]: golden["whole"] for golden in GOLDEN}
    requests, asked = [], []

    def answer(request):
        requests.append(json.loads(request.content))
        return httpx2.Response(200, json=whole["all" if len(requests) == 1 else "text"])

    @anthropic.beta_tool
    def get_weather(city: str, n: float) -> str:
        """The weather at a place."""
        asked.append((city, n))
        return "Sunny."

    with client_of("http://127.0.0.1", http_client=anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(answer))) as scripted:
        last = scripted.beta.messages.tool_runner(model=tinsmith.MODEL, max_tokens=24, messages=QUESTION, tools=[get_weather]).until_done()
    assert asked == [("Ulm ü", 1.0)] * 2 and last.stop_reason == "end_turn" and len(requests) == 2
    # What the runner sends is what the real server takes.
    for request in requests:
        assert client.post("/v1/messages?beta=true", body=request, cast_to=object)["type"] == "message"


def held(call, **more):
    """What a call comes to whose answer is held to a form: without thoughts, and long enough for what a toy says."""
    return call(**ask(max_tokens=400, thinking={"type": "disabled"}) | more)


def test_parse_gives_an_object(client):
    class Total(pydantic.BaseModel):
        total: int
        certain: bool

    parsed = held(client.messages.parse, output_format=Total)
    assert isinstance(parsed.parsed_output, Total) and parsed.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}], ids=["any", "tool"])
def test_a_forced_call_has_arguments_of_its_schema(client, choice):
    tool = TOOL | {"strict": True, "input_schema": TOOL["input_schema"] | {"additionalProperties": False}}
    whole = held(client.messages.create, tools=[tool], tool_choice=choice)
    assert whole.stop_reason == "tool_use" and whole.content[-1].name == "add"
    assert set(whole.content[-1].input) == {"a", "b"} and all(isinstance(value, int) for value in whole.content[-1].input.values())
    with client.messages.stream(**ask(max_tokens=400, thinking={"type": "disabled"}, tools=[tool], tool_choice=choice)) as stream:
        assert said(stream.get_final_message()) == said(whole)


def test_thoughts_are_bounded(client):
    answer = held(client.messages.create, thinking={"type": "enabled", "budget_tokens": 8})
    assert answer.usage.output_tokens_details is None or answer.usage.output_tokens_details.thinking_tokens <= 16


@pytest.mark.parametrize("more", [{"extra_body": {"temperature": 9}}, {"tool_choice": {"type": "any"}}, {"extra_body": {"stop_sequences": "x"}}, {"extra_body": {"n": 2}}])
def test_what_would_not_be_answered_is_not_counted(client, more):
    ask = {"model": tinsmith.MODEL, "messages": QUESTION}
    assert client.messages.count_tokens(**ask).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError) as counted:
        client.messages.count_tokens(**ask, **more)
    with pytest.raises(anthropic.BadRequestError) as answered:
        client.messages.create(**ask, max_tokens=8, **more)
    assert counted.value.body["error"] == answered.value.body["error"]
