"""@xmlify: marks a class as one whose instances travel as XML, and makes it a dataclass."""

import copy
import dataclasses
from typing import Any, TypeVar, dataclass_transform

__all__ = ["is_xmlified", "xmlify"]

T = TypeVar("T")

MARK = "__agentix_xmlify__"
"""The attribute that marks a class; it counts on the class itself, not on a base of it."""


@dataclass_transform(field_specifiers=(dataclasses.field,))
def xmlify(cls: type[T]) -> type[T]:
    """Marks a payload class.

    It works above `@dataclass`, below it, and alone, where the class becomes a dataclass. What a
    field may be is checked at registration, not here, so importing a class stays cheap.
    """
    if "__dataclass_fields__" not in cls.__dict__:
        make_dataclass(cls)
    setattr(cls, MARK, True)
    return cls


def is_xmlified(cls: type) -> bool:
    """Tells whether a class itself, not only a base of it, is marked."""
    return MARK in cls.__dict__ and dataclasses.is_dataclass(cls)


def make_dataclass(cls: type[Any]) -> None:
    """Makes a dataclass of a class that may still be given to `@dataclass` afterwards.

    `dataclass` keeps methods that it finds, and takes a field's specification off the class. So
    what it would see a second time is what the author wrote: the methods wait until the first
    instance is made, and a `@dataclass(frozen=True)` above makes its own.
    """
    before = dict(cls.__dict__)
    specified = {
        name: copy.copy(value)
        for name, value in before.items()
        if isinstance(value, dataclasses.Field)
    }
    dataclasses.dataclass(cls)
    parameters = cls.__dict__["__dataclass_params__"]
    made = {
        name: value
        for name, value in cls.__dict__.items()
        if value is not before.get(name, dataclasses.MISSING)
        and not name.startswith(("__dataclass_", "__doc__"))
    }
    if "__new__" in before:
        return
    for name in made:
        delattr(cls, name)
    for name, value in (before | specified).items():
        if name in made or name in specified:
            setattr(cls, name, value)

    def first(kind: type[Any], /, *args: object, **kwargs: object) -> Any:
        if made and cls.__dict__["__dataclass_params__"] is parameters:
            complete(cls, made, specified)
        return object.__new__(kind)

    first.__wrapped__ = made.get("__init__", cls.__init__)  # type: ignore[attr-defined]
    setattr(cls, "__new__", first)  # noqa: B010 - to mypy, an assignment redefines the method


def complete(cls: type[Any], made: dict[str, Any], specified: dict[str, Any]) -> None:
    """Gives a class what a dataclass has; nothing waits any longer afterwards."""
    for name in specified:
        if name not in made:
            delattr(cls, name)
    for name, value in made.items():
        setattr(cls, name, value)
    made.clear()
    specified.clear()
