"""Sample values of any type that pydantic knows, and whether JSON keeps them.

Samples are made from pydantic's core schema. Each kind of leaf has a few values at its edges. What
is put together of others, such as a model or a list, has as many values as the richest of its
parts, so that each value of each part occurs. Nothing is random: two runs try the same values.
"""

import datetime
import decimal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from agentix.errors import SerializationError
from agentix.stub import Codec

__all__ = ["NO_JSON", "kinds_without_json", "lost_value", "values_of"]

NO_JSON = {"callable", "custom-error", "is-instance", "is-subclass"}
"""Kinds of schema that take objects which no JSON makes."""

DEEPEST = 3
"""How many types that may contain themselves lie within each other in a value."""

MOST = 64
"""The most values of one type that are tried."""

UTC = datetime.UTC
EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
LEAVES: Mapping[str, Sequence[Any]] = {
    "any": [None, "text", 7, [1, {"key": None}]],
    "bool": [True, False],
    "bytes": [b"", b"text", b"\xff\x00\xfe"],
    "complex": [1 + 2j],
    "date": [datetime.date(2026, 11, 21), datetime.date(1, 1, 1)],
    "datetime": [
        datetime.datetime(2026, 11, 21, 9, 30, 15, 123456, tzinfo=UTC),
        datetime.datetime(2026, 11, 21, 9, 30, tzinfo=EAST),
        datetime.datetime(2026, 11, 21, 9, 30),
    ],
    "decimal": [decimal.Decimal("0.10"), decimal.Decimal("-1E+30")],
    "float": [0.0, -1.5, 0.1, 1e300],
    "int": [0, 1, -7, 2**63, 10**30],
    "none": [None],
    "str": ["", "text", 'é \N{SNOWMAN} \N{PILE OF POO} "quoted"\\\n\t\0'],
    "time": [datetime.time(9, 30, 15), datetime.time(23, 59, 59, 999999, tzinfo=UTC)],
    "timedelta": [datetime.timedelta(minutes=90), datetime.timedelta(days=-1, microseconds=1)],
    "url": ["https://example.org/path?key=value"],
    "multi-host-url": ["postgres://one.example:5432,two.example/name"],
    "uuid": [uuid.UUID(int=1)],
}
"""The values of what has no parts."""

NOT_SCHEMAS = {"cls", "default", "expected", "members", "metadata", "serialization"}
"""Parts of a schema that do not say how JSON is read."""

BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
WRAPPERS = {
    "chain": "steps",
    "default": "schema",
    "function-after": "schema",
    "function-before": "schema",
    "function-wrap": "schema",
    "json": "schema",
    "json-or-python": "json_schema",
    "lax-or-strict": "lax_schema",
    "missing-sentinel": "schema",
    "model": "schema",
    "dataclass": "schema",
}
"""Kinds of schema that stand around another one, and where they have it."""

Schema = Mapping[str, Any]


def core_schema(annotation: Any) -> Schema:
    """Return pydantic's schema of a type, within a one-tuple as `agentix.stub.Codec` has it."""
    return TypeAdapter(tuple[annotation]).core_schema


def values_of(annotation: Any) -> list[Any]:
    """Return sample values of a type; none where it is not known how to make one."""
    codec: Codec[Any] = Codec(annotation)
    values = []
    for (raw,) in Sampler(core_schema(annotation)).samples():
        try:
            values.append(codec.validate(raw))
        except ValueError:  # a constraint or a validator refuses it
            continue
    return values[:MOST]


def lost_value(annotation: Any, value: Any) -> str | None:
    """Send a value through JSON, and return what became of it where it did not come back."""
    codec: Codec[Any] = Codec(annotation)
    try:
        text = codec.encode(value)
    except SerializationError as error:
        return f"{value!r} cannot be written as JSON: {_first_line(error)}"
    try:
        back = codec.decode(text)
    except ValueError as error:
        return f"{value!r} is written as {text.decode()}, which is not taken back: {_reason(error)}"
    if not _same(value, back):
        return f"{value!r} is written as {text.decode()}, and comes back as {back!r}"
    return None


def kinds_without_json(annotation: Any) -> set[str]:
    """Return the kinds of objects in a type that cannot come from JSON."""
    return {kind for kind in _kinds(core_schema(annotation)) if kind in NO_JSON}


