"""/v1/responses through openai-python, unmodified, against the real server."""

import openai
import pydantic
import pytest

import tinsmith

TOOL = {
    "type": "function", "name": "add", "description": "Adds.", "strict": False,
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
}


def connect(server, key=None):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key or server.key, max_retries=0)


@pytest.fixture
def client(server):
    with connect(server) as made:
        yield made


def ask(client, **more):
    return client.responses.create(**{"model": tinsmith.MODEL, "input": "What is 2 + 3?", "max_output_tokens": 16, "temperature": 0} | more)


def same(one, other):
    """Compares two answers but for what differs between any two."""

    def plain(response):
        fields = response.model_dump(exclude={"id", "created_at", "completed_at", "usage"})
        for item in fields["output"]:
            item.pop("id")
        return fields

    assert plain(one) == plain(other)
    assert one.usage.total_tokens == other.usage.total_tokens


def test_plain(client):
    answer = ask(client)
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.status == "completed" and answer.error is None
    assert answer.output_text == client.chat.completions.create(
        model=tinsmith.MODEL, messages=[{"role": "user", "content": "What is 2 + 3?"}], max_tokens=16, temperature=0
    ).choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0
    counted = client.responses.input_tokens.count(model=tinsmith.MODEL, input="What is 2 + 3?")
    assert counted.input_tokens == answer.usage.input_tokens
    same(answer, ask(client))


def test_stream_is_the_whole_answer(client):
    whole = ask(client, tools=[TOOL], instructions="Be brief.")
    events = list(ask(client, tools=[TOOL], instructions="Be brief.", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    same(events[-1].response, whole)
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [i.to_dict() for i in done] == [i.to_dict() for i in events[-1].response.output]
    with client.responses.stream(
        model=tinsmith.MODEL, input="What is 2 + 3?", max_output_tokens=16, temperature=0, tools=[TOOL], instructions="Be brief."
    ) as stream:  # the SDK's own accumulator, which checks every event against those before it
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text


def test_incomplete(client):
    answer = ask(client, max_output_tokens=1)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model=tinsmith.MODEL, input="What is 2 + 3?", max_output_tokens=1) as stream:
        assert [e.type for e in stream][-1] == "response.incomplete"


def test_a_conversation_goes_on(client):
    exact = {"return_token_ids": True}
    first = ask(client, extra_body=exact)
    second = ask(client, input="And 4 more?", previous_response_id=first.id, extra_body=exact)
    assert second.previous_response_id == first.id
    assert second.prefix == {"tokens": len(first.prompt_token_ids) + len(first.token_ids), "exact": True}
    assert second.prompt_token_ids[: second.prefix["tokens"]] == first.prompt_token_ids + first.token_ids
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert [(i.role, i.content[0].text) for i in items] == [("user", "What is 2 + 3?"), ("assistant", first.output_text), ("user", "And 4 more?")]
    replayed = ask(client, input=[i.to_dict() for i in items], store=False)
    assert replayed.output_text == second.output_text
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(first.id)
    assert missing.value.code == "response_not_found"
    assert ask(client, input="Well?", previous_response_id=second.id).output_text  # it depends on no other one
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, previous_response_id=first.id)
    assert missing.value.code == "previous_response_not_found" and missing.value.param == "previous_response_id"


def test_tool_results_are_read(client):
    history = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 2, "b": 3}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]
    answer = ask(client, input=history, tools=[TOOL, {"type": "web_search"}])
    assert answer.output and [t.name for t in answer.tools] == ["add"]
    raw = client.responses.with_raw_response.create(model=tinsmith.MODEL, input="x", tools=[{"type": "web_search"}], max_output_tokens=1)
    assert raw.headers["x-tinsmith-dropped-tools"] == "web_search"


class Sum(pydantic.BaseModel):
    a: int
    b: int
    right: bool


def test_parse(client):
    more = {"model": tinsmith.MODEL, "input": "What is 2 + 3?", "text_format": Sum, "max_output_tokens": 200, "temperature": 0}
    answer = client.responses.parse(**more)
    assert isinstance(answer.output_parsed, Sum)
    with client.responses.stream(**more) as stream:
        list(stream)
        assert stream.get_final_response().output_parsed == answer.output_parsed


def test_strict_tools(client):
    answer = client.responses.parse(
        model=tinsmith.MODEL, input="What is 2 + 3?", tools=[openai.pydantic_function_tool(Sum)], tool_choice="required", parallel_tool_calls=False,
        max_output_tokens=300, temperature=0,
    )
    call = answer.output[-1]
    assert call.type == "function_call" and isinstance(call.parsed_arguments, Sum)


def test_logprobs(client):
    text = ask(client, include=["message.output_text.logprobs"], top_logprobs=2).output[0].content[0]
    assert "".join(t.token for t in text.logprobs) == text.text
    assert all(t.logprob == t.top_logprobs[0].logprob for t in text.logprobs)


def test_errors(client):
    for change, code, param in [({"model": "no/model"}, 404, "model"), ({"max_output_tokens": 100_000}, 400, "max_output_tokens"), ({"background": True}, 400, "background")]:
        with pytest.raises(openai.APIStatusError) as refused:
            ask(client, **change)
        assert (refused.value.status_code, refused.value.param) == (code, param)
    stored = ask(client)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(stored.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model=tinsmith.MODEL, input="x")
    assert missing.value.code == "unsupported_endpoint"


def test_stored_responses_belong_to_a_key_and_survive(own_server):
    server = own_server(keys=("ann", "bob"))
    with connect(server, server.keys["ann"]) as ann, connect(server, server.keys["bob"]) as bob:
        first = ask(ann, extra_body={"return_token_ids": True})
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            ask(bob, previous_response_id=first.id)
        server.kill()
        server.start()
        assert ann.responses.retrieve(first.id).to_dict() == first.to_dict()
        second = ask(ann, input="And 4 more?", previous_response_id=first.id, extra_body={"return_token_ids": True})
        assert second.prefix["exact"] and second.prompt_token_ids[: second.prefix["tokens"]] == first.prompt_token_ids + first.token_ids
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(first.id)
