"""Reports: which measures hold the handlers on this machine, and which could not be applied."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HardeningReport", "Measure"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One way in which a worker is held."""

    name: str
    """Its name, such as `own uid` or `no network`."""
    applied: bool
    """It is in force."""
    detail: str = ""
    """How it is in force, or why it is not."""

    def __str__(self) -> str:
        state = "applied" if self.applied else "NOT APPLIED"
        return f"{self.name}: {state}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class HardeningReport:
    """What holds the handlers of an organism."""

    isolation: str
    """`thread`, `listener` or `inprocess`."""
    measures: tuple[Measure, ...] = ()
    """All measures, in the order in which they are applied."""

    @property
    def missing(self) -> tuple[Measure, ...]:
        """The measures that could not be applied."""
        return tuple(measure for measure in self.measures if not measure.applied)

    def lines(self) -> list[str]:
        """Gives the report as text, a line for the isolation and one for each measure."""
        return [f"isolation: {self.isolation}", *map(str, self.measures)]
