"""@xmlify: marks a class as one whose instances travel as XML, and makes it a dataclass."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

__all__ = ["is_xmlified", "xmlify"]

T = TypeVar("T")

MARK = "__agentix_xmlify__"
"""The attribute that marks a class; it holds the class's own name, so it is not inherited."""


@dataclass_transform(field_specifiers=(dataclasses.field,))
def xmlify(cls: type[T]) -> type[T]:
    """Marks a payload class.

    It works above `@dataclass`, below it, and alone, where the class becomes a dataclass. What a
    field may be is checked at registration, not here, so importing a class stays cheap.
    """
    if "__dataclass_fields__" not in cls.__dict__:
        make_dataclass(cls)
    setattr(cls, MARK, cls.__qualname__)
    return cls


def is_xmlified(cls: type) -> bool:
    """Tells whether a class itself, not only a base of it, is marked."""
    return MARK in cls.__dict__ and dataclasses.is_dataclass(cls)


def make_dataclass(cls: type[Any]) -> None:
    """Makes a dataclass of a class that may still be given to `@dataclass` afterwards.

    `dataclass` keeps methods that it finds, and takes a field's specification off the class. So
    the specifications are put back, and the methods wait until the first instance is made: a
    `@dataclass(frozen=True)` above finds the class as its author wrote it.
    """
    before = dict(cls.__dict__)
    dataclasses.dataclass(cls)
    parameters = cls.__dict__["__dataclass_params__"]
    waiting = {
        name: cls.__dict__[name]
        for name in set(cls.__dict__) - set(before)
        if not name.startswith("__dataclass_")
    }
    if cls.__dict__.get("__hash__", 0) is not before.get("__hash__", 0):
        waiting["__hash__"] = cls.__dict__["__hash__"]
    for name in waiting:
        delattr(cls, name)
    for name, value in before.items():
        if isinstance(value, dataclasses.Field):
            setattr(cls, name, value)
    if "__new__" in before:
        complete(cls, waiting)
        return

    def first(kind: type[Any], *args: object, **kwargs: object) -> Any:
        if cls.__dict__["__dataclass_params__"] is parameters:
            complete(cls, waiting)
        return object.__new__(kind)

    cls.__new__ = first  # type: ignore[assignment]


def complete(cls: type[Any], methods: dict[str, Any]) -> None:
    """Gives a class the methods that it does not have itself; none wait afterwards."""
    for name in [*methods]:
        method = methods.pop(name)
        if name not in cls.__dict__:
            setattr(cls, name, method)
