"""What the clients are asked for: classes whose JSON is short, so that a toy model comes to their end.

They forbid other keys. A schema that says nothing of them allows any, as JSON Schema has it, and a toy model that may write keys writes them until it is cut.
"""

from typing import Literal

import pydantic

QUESTION = "What is 2 + 3?"
# Room for the longest answer of these classes: white space is bounded at each place, but a toy model may use all of it, and not every request has a seed.
MAX_TOKENS = 2000
DIGIT = pydantic.Field(ge=0, le=9)


class Closed(pydantic.BaseModel, extra="forbid"):
    pass


class Sum(Closed):
    """Two digits to add."""

    a: int = DIGIT
    b: int = DIGIT


class Circle(Closed):
    kind: Literal["circle"]
    radius: int = DIGIT


class Square(Closed):
    kind: Literal["square"]
    side: int = DIGIT
    label: Literal["big", "small"] | None


class Drawing(Closed):
    """A drawing of at most two shapes."""

    colour: Literal["red", "blue"]
    shapes: list[Circle | Square] = pydantic.Field(max_length=2)
    visible: bool
