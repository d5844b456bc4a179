"""Principals: who an external message comes from, as a gateway established it."""

from dataclasses import dataclass
from functools import lru_cache

__all__ = ["LOCAL", "Principal"]


@dataclass(frozen=True, slots=True)
class Principal:
    """An external sender. A gateway makes it from what it verified, never from a message."""

    name: str
    """The name that its messages must carry in `<from>`."""
    roots: frozenset[str] | None = None
    """The root tags that it may send; `None` for all."""
    admin: bool = False
    """Whether meta queries that are kept for `admin` are answered."""
    remote: bool = False
    """Whether it is another organism."""

    @staticmethod
    def of(principal: "Principal | str") -> "Principal":
        """Gives a principal by its name, one who may send everything and is no admin."""
        return _named(principal) if isinstance(principal, str) else principal

    def may_send(self, root: str) -> bool:
        """Tells whether it may send messages of a root tag."""
        return self.roots is None or root in self.roots


@lru_cache(maxsize=256)
def _named(name: str) -> Principal:
    return Principal(name)


LOCAL = Principal("local", admin=True)
"""The program that holds the organism as a library."""
