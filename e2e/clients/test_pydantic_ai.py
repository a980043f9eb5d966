"""pydantic-ai, unmodified, against the real server."""

import asyncio

import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

import tinsmith
from shapes import MAX_TOKENS, QUESTION, Drawing, Sum

SETTINGS = {"max_tokens": MAX_TOKENS, "seed": 5, "temperature": 1.0}


@pytest.fixture
def agent(server):
    def make(kind=OpenAIChatModel, **more):
        model = kind(tinsmith.MODEL, provider=OpenAIProvider(base_url=server.url + "/v1", api_key=server.key))
        settings = ModelSettings(**SETTINGS) | {"openai_reasoning_effort": "none"}
        return Agent(model, model_settings=settings, retries=2, **more)

    return make


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize("output", [Drawing, NativeOutput(Drawing), ToolOutput(Drawing, strict=True)], ids=["default", "native", "strict"])
def test_output(agent, kind, output):
    result = asyncio.run(agent(kind, output_type=output).run(QUESTION))
    assert isinstance(result.output, Drawing)
    assert result.usage.output_tokens > 0 and result.usage.requests >= 1


def calls(messages):
    made = [part for message in messages if isinstance(message, ModelResponse) for part in message.parts if isinstance(part, ToolCallPart)]
    answers = {part.tool_call_id: part for message in messages if isinstance(message, ModelRequest) for part in message.parts if isinstance(part, ToolReturnPart)}
    return made, answers


def test_tools(agent):
    """Function tools beside the output tool: every call is answered, and the output tool ends the run."""
    one = agent(output_type=Sum)

    @one.tool_plain
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    added = 0
    for seed in range(5):
        result = asyncio.run(one.run(QUESTION, model_settings={"seed": seed}, usage_limits=UsageLimits(request_limit=20)))
        assert isinstance(result.output, Sum)
        made, answers = calls(result.all_messages())
        assert any(call.tool_name == "final_result" for call in made)
        for call in made:
            answer = answers.get(call.tool_call_id)
            if call.tool_name == "add" and answer is not None and isinstance(answer.content, int):
                assert answer.content == sum(call.args_as_dict().values())
                added += 1
    assert added > 0


def test_stream(agent):
    async def play():
        async with agent(output_type=Drawing).run_stream(QUESTION) as streamed:
            partial = [piece async for piece in streamed.stream_output(debounce_by=None)]
            return partial, await streamed.get_output()

    partial, last = asyncio.run(play())
    assert len(partial) > 1 and partial[-1] == last and isinstance(last, Drawing)
    assert asyncio.run(agent(output_type=Drawing).run(QUESTION)).output == last


def test_text(agent):
    async def play():
        async with agent().run_stream(QUESTION) as streamed:
            return [piece async for piece in streamed.stream_text(delta=True)], (await streamed.get_output())

    deltas, text = asyncio.run(play())
    assert text and "".join(deltas) == text
