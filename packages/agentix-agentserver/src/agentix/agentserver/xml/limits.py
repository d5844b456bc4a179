"""Limits: how large a message may be before it is looked at any further."""

from dataclasses import dataclass, field

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a message may be made of; all are counted before anything that is not linear in them."""

    size: int = 1 << 20
    """Bytes of a message, or of what a handler returns."""
    depth: int = 64
    """Elements within one another."""
    elements: int = 10_000
    """Elements in all."""
    attributes: int = 16
    """Attributes of one element."""
    namespaces: int = 16
    """Namespace prefixes known at one element."""
    few_tags: int = field(init=False)
    """So many `<` can be beyond no limit, whatever they are."""
    few_values: int = field(init=False)
    """So many `=` can be beyond no limit, whatever they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "few_tags", min(self.depth, self.elements))
        object.__setattr__(self, "few_values", min(self.attributes, self.namespaces))
