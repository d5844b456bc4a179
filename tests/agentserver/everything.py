"""A payload class with a field of every type."""

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, ClassVar, Literal, NewType, Optional, Union

from agentix.agentserver.payload.types import xmlify

UserId = NewType("UserId", int)


class Color(Enum):
    RED = "red"
    GREEN = "green"
    ROUGE = "red"  # noqa: PIE796 - an alias


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int = 0


@xmlify
@dataclass
class Everything:
    shared: ClassVar[int] = 3
    integer: int
    text: str
    number: float
    flag: bool
    amount: Decimal
    day: datetime.date
    moment: datetime.datetime
    data: bytes
    word: Literal["a", "b"]
    color: Color
    level: Level
    items: list[int]
    table: dict[str, list[Point]]
    point: Point
    user: UserId
    old: Optional[int]  # noqa: UP045 - what older code has
    either: Union[None, str] = None  # noqa: RUF036, UP007
    noted: Annotated[int | None, 5, "a note"] = 7
    counted: int = field(default=2**70, init=True)
    computed: int = field(default=0, init=False)
