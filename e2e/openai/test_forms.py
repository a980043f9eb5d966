"""Answers of a form through openai-python: what a model of 1.6 million parameters says at a high temperature is valid to an independent validator."""

import enum
import json
import re
from typing import Literal

import jsonschema
import openai
import pydantic
import pytest

import tinsmith

QUESTION = [{"role": "user", "content": "Tell me."}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as made:
        yield made


def ask(client, seed=0, **more):
    return client.chat.completions.create(
        **{"model": tinsmith.MODEL, "messages": QUESTION, "max_tokens": 1500, "seed": seed, "temperature": 1.3, "reasoning_effort": "none"} | more
    )


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Circle(pydantic.BaseModel):
    kind: Literal["circle"]
    radius: int = pydantic.Field(ge=1, le=99)


class Square(pydantic.BaseModel):
    kind: Literal["square"]
    side: int
    label: str | None


class Drawing(pydantic.BaseModel):
    colour: Colour
    shapes: list[Circle | Square] = pydantic.Field(max_length=2)
    visible: bool


SCHEMAS = {
    "numbers": {"type": "object", "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 5}, "b": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "c": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99}}},
    "strings": {"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 4}, "b": {"type": "string", "pattern": "^[a-c]{2}\\d$"}, "c": {"enum": ["x", "y\n", "\"z\""]}}},
    "formats": {"type": "object", "properties": {"a": {"type": "string", "format": "date"}, "b": {"type": "string", "format": "ipv4"}, "c": {"type": "string", "format": "uuid"}, "d": {"type": "string", "format": "date-time"}}},
    "arrays": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 3}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 7}], "items": False, "minItems": 2},
    "any of": {"anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}, {"type": "string", "maxLength": 3}]},
    "all of": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}}, {"properties": {"a": {"maximum": 8}}}]},
    "recursive": {"$defs": {"tree": {"type": "object", "properties": {"left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}, "value": {"enum": [1, 2]}}}}, "$ref": "#/$defs/tree"},
    "keys": {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "boolean"}}, "additionalProperties": False, "maxProperties": 2},
}


def closed(schema):
    """Every object with all of its properties and no others, as OpenAI's strict schemas have them."""
    if isinstance(schema, dict):
        made = {key: closed(value) for key, value in schema.items()}
        if "properties" in schema and schema.get("type") == "object":
            made |= {"required": list(schema["properties"]), "additionalProperties": False}
        return made
    return [closed(item) for item in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_strict_schemas(client, name):
    schema = SCHEMAS[name] if name in ("all of", "keys") else closed(SCHEMAS[name])
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    ended = 0
    for seed in range(6):
        choice = ask(client, seed, max_tokens=300, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}).choices[0]
        if choice.finish_reason == "stop":
            ended += 1
            validator.validate(json.loads(choice.message.content))
    assert ended > 0


def test_parse(client):
    """The SDK's own reading of an answer into classes."""
    parsed = 0
    for seed in range(6):
        try:
            answer = client.chat.completions.parse(model=tinsmith.MODEL, messages=QUESTION, response_format=Drawing, max_tokens=400, seed=seed, reasoning_effort="none")
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(answer.choices[0].message.parsed, Drawing)
        parsed += 1
    assert parsed > 0


def test_stream_and_parse(client):
    with client.chat.completions.stream(model=tinsmith.MODEL, messages=QUESTION, response_format=Circle, max_tokens=200, seed=1, reasoning_effort="none") as stream:
        deltas = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion().choices[0]
    assert final.message.content == deltas and isinstance(final.message.parsed, Circle)


def test_tools_of_classes(client):
    tool = openai.pydantic_function_tool(Circle, name="draw")
    answer = client.chat.completions.parse(model=tinsmith.MODEL, messages=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200, seed=3, reasoning_effort="none")
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "draw" and isinstance(call.function.parsed_arguments, Circle)
    with client.chat.completions.stream(
        model=tinsmith.MODEL, messages=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200, seed=3, reasoning_effort="none"
    ) as stream:
        again = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert again.function.arguments == call.function.arguments


def test_other_forms(client):
    for seed in range(3):
        assert ask(client, seed, extra_body={"guided_choice": ["yes", "no"]}).choices[0].message.content in ("yes", "no")
        assert re.fullmatch(r"[a-f]{3}-\d", ask(client, seed, extra_body={"structured_outputs": {"regex": r"[a-f]{3}-\d"}}).choices[0].message.content)
        text = client.completions.create(model=tinsmith.MODEL, prompt="1, 2,", max_tokens=50, seed=seed, extra_body={"guided_grammar": 'root ::= [0-9]+ ("," [0-9]+){0,3} "."'}).choices[0].text
        assert re.fullmatch(r"\d+(,\d+){0,3}\.", text) or len(text) > 40


def test_the_bits_of_a_held_answer(client):
    """Neighbours, and whether an answer is held to a form, change no log-probability; equal seeds give equal answers."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": closed(SCHEMAS["numbers"]), "strict": True}}
    first = ask(client, 5, logprobs=True, response_format=form)
    again = ask(client, 5, logprobs=True, response_format=form, n=4)
    assert [t.logprob for t in first.choices[0].logprobs.content] == [t.logprob for t in again.choices[0].logprobs.content]


def test_refused(client):
    with pytest.raises(openai.BadRequestError, match="set strict to false"):
        ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "string", "pattern": "(?=a)b"}}})
