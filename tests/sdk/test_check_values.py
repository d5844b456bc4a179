"""The values that a check makes of a type, and which of them JSON loses."""

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, PlainSerializer
from typing_extensions import TypedDict

from agentix.namespace_sdk.check.importing.samples import kinds_without_json, lost_value, values_of


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    color: Color = Color.RED
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    name: str
    children: "list[Tree]"


@dataclass(eq=False)
class Identity:
    number: int


class Keys(TypedDict):
    one: int
    two: NotRequired[str]


class Model(BaseModel):
    at: datetime.datetime
    where: Path | None = None
    bounded: Annotated[int, Field(gt=3, lt=7)]


class Renamed(BaseModel):
    number: int = Field(alias="other")


class Blob(BaseModel):
    data: bytes


class SafeBlob(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    data: bytes


class Secret(BaseModel):
    shown: int
    hidden: int = Field(default=0, exclude=True)


class Started(BaseModel):
    type: Literal["started"] = "started"


class Ended(BaseModel):
    type: Literal["ended"] = "ended"
    exit_code: int


Event = Annotated[Started | Ended, Field(discriminator="type")]

SOUND: list[Any] = [
    None, bool, int, float, str, bytes, object, Any, Color, Point, Tree, Identity, Keys, Model,
    SafeBlob, Event, datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
    decimal.Decimal, uuid.UUID, Path, HttpUrl, list[Point], dict[str, bytes], dict[int, Color],
    set[int], frozenset[str], tuple[int, str], tuple[int, ...], Sequence[Event],
    Mapping[str, Point], int | str | None, Literal["a", 1], Annotated[int, Field(ge=10, le=12)],
    Annotated[str, Field(min_length=20)], Annotated[list[int], Field(min_length=3, max_length=4)],
]  # fmt: skip


@pytest.mark.parametrize("annotation", SOUND, ids=str)
def test_values_of_a_sound_type_come_back(annotation: Any) -> None:
    values = values_of(annotation)
    assert values
    assert [lost for value in values if (lost := lost_value(annotation, value))] == []
    assert kinds_without_json(annotation) == set()


LOSING: list[tuple[Any, str]] = [
    (Blob, "cannot be written as JSON"),
    (Secret, "comes back as Secret(shown=1, hidden=0)"),
    (Renamed, "which is not taken back: Field required"),
    (str | Path, "comes back as"),
    (bytes | str, "comes back as"),
    (set[int] | list[int], "comes back as"),
    (
        Annotated[int, PlainSerializer(lambda value: f"<{value}>", return_type=str)],
        "which is not taken back",
    ),
]


@pytest.mark.parametrize(("annotation", "reason"), LOSING, ids=lambda item: str(item)[:30])
def test_values_that_json_loses_are_told(annotation: Any, reason: str) -> None:
    told = [lost for value in values_of(annotation) if (lost := lost_value(annotation, value))]
    assert any(reason in text for text in told), told


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        (Callable[[], int], {"callable"}),
        (list[Callable[..., Any]], {"callable"}),
        (type, {"is-instance"}),
        (Callable[[], int] | int, set()),
    ],
    ids=str,
)
def test_objects_that_json_cannot_make_are_told(annotation: Any, kinds: set[str]) -> None:
    assert kinds_without_json(annotation) & {"callable", "is-instance"} == kinds


def test_every_edge_of_every_field_is_tried() -> None:
    values = values_of(tuple[bool, Color, int | None])
    assert {value[0] for value in values} == {True, False}
    assert {value[1] for value in values} == set(Color)
    assert {value[2] for value in values} == {None, 0, 1, -7, 2**63, 10**30}


@dataclass
class Number:
    value: float


@dataclass
class Add:
    left: "Add | Multiply | Negate | Call | Let | Number"
    right: "Add | Multiply | Negate | Call | Let | Number"


@dataclass
class Multiply:
    left: "Add | Multiply | Negate | Call | Let | Number"
    right: "Add | Multiply | Negate | Call | Let | Number"


@dataclass
class Negate:
    operand: "Add | Multiply | Negate | Call | Let | Number"


@dataclass
class Call:
    name: str
    arguments: "list[Add | Multiply | Negate | Call | Let | Number]"
    keywords: "dict[str, Add | Multiply | Negate | Call | Let | Number]"


@dataclass
class Let:
    bound: "dict[str, Add | Multiply | Negate | Call | Let | Number]"
    body: "Add | Multiply | Negate | Call | Let | Number"


def test_types_that_contain_each_other_end_with_few_values() -> None:
    values = values_of(Let)
    assert 0 < len(values) <= 64
    assert {type(value.body) for value in values} >= {Number, Negate}
    # Nothing in the JSON of a product tells it from a sum.
    told = [lost for value in values if (lost := lost_value(Let, value))]
    assert told
    assert all("Multiply(" in lost for lost in told)


def test_recursive_type_ends() -> None:
    depths = [depth(value) for value in values_of(Tree)]
    assert max(depths) >= 2


def depth(tree: Tree) -> int:
    return 1 + max(map(depth, tree.children), default=0)
