"""Plain values to instances of a payload class and back, without lxml, by compiled closures."""

import datetime
from collections.abc import Callable
from dataclasses import MISSING
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args, get_origin

from agentix.agentserver.errors import PayloadError
from agentix.agentserver.payload.describe import (
    bare,
    describe_record,
    enum_spellings,
    field_hints,
    split_optional,
)
from agentix.agentserver.payload.types import Plain, brief

__all__ = ["constructor", "to_plain"]

Convert: TypeAlias = Callable[[Any], Any]


@lru_cache(maxsize=4096)
def constructor(cls: type) -> Callable[[Plain], Any]:
    """Compile what makes instances of a payload class from plain values that a codec decoded.

    Args:
        cls: A dataclass marked with `@xmlify`.

    Returns:
        A function of one plain value; fields that are left out get the class's defaults.

    Raises:
        RegistrationError: The class has no XML form.
    """
    describe_record(cls)
    return record_builder(cls)


@lru_cache(maxsize=4096)
def record_builder(cls: type) -> Callable[[Plain], Any]:
    """Compile what makes instances of a dataclass."""
    converts: list[tuple[str, Convert]] = []
    absent: dict[str, None] = {}
    for field, hint in field_hints(cls):
        inner, optional = split_optional(hint)
        if optional and field.default is MISSING and field.default_factory is MISSING:
            absent[field.name] = None
        if (convert := builder(inner)) is not None:
            converts.append((field.name, maybe(convert) if optional else convert))

    if not absent and not converts:
        return lambda plain: cls(**plain)

    def build(plain: Plain) -> Any:
        values = absent | plain
        for name, convert in converts:
            if name in values:
                values[name] = convert(values[name])
        return cls(**values)

    return build


def builder(hint: Any) -> Convert | None:
    """Compile what makes a field's value of a plain one; None where the two are the same."""
    hint = bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (list, dict):
        return container_builder(origin, builder(arguments[-1]))
    if origin is Literal or hint in (int, str, float, bool, bytes):
        return None
    if hint in READERS:
        return READERS[hint]
    if issubclass(hint, Enum):
        return {text: member for member, text in enum_spellings(hint).items()}.__getitem__
    return record_builder(hint)


def container_builder(origin: type, convert: Convert | None) -> Convert | None:
    """Compile what makes a list or a dict, given what makes one value of it."""
    if convert is None:
        return None
    if origin is list:
        return lambda items: [convert(item) for item in items]
    return lambda entries: {key: convert(value) for key, value in entries.items()}


def maybe(convert: Convert) -> Convert:
    """Let None through a conversion."""
    return lambda value: None if value is None else convert(value)


READERS: dict[Any, Convert] = {
    Decimal: Decimal,
    datetime.date: datetime.date.fromisoformat,
    datetime.datetime: datetime.datetime.fromisoformat,
}


def to_plain(instance: Any) -> Plain:
    """Turn an instance of a payload class into plain values, each checked against its type.

    Raises:
        PayloadError: A field holds what its annotation does not allow, named with its place.
        RegistrationError: The class has no XML form.
    """
    cls: type = type(instance)
    plain: Plain = instance_plainer(cls)(instance)
    return plain


@lru_cache(maxsize=4096)
def instance_plainer(cls: type) -> Convert:
    """Compile what turns instances of a payload class into plain values."""
    describe_record(cls)
    return record_plainer(cls)


@lru_cache(maxsize=4096)
def record_plainer(cls: type) -> Convert:
    """Compile what turns instances of a dataclass into plain values."""
    converts: list[tuple[str, Convert]] = []
    for field, hint in field_hints(cls):
        inner, optional = split_optional(hint)
        convert = plainer(f"{cls.__name__}.{field.name}", inner)
        converts.append((field.name, maybe(convert) if optional else convert))

    def dissolve(instance: Any) -> Plain:
        return {name: convert(getattr(instance, name)) for name, convert in converts}

    return expecting(cls.__name__, cls, dissolve)


def plainer(place: str, hint: Any) -> Convert:
    """Compile what turns a field's value into a plain one."""
    hint = bare(hint)
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is list:
            item = plainer(f"{place}[]", arguments[0])
            return expecting(place, list, lambda items: [item(value) for value in items])
        case origin if origin is dict:
            key, value = plainer(f"{place} key", str), plainer(f"{place}[]", arguments[1])
            return expecting(
                place, dict, lambda entries: {key(k): value(v) for k, v in entries.items()}
            )
        case origin if origin is Literal:
            return choosing(place, arguments)
        case _ if hint in WRITERS:
            return expecting(place, *WRITERS[hint])
        case _ if issubclass(hint, Enum):
            return expecting(place, hint, enum_spellings(hint).__getitem__)
        case _:
            return expecting(place, hint, record_plainer(hint))


def expecting(place: str, cls: Any, convert: Convert) -> Convert:
    """Compile a conversion that refuses values of another class."""

    def check(value: Any) -> Any:
        if not isinstance(value, cls) or (type(value) is bool and cls is not bool):
            wanted = getattr(cls, "__name__", str(cls))
            raise PayloadError(f"{place} takes {wanted}, not {type(value).__name__}")
        return convert(value)

    return check


def choosing(place: str, values: tuple[Any, ...]) -> Convert:
    """Compile a check that a value is one of a `Literal`, where 1 and True differ."""

    def check(value: Any) -> Any:
        for allowed in values:
            if type(value) is type(allowed) and value == allowed:
                return value
        raise PayloadError(f"{place} takes one of {values!r}, not {brief(value)}")

    return check


def floating(value: float) -> float:
    """Return a float as it travels."""
    try:
        return float(value)
    except OverflowError as error:
        raise PayloadError(f"an integer is too large for a float: {error}") from error


def day(value: datetime.date) -> str:
    """Return a date as it travels; a time is none."""
    if isinstance(value, datetime.datetime):
        raise PayloadError(f"{value!r} is no date but a datetime")
    return value.isoformat()


def decimal(value: Decimal) -> str:
    """Return a decimal as it travels, without an exponent."""
    if not value.is_finite() or abs(value.adjusted()) > 4_000:
        raise PayloadError(f"{value} is no decimal that XML can hold")
    return format(value, "f")


WRITERS: dict[Any, tuple[Any, Convert]] = {
    int: (int, lambda value: int(value)),
    str: (str, lambda value: str.__str__(value)),
    float: (float | int, floating),
    bool: (bool, lambda value: value),
    bytes: (bytes, bytes),
    Decimal: (Decimal, decimal),
    datetime.date: (datetime.date, day),
    datetime.datetime: (datetime.datetime, lambda value: value.isoformat()),
}
