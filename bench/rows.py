"""Rows: what was measured, beside its floor, and whether that is what was aimed at."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

__all__ = ["Bound", "Row", "Skipped", "at_least", "at_most", "compared", "measured"]

Quantity = Literal["value", "ratio", "excess"]
"""What a bound is about: the value, its ratio to the floor, or what it is above the floor."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a row aims at."""

    quantity: Quantity
    """What is bounded."""
    relation: Literal["<=", ">="]
    """Whether the limit is the most or the least."""
    limit: float
    """The limit: a plain number for a ratio, in the row's unit otherwise."""

    def holds(self, actual: float) -> bool:
        """Tells whether a number keeps within the bound."""
        return actual <= self.limit if self.relation == "<=" else actual >= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was measured."""

    name: str
    """What it is."""
    value: float
    """The median of its runs."""
    unit: str
    """The unit of value and floor."""
    floor: float | None = None
    """The median of the floor, or of the peer, measured in the same runs."""
    ratio: float | None = None
    """The median of value through floor, run by run."""
    excess: float | None = None
    """The median of value less floor, run by run."""
    bound: Bound | None = None
    """What it aims at; `None` for what is told for information."""

    @property
    def target(self) -> str:
        """The bound in words."""
        match self.bound:
            case None:
                return ""
            case Bound("ratio", relation, limit):
                return f"{relation} {limit:g}x"
            case Bound("excess", relation, limit):
                return f"{relation} floor + {limit:g} {self.unit}"
            case Bound(_, relation, limit):
                return f"{relation} {limit:,g} {self.unit}".rstrip()

    @property
    def verdict(self) -> str:
        """Whether the bound holds."""
        if self.bound is None:
            return ""
        actual: float | None = getattr(self, self.bound.quantity)
        assert actual is not None
        return "met" if self.bound.holds(actual) else "MISSED"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be measured here."""

    name: str
    """What it is."""
    reason: str
    """Why not."""


def at_most(limit: float, quantity: Quantity = "value") -> Bound:
    """Makes a bound from above."""
    return Bound(quantity, "<=", limit)


def at_least(limit: float, quantity: Quantity = "value") -> Bound:
    """Makes a bound from below."""
    return Bound(quantity, ">=", limit)


def measured(name: str, unit: str, values: Sequence[float], bound: Bound | None = None) -> Row:
    """Makes the row of what has no floor."""
    return Row(name, median(values), unit, bound=bound)


def compared(
    name: str,
    unit: str,
    values: Sequence[float],
    floors: Sequence[float],
    bound: Bound | None = None,
) -> Row:
    """Makes the row of what was run in turn with its floor.

    Args:
        name: What was measured.
        unit: The unit of all numbers.
        values: The runs of it.
        floors: The runs of the floor, each next to the value with its index.
        bound: What is aimed at.
    """
    pairs = list(zip(values, floors, strict=True))
    ratio = median(value / floor for value, floor in pairs)
    excess = median(value - floor for value, floor in pairs)
    return Row(name, median(values), unit, median(floors), ratio, excess, bound)
