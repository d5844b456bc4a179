"""Payload classes in a module whose annotations are postponed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from agentix.agentserver.payload.types import xmlify


@dataclass
class Point:
    x: float  # to the right
    y: float  # upwards


@xmlify
@dataclass
class Shape:
    name: Annotated[str, "what it is called"]  # not this
    corners: list[Point] = field(default_factory=list, metadata={"doc": "in any order"})
    color: Literal["red", "green"] = "red"
    """the color

    of the lines
    """
    width: int | None = None
    # not a comment of the field below
    height: int = 0  # how high it is
