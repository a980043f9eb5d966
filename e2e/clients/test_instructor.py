"""instructor, unmodified, against the real server."""

import instructor
import openai
import pydantic
import pytest
from instructor import Mode

import tinsmith
from shapes import DIGIT, QUESTION, Closed, Drawing, Sum

MESSAGES = [{"role": "user", "content": QUESTION}]
OPTIONS = {"model": tinsmith.MODEL, "messages": MESSAGES, "max_tokens": 300, "seed": 5, "reasoning_effort": "none", "max_retries": 1}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as made:
        yield lambda mode=Mode.TOOLS: instructor.from_openai(made, mode=mode)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA])
def test_modes(client, mode):
    made, completion = client(mode).create_with_completion(response_model=Drawing, **OPTIONS)
    assert isinstance(made, Drawing) and completion.usage.completion_tokens > 0


def test_partial(client):
    """Fields come while the arguments are being written."""
    pieces = list(client().create_partial(response_model=Drawing, **OPTIONS))
    assert len(pieces) > 2
    last = Drawing.model_validate(pieces[-1].model_dump())
    assert pieces[0].colour is None or pieces[0].visible is None
    assert last.visible is not None


def test_retry(client):
    """What fails the class's own check goes back as the result of the call, and the model is asked again."""
    tries = []

    class Even(Closed):
        a: int = DIGIT

        @pydantic.field_validator("a")
        @classmethod
        def third(cls, value):
            tries.append(value)
            if len(tries) < 3:
                raise ValueError("not yet")
            return value

    made, completion = client().create_with_completion(response_model=Even, **OPTIONS | {"max_retries": 4})
    assert len(tries) == 3 and made.a == tries[-1]
    assert completion.usage.total_tokens > 0
