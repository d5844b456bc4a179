"""The names of a namespace's classes: one for both directions of the wire where both are alike."""

import keyword
import re
from collections.abc import Iterable, Mapping

from agentix.namespace_sdk.stubs.types import Schema, Types

__all__ = ["class_names"]

DIRECTION = re.compile(r"(?P<base>.+)-(?P<direction>Input|Output)")

TAKEN = {
    *("collections", "dataclasses", "datetime", "decimal", "enum", "ipaddress", "pathlib"),
    *("typing", "typing_extensions", "uuid"),
}
"""Modules that stubs import."""


def class_names(definitions: Mapping[str, Schema], functions: Iterable[str]) -> dict[str, str]:
    """Gives the name of the class for each key of `$defs`.

    A type that is read in another form than it is written has two keys; where the annotations of
    its fields are the same in both, they are one class.

    Args:
        definitions: The `$defs`.
        functions: Names that classes cannot have.
    """
    apart: set[str] = set()
    while True:
        names = _names(definitions, apart, {*TAKEN, *functions})
        types = Types(names)
        unlike = {
            base
            for base in _pairs(definitions) - apart
            if _shape(definitions[f"{base}-Input"], types)
            != _shape(definitions[f"{base}-Output"], types)
        }
        if not unlike:
            return names
        apart |= unlike


def _pairs(definitions: Mapping[str, Schema]) -> set[str]:
    found = (DIRECTION.fullmatch(key) for key in definitions)
    bases = {match["base"] for match in found if match}
    return {b for b in bases if f"{b}-Input" in definitions and f"{b}-Output" in definitions}


def _shape(schema: Schema, types: Types) -> object:
    properties = schema.get("properties")
    if properties is None:
        return types.annotation(schema)
    return {name: types.annotation(each) for name, each in properties.items()}


def _names(definitions: Mapping[str, Schema], apart: set[str], taken: set[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for key, schema in definitions.items():
        match = DIRECTION.fullmatch(key)
        base = match["base"] if match else key
        if match and base not in apart and f"{base}-Input" in names:
            names[key] = names[f"{base}-Input"]
            continue
        suffix = "Input" if match and base in apart and match["direction"] == "Input" else ""
        wanted = _identifier(str(schema.get("title", base)), base) + suffix
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        names[key] = wanted
    return names


def _identifier(title: str, key: str) -> str:
    chosen = title if title.isidentifier() else re.sub(r"\W+", "_", key).strip("_")
    usable = chosen.isidentifier() and not keyword.iskeyword(chosen)
    return chosen if usable else f"Type_{chosen}"
