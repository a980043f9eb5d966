"""LiteLLM, unmodified, against the real server."""

import json
import os

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its list of prices is looked for in the network otherwise

import litellm  # noqa: E402
import tinsmith  # noqa: E402
from shapes import MAX_TOKENS, QUESTION, Drawing, Sum  # noqa: E402

MESSAGES = [{"role": "user", "content": QUESTION}]
# LiteLLM takes a false "additionalProperties" out of the tools that it sends to hosted_vllm; the bound keeps a toy model from writing more keys.
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": Sum.model_json_schema() | {"maxProperties": 2}}}


@pytest.fixture
def ask(server):
    def make(provider="openai", **more):
        where = {"api_base": server.url + "/v1", "api_key": server.key, "num_retries": 0, "max_retries": 0}
        return litellm.completion(**{"model": f"{provider}/{tinsmith.MODEL}", "messages": MESSAGES, "max_tokens": 300, "seed": 5, "extra_body": {"reasoning_effort": "none"}} | where | more)

    return make


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_response_format(ask, provider):
    answer = ask(provider, response_format=Drawing)
    Drawing.model_validate_json(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens > 0


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_tools(ask, provider):
    whole = ask(provider, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    call = whole.choices[0].message.tool_calls[0]
    sum_ = Sum.model_validate_json(call.function.arguments)
    assert whole.choices[0].finish_reason == "tool_calls" and call.function.name == "add"
    chunks = list(ask(provider, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    assert built.choices[0].finish_reason == "tool_calls" and built.usage.completion_tokens == whole.usage.completion_tokens
    result = {"role": "tool", "tool_call_id": call.id, "content": str(sum_.a + sum_.b)}
    last = ask(provider, messages=[*MESSAGES, whole.choices[0].message.model_dump(), result], tools=[TOOL], tool_choice="none")
    assert last.choices[0].finish_reason == "stop" and not last.choices[0].message.tool_calls


def test_thoughts(ask):
    """Thoughts come as `reasoning_content`, streamed and whole."""
    more = {"extra_body": {"structured_outputs": {"regex": "yes|no"}, "reasoning_effort": "high"}, "max_tokens": 400}
    whole = ask(**more).choices[0].message
    chunks = list(ask(stream=True, **more))
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message
    assert (built.content or "") == (whole.content or "")
    assert getattr(built, "reasoning_content", None) == getattr(whole, "reasoning_content", None)


def test_responses(server):
    """LiteLLM's own /v1/responses call, which the server serves itself."""
    answer = litellm.responses(
        model=f"openai/{tinsmith.MODEL}", input=QUESTION, api_base=server.url + "/v1", api_key=server.key, max_output_tokens=MAX_TOKENS, reasoning={"effort": "none"},
        text={"format": {"type": "json_schema", "name": "sum", "strict": True, "schema": Sum.model_json_schema()}},
    )
    text = "".join(part.text for item in answer.output if item.type == "message" for part in item.content)
    Sum.model_validate_json(text)


def test_anthropic(server):
    """LiteLLM as a client of /v1/messages."""
    answer = litellm.completion(
        model=f"anthropic/{tinsmith.MODEL}", messages=MESSAGES, api_base=server.url, api_key=server.key, max_tokens=MAX_TOKENS, num_retries=0,
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}}, temperature=0,
    )
    call = answer.choices[0].message.tool_calls[0]
    Sum.model_validate(json.loads(call.function.arguments))
    assert answer.choices[0].finish_reason == "tool_calls"


def test_errors(ask):
    with pytest.raises(litellm.NotFoundError):
        ask(model="openai/no/model")
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": "one two three " * 4000}])
