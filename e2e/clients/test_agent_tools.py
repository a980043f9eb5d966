"""openai-agents with tools that it must call, forms and handoffs, over /v1/responses and over /v1/chat/completions."""

import asyncio

import agents
import openai
import pytest
from openai.types.shared import Reasoning

import tinsmith
from shapes import MAX_TOKENS, QUESTION, Drawing

agents.set_tracing_disabled(True)
MODELS = [agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel]


def play(server, model, make, input=QUESTION, streamed=False, **more):
    """Runs the agent that `make` makes of a model and settings."""

    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as client:
            settings = {"max_tokens": MAX_TOKENS, "temperature": 1, "reasoning": Reasoning(effort="none"), "store": False}
            one = make(model(tinsmith.MODEL, client), lambda **own: agents.ModelSettings(**settings | own))
            if not streamed:
                return await agents.Runner.run(one, input, **more), []
            result = agents.Runner.run_streamed(one, input, **more)
            return result, [event async for event in result.stream_events()]

    return asyncio.run(run())


def add_tool(seen):
    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        seen.append((a, b))
        return a + b

    return add


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streamed", [False, True])
def test_tool_loop(server, model, streamed):
    """The forced first turn calls a tool, strict by default; the agent then is free to answer."""
    seen = []
    result, events = play(
        server, model, lambda model, settings: agents.Agent(name="calculator", model=model, tools=[add_tool(seen)], model_settings=settings(tool_choice="required", parallel_tool_calls=False)), streamed=streamed
    )
    assert seen and isinstance(result.final_output, str)
    outputs = [item for item in result.new_items if isinstance(item, agents.ToolCallOutputItem)]
    assert [item.output for item in outputs] == [a + b for a, b in seen]
    if streamed:
        names = [event.name for event in events if event.type == "run_item_stream_event"]
        assert "tool_called" in names and "tool_output" in names


@pytest.mark.parametrize("model", MODELS)
def test_output_type(server, model):
    result, _ = play(server, model, lambda model, settings: agents.Agent(name="painter", model=model, output_type=Drawing, model_settings=settings()))
    assert isinstance(result.final_output, Drawing)


@pytest.mark.parametrize("model", MODELS)
def test_handoff(server, model):
    def make(model, settings):
        painter = agents.Agent(name="painter", model=model, output_type=Drawing, model_settings=settings())
        return agents.Agent(name="receptionist", model=model, handoffs=[painter], model_settings=settings(tool_choice="required", parallel_tool_calls=False))

    result, _ = play(server, model, make)
    assert result.last_agent.name == "painter" and isinstance(result.final_output, Drawing)
