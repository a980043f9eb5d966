"""LangChain, unmodified, against the real server."""

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

import tinsmith
from shapes import MAX_TOKENS, QUESTION, Drawing, Sum


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool("add_digits", args_schema=Sum)
def add_digits(a: int, b: int) -> int:
    """Adds two digits."""
    return a + b


@pytest.fixture
def chat(server):
    def make(**more):
        return ChatOpenAI(
            **{"model": tinsmith.MODEL, "base_url": server.url + "/v1", "api_key": server.key, "max_retries": 0, "max_tokens": MAX_TOKENS, "seed": 5, "reasoning_effort": "none"} | more
        )

    return make


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"method": "function_calling"}, {"method": "function_calling", "strict": True}], ids=str)
def test_structured_output(chat, options):
    made = chat().with_structured_output(Drawing, **options).invoke(QUESTION)
    assert isinstance(made, Drawing)


def test_structured_output_streamed_and_raw(chat):
    whole = chat().with_structured_output(Sum, include_raw=True).invoke(QUESTION)
    assert isinstance(whole["parsed"], Sum) and whole["parsing_error"] is None and whole["raw"].response_metadata["finish_reason"] == "stop"
    assert list(chat().with_structured_output(Sum).stream(QUESTION))[-1] == whole["parsed"]
    schema = Sum.model_json_schema() | {"title": "sum"}
    assert Sum.model_validate(chat().with_structured_output(schema).invoke(QUESTION)) == whole["parsed"]


def test_tools(chat):
    bound = chat().bind_tools([add_digits], tool_choice="any", strict=True)
    whole = bound.invoke(QUESTION)
    assert whole.tool_calls and not whole.invalid_tool_calls and all(call["name"] == "add_digits" for call in whole.tool_calls)
    assert whole.usage_metadata["total_tokens"] == whole.usage_metadata["input_tokens"] + whole.usage_metadata["output_tokens"]
    joined = None
    for chunk in bound.stream(QUESTION, stream_usage=True):
        joined = chunk if joined is None else joined + chunk
    assert [call["args"] for call in joined.tool_calls] == [call["args"] for call in whole.tool_calls]
    assert all(joined.usage_metadata[key] == whole.usage_metadata[key] for key in ("input_tokens", "output_tokens", "total_tokens"))
    results = [add_digits.invoke(call) for call in whole.tool_calls]
    assert results[0].content == str(sum(whole.tool_calls[0]["args"].values()))
    last = chat().bind_tools([add_digits], tool_choice="none").invoke([HumanMessage(QUESTION), whole, *results])
    assert last.response_metadata["finish_reason"] == "stop" and not last.tool_calls


def test_named_tool(chat):
    answer = chat().bind_tools([add, add_digits], tool_choice="add_digits", strict=True, parallel_tool_calls=False).invoke(QUESTION)
    assert [call["name"] for call in answer.tool_calls] == ["add_digits"]
    Sum.model_validate(answer.tool_calls[0]["args"])


@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])
def test_agent(chat, strategy):
    """The agent loop ends with an object, through a forced tool or through a form."""
    made = create_agent(chat(), tools=[add_digits], response_format=strategy(Sum)).invoke({"messages": [HumanMessage(QUESTION)]}, {"recursion_limit": 40})
    assert isinstance(made["structured_response"], Sum)
    asked = {call["id"]: call["args"] for message in made["messages"] if message.type == "ai" for call in message.tool_calls if call["name"] == "add_digits"}
    told = {message.tool_call_id: message.content for message in made["messages"] if isinstance(message, ToolMessage) and message.name == "add_digits" and message.status == "success"}
    assert told == {name: str(sum(asked[name].values())) for name in told}


@pytest.mark.parametrize("version", ["", "responses/v1"])
def test_responses(chat, version):
    """The same class over /v1/responses."""
    more = {"output_version": version} if version else {}
    assert isinstance(chat(use_responses_api=True, seed=None, **more).with_structured_output(Sum).invoke(QUESTION), Sum)
    bound = chat(use_responses_api=True, seed=None, **more).bind_tools([add_digits], tool_choice="any", strict=True)
    whole = bound.invoke(QUESTION)
    assert whole.tool_calls
    last = chat(use_responses_api=True, seed=None, **more).invoke([HumanMessage(QUESTION), whole, *(add_digits.invoke(call) for call in whole.tool_calls)])
    assert last.text
