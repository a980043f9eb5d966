"""inspect-ai, unmodified, against the real server: tasks with tools, forms and log-probabilities, evaluated and scored."""

from typing import Literal

import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema

import tinsmith
from shapes import QUESTION, Closed, Sum



class Picture(Closed):
    """Of what inspect's own schemas can say, which have no constants and no longest list."""

    colour: Literal["red", "blue"]
    label: Literal["big", "small"] | None
    sizes: Sum
    visible: bool


SAMPLES = [Sample(input=QUESTION, target="5"), Sample(input="What is 1 + 1?", target="2")]


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The one number.
            b: The other number.
        """
        return str(a + b)

    return execute


def run(server, tmp_path, task, responses=False, **config):
    model = get_model(
        f"openai-api/tinsmith/{tinsmith.MODEL}", base_url=server.url + "/v1", api_key=server.key, memoize=False, responses_api=responses,
        config=GenerateConfig(**{"max_tokens": 300, "seed": 5, "reasoning_effort": "none", "max_retries": 0} | config),
    )
    [log] = evaluate(task, model=model, log_dir=str(tmp_path), display="none", log_level="warning", fail_on_error=True)
    assert log.status == "success", log.error
    return log


@scorer(metrics=[accuracy()])
def valid(kind):
    """1 for an answer that the class reads."""

    async def score(state, target):
        try:
            kind.model_validate_json(state.output.completion)
        except ValueError as wrong:
            return Score(value=0, explanation=str(wrong))
        return Score(value=1)

    return score


def accuracy_of(log):
    return log.results.scores[0].metrics["accuracy"].value


@pytest.mark.parametrize("responses", [False, True])
def test_response_schema(server, tmp_path, responses):
    form = ResponseSchema(name="picture", json_schema=json_schema(Picture), strict=True)
    log = run(server, tmp_path, Task(dataset=SAMPLES, solver=generate(), scorer=valid(Picture)), responses, response_schema=form)
    assert accuracy_of(log) == 1
    assert all(sample.output.stop_reason == "stop" and sample.output.usage.output_tokens > 0 for sample in log.samples)


@pytest.mark.parametrize("responses", [False, True])
def test_tools(server, tmp_path, responses):
    """`any` forces a call, which inspect makes; the model then sees its result."""
    log = run(server, tmp_path, Task(dataset=SAMPLES, solver=[use_tools(add(), tool_choice="any"), generate(tool_calls="single")]), responses, parallel_tool_calls=False)
    for sample in log.samples:
        call = next(message for message in sample.messages if message.role == "assistant").tool_calls[0]
        answer = next(message for message in sample.messages if message.role == "tool")
        assert call.function == "add" and not call.parse_error and answer.tool_call_id == call.id
        assert answer.error is not None or answer.text == str(call.arguments["a"] + call.arguments["b"])


def test_logprobs_and_choices(server, tmp_path):
    log = run(server, tmp_path, Task(dataset=SAMPLES[:1], solver=generate()), logprobs=True, top_logprobs=2, num_choices=2, max_tokens=16)
    choices = log.samples[0].output.choices
    assert len(choices) == 2
    for choice in choices:
        assert choice.logprobs.content and all(token.logprob <= 0 and len(token.top_logprobs) >= 2 for token in choice.logprobs.content)


def test_too_long(server, tmp_path):
    """inspect knows the error of a full context and ends the sample with `model_length`."""
    log = run(server, tmp_path, Task(dataset=[Sample(input="one two three " * 4000)], solver=generate()))
    assert log.samples[0].output.stop_reason == "model_length"


def test_class_of_digits(server, tmp_path):
    form = ResponseSchema(name="sum", json_schema=json_schema(Sum))
    assert accuracy_of(run(server, tmp_path, Task(dataset=SAMPLES, solver=generate(), scorer=valid(Sum)), response_schema=form)) == 1