def _kinds(schema: Any) -> Iterator[str]:
    """Yield the kinds of the schemas that JSON is read by."""
    match schema:
        case {"type": "json-or-python", "json_schema": inner}:
            yield from _kinds(inner)
        case {"type": "lax-or-strict", "lax_schema": inner}:
            yield from _kinds(inner)
        case {"type": "union", "choices": choices}:
            found = [set(_kinds(choice)) for choice in choices]
            # One choice that JSON can make is enough.
            if all(kinds & NO_JSON for kinds in found):
                yield from chain(*found)
        case {"type": str(kind), **parts}:
            yield kind
            for name, part in parts.items():
                if name not in NOT_SCHEMAS:
                    yield from _kinds(part)
        case dict():
            yield from chain.from_iterable(map(_kinds, schema.values()))
        case list() | tuple():
            yield from chain.from_iterable(map(_kinds, schema))


def _same(one: Any, other: Any) -> bool:
    """Return whether values are equal; those of a class without `__eq__` by what they hold."""
    if one == other:
        return type(one) is type(other) or not isinstance(one, bool | int | str | bytes)
    if type(one) is not type(other) or not _lacks_equality(one):
        return False
    return hasattr(one, "__dict__") and bool(vars(one) == vars(other))


def _lacks_equality(value: Any) -> bool:
    return not any("__eq__" in vars(base) for base in type(value).__mro__[:-1])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _reason(error: ValueError) -> str:
    details = getattr(error, "errors", None)
    return str(details()[0]["msg"]) if details else _first_line(error)


