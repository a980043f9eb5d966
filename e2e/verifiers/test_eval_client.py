"""verifiers' client of an evaluation, unmodified, against the real server: what its harnesses send is relayed, and read into its own types."""

import asyncio
import json

import verifiers.v1 as vf
from verifiers.v1.dialects import AnthropicDialect, ChatDialect, ResponsesDialect
from verifiers.v1.types import SamplingConfig

import tinsmith

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
PARAMETERS = {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a", "b"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}
BODY = {"model": tinsmith.MODEL, "max_completion_tokens": 300, "seed": 5, "tools": [TOOL], "reasoning_effort": "none", "logprobs": True, "return_token_ids": True}


def talk(server, monkeypatch, play):
    monkeypatch.setenv("TINSMITH_KEY", server.key)

    async def run():
        client = vf.resolve_client(vf.EvalClientConfig(base_url=server.url + "/v1", api_key_var="TINSMITH_KEY"))
        try:
            return await play(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_rollout(server, monkeypatch):
    """Two turns of one rollout: the second prompt goes on from the first one's very tokens, for the client sends the rollout's id."""

    async def play(client):
        messages = [{"role": "user", "content": "What is 2 + 3?"}]
        first = await client.get_response(ChatDialect(), BODY | {"messages": messages, "tool_choice": "required", "parallel_tool_calls": False}, SamplingConfig(), session_id="rollout")
        call = first.message.tool_calls[0]
        given = json.loads(call.arguments)
        messages += [first.raw["choices"][0]["message"], {"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])}]
        return first, await client.get_response(ChatDialect(), BODY | {"messages": messages, "tool_choice": "none"}, SamplingConfig(), session_id="rollout")

    first, second = talk(server, monkeypatch, play)
    assert first.finish_reason == "tool_calls" and first.message.tool_calls[0].name == "add"
    assert second.finish_reason in ("stop", "length") and not second.message.tool_calls
    for answer in (first, second):
        choice = answer.raw["choices"][0]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) > 0
        assert answer.usage.prompt_tokens + (answer.usage.cached_input_tokens or 0) == len(answer.raw["prompt_token_ids"])
    assert second.raw["prefix"]["exact"]
    before = first.raw["prompt_token_ids"] + first.raw["choices"][0]["token_ids"]
    assert second.raw["prompt_token_ids"][: len(before)] == before


def test_streamed(server, monkeypatch):
    async def play(client):
        body = BODY | {"messages": [{"role": "user", "content": "Hello"}], "tool_choice": "required", "parallel_tool_calls": False, "stream": True, "stream_options": {"include_usage": True}}
        reply = await client.relay(ChatDialect(), body, session_id="streamed")
        events = [event async for event in reply.chunks]
        await reply.close()
        return reply.content_type, events

    kind, events = talk(server, monkeypatch, play)
    assert kind.startswith("text/event-stream")
    chunks = [json.loads(event.removeprefix(b"data:")) for event in events if b"[DONE]" not in event]
    calls = [delta["function"].get("arguments", "") for chunk in chunks for choice in chunk["choices"] for delta in choice["delta"].get("tool_calls") or []]
    assert set(json.loads("".join(calls))) == {"a", "b"} and chunks[-1]["usage"]["completion_tokens"] > 0


def test_the_other_dialects(server, monkeypatch):
    async def play(client):
        answer = await client.get_response(ResponsesDialect(), {"model": tinsmith.MODEL, "input": "Hello", "max_output_tokens": 16}, SamplingConfig())
        message = await client.get_response(AnthropicDialect(), {"model": tinsmith.MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}, SamplingConfig())
        return answer, message

    for answer in talk(server, monkeypatch, play):
        assert (answer.message.content or answer.message.reasoning_content) and answer.usage.completion_tokens > 0
