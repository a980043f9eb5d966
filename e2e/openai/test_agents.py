"""openai-agents, unmodified, against the real server: it speaks /v1/responses by default."""

import asyncio
import contextlib

import agents
import openai
import pydantic
import pytest

import tinsmith

agents.set_tracing_disabled(True)


@agents.function_tool(strict_mode=False)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@contextlib.asynccontextmanager
async def agent(server, **more):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as client:
        model = agents.OpenAIResponsesModel(tinsmith.MODEL, client)
        settings = agents.ModelSettings(**{"temperature": 0, "max_tokens": 16} | more.pop("settings", {}))
        yield agents.Agent(name="calculator", instructions="Be brief.", model=model, model_settings=settings, **more)


def expected(server, input, **more):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as client:
        return client.responses.create(model=tinsmith.MODEL, input=input, instructions="Be brief.", temperature=0, max_output_tokens=16, **more).output_text


def test_run(server):
    async def play():
        async with agent(server) as one:
            return await agents.Runner.run(one, "What is 2 + 3?")

    result = asyncio.run(play())
    assert result.final_output == expected(server, "What is 2 + 3?") != ""
    assert result.raw_responses[0].usage.total_tokens > 0


def test_streamed_with_tools(server):
    async def play():
        async with agent(server, tools=[add], settings={"parallel_tool_calls": False, "tool_choice": "auto"}) as one:
            result = agents.Runner.run_streamed(one, "What is 2 + 3?")
            text = ""
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    text += event.data.delta
            return text, result.final_output

    text, final = asyncio.run(play())
    assert text == final != ""


@pytest.mark.parametrize("kept", ["by the client", "by the server"])
def test_turns(server, kept):
    """What an agent keeps of a conversation, and what the server does, is the same conversation."""

    async def play():
        async with agent(server, settings={"store": kept == "by the server"}) as one:
            first = await agents.Runner.run(one, "What is 2 + 3?")
            if kept == "by the server":
                return first, await agents.Runner.run(one, "And 4 more?", previous_response_id=first.last_response_id)
            return first, await agents.Runner.run(one, first.to_input_list() + [{"role": "user", "content": "And 4 more?"}])

    first, second = asyncio.run(play())
    history = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": first.final_output}, {"role": "user", "content": "And 4 more?"}]
    assert second.final_output == expected(server, history)


class Sum(pydantic.BaseModel):
    a: int
    b: int
    right: bool


@agents.function_tool
def strictly_add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def test_defaults(server):
    """Tools and output types are strict by default; a toy model calls them because it must."""

    async def play():
        async with agent(server, tools=[strictly_add], settings={"tool_choice": "required", "max_tokens": 200}) as one:
            called = await agents.Runner.run(one, "What is 2 + 3?")
        async with agent(server, output_type=Sum, settings={"max_tokens": 200}) as one:
            return called, (await agents.Runner.run(one, "What is 2 + 3?")).final_output

    called, final = asyncio.run(play())
    assert any(isinstance(i, agents.ToolCallOutputItem) for i in called.new_items)
    assert isinstance(final, Sum)