class Sampler:
    """Raw values of one schema, which its validator may still refuse.

    Args:
        schema: A core schema.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._definitions: dict[str, Schema] = {}
        self._depth = 0
        self._referred: dict[tuple[str, int], list[Any]] = {}
        self._validators: dict[int, SchemaValidator | None] = {}

    def samples(self) -> list[Any]:
        """Return the values."""
        return self._of(self._schema)

    def _of(self, schema: Schema) -> list[Any]:
        kind = str(schema["type"])
        if kind in LEAVES:
            return self._accepted(schema, [*LEAVES[kind], *_within_bounds(schema)])
        if kind in WRAPPERS:
            return self._inner(schema, schema[WRAPPERS[kind]])
        match schema:
            case {"type": "definitions"}:
                self._definitions |= {item["ref"]: item for item in schema["definitions"]}
                return self._of(schema["schema"])
            case {"type": "definition-ref", "schema_ref": reference}:
                return self._definition(reference)
            case {"type": "nullable"}:
                return [None, *self._of(schema["schema"])]
            case {"type": "literal", "expected": expected}:
                return list(expected)
            case {"type": "enum", "members": members}:
                return list(members)
            case {"type": "union", "choices": choices}:
                return [value for choice in choices for value in self._typed(_choice(choice))]
            case {"type": "tagged-union", "choices": choices}:
                return [value for choice in choices.values() for value in self._of(choice)]
            case {"type": "list" | "set" | "frozenset"}:
                return self._collection(schema)
            case {"type": "tuple", "items_schema": items}:
                variadic = schema.get("variadic_item_index")
                parts = {str(number): self._of(item) for number, item in enumerate(items)}
                rows = _rows(parts, optional=() if variadic is None else (str(variadic),))
                return [tuple(row.values()) for row in rows]
            case {"type": "dict"}:
                return self._mapping(schema)
            case {"type": "model-fields" | "typed-dict", "fields": fields}:
                return self._record({name: (name, field) for name, field in fields.items()})
            case {"type": "dataclass-args", "fields": fields}:
                return self._record({field["name"]: (field["name"], field) for field in fields})
            case _:
                return []

    def _definition(self, reference: str) -> list[Any]:
        """Return the values of a type that is referred to, made once for each depth."""
        if self._depth >= DEEPEST or reference not in self._definitions:
            return []
        place = reference, self._depth
        if place not in self._referred:
            self._depth += 1
            self._referred[place] = self._of(self._definitions[reference])[:MOST]
            self._depth -= 1
        return self._referred[place]

    def _inner(self, schema: Schema, inner: Any) -> list[Any]:
        if isinstance(inner, list):
            values = [value for step in inner for value in self._of(step)]
        else:
            values = self._of(inner)
        return self._accepted(schema, values) if "function" in schema else values

    def _typed(self, schema: Schema) -> list[Any]:
        """Return the values of one choice as that choice makes them, and not another one."""
        validator = self._validator(schema)
        values = self._of(schema)
        return values if validator is None else list(_accepted_by(validator, values))

    def _accepted(self, schema: Schema, values: Sequence[Any]) -> list[Any]:
        """Return the values that the schema accepts; all where it cannot be asked alone."""
        if not any(key in schema for key in (*BOUNDS, "function", "pattern", "min_length")):
            return list(values)
        validator = self._validator(schema)
        if validator is None:
            return list(values)
        return [value for value in values if any(True for _ in _accepted_by(validator, [value]))]

    def _validator(self, schema: Schema) -> SchemaValidator | None:
        """Return the validator of a part of the schema; `None` where it cannot stand alone."""
        if id(schema) not in self._validators:
            self._validators[id(schema)] = self._new_validator(schema)
        return self._validators[id(schema)]

    def _new_validator(self, schema: Schema) -> SchemaValidator | None:
        definitions = list(self._definitions.values())
        whole: Any = {"type": "definitions", "schema": schema, "definitions": definitions}
        try:
            return SchemaValidator(whole)
        except Exception:  # pydantic has no narrower class for all that is wrong with a schema
            return None

    def _collection(self, schema: Schema) -> list[Any]:
        items = self._of(schema["items_schema"]) if "items_schema" in schema else LEAVES["str"]
        hashable = [item for item in items if schema["type"] == "list" or _is_hashable(item)]
        least = int(schema.get("min_length") or 0)
        most = int(schema.get("max_length") or max(least, MOST))
        alone = [[item] * least if least > 1 else [item] for item in hashable]
        empty: list[list[Any]] = [] if least else [[]]
        return [*empty, hashable[:most], *alone] if hashable else empty

    def _mapping(self, schema: Schema) -> list[Any]:
        keys = self._of(schema["keys_schema"]) if "keys_schema" in schema else LEAVES["str"]
        values = self._of(schema["values_schema"]) if "values_schema" in schema else LEAVES["any"]
        pairs = [*_rows({"key": [key for key in keys if _is_hashable(key)], "value": list(values)})]
        empty: list[Any] = [] if schema.get("min_length") else [{}]
        return [*empty, *({pair["key"]: pair["value"]} for pair in pairs)]

    def _record(self, fields: Mapping[str, tuple[str, Schema]]) -> list[Any]:
        parts: dict[str, list[Any]] = {}
        optional = set()
        for name, field in fields.values():
            if field.get("init") is False or field["type"] == "computed-field":
                continue
            key = _input_name(name, field)
            parts[key] = self._of(field["schema"])
            if field["schema"]["type"] == "default" or field.get("required") is False:
                optional.add(key)
        return list(_rows(parts, optional))


def _choice(choice: Any) -> Schema:
    # A choice of a union may come with a label.
    return choice[0] if isinstance(choice, tuple) else choice  # type: ignore[no-any-return]


def _input_name(name: str, field: Schema) -> str:
    """Return the name that a field is filled by, which may be an alias."""
    alias = field.get("validation_alias")
    return alias if isinstance(alias, str) else name


def _rows(
    parts: Mapping[str, list[Any]], optional: Sequence[str] | set[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield rows in which each value of each part occurs; none where a part has no value."""
    parts = {name: values for name, values in parts.items() if values or name not in optional}
    if not all(parts.values()):
        return
    count = max((len(values) for values in parts.values()), default=1)
    for row in islice(range(count), MOST):
        yield {name: values[row % len(values)] for name, values in parts.items()}


def _accepted_by(validator: SchemaValidator, values: Sequence[Any]) -> Iterator[Any]:
    """Yield what a validator makes of the values that it accepts."""
    for value in values:
        with suppress(Exception):  # a user's validator may raise anything
            yield validator.validate_python(value)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _within_bounds(schema: Schema) -> Iterator[Any]:
    """Yield values at the edges of a leaf's constraints."""
    if schema["type"] in ("int", "float", "decimal"):
        for bound in BOUNDS:
            if (limit := schema.get(bound)) is not None:
                yield from (limit, limit + 1, limit - 1)
    if schema["type"] in ("str", "bytes"):
        length = int(schema.get("min_length") or schema.get("max_length") or 0)
        if length:
            yield "a" * length if schema["type"] == "str" else b"\xff" * length
