"""What `GET /namespaces?schemas=1` answers: functions, described in JSON Schema.

A runtime imports this when it is asked for schemas, and starts without.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from agentix.wire import MountedNamespace, WireModel

__all__ = [
    "ENUM_NAMES",
    "TYPED_DICT",
    "DescribedNamespace",
    "FunctionSchema",
    "NamespaceSchemas",
    "ParameterKind",
    "ParameterSchema",
]

ENUM_NAMES = "x-enum-varnames"
"""The keyword with the names of an enumeration's members, in the order of `enum`."""

TYPED_DICT = "x-typed-dict"
"""The keyword, `true`, of an object that is a mapping in Python and no class."""

ParameterKind = Literal[
    "positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"
]
"""How a parameter takes its argument, as `inspect.Parameter` has it."""


class ParameterSchema(WireModel):
    """One parameter of a function."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    name: str
    """Its name."""
    kind: ParameterKind
    """How it takes its argument."""
    required: bool
    """Whether a call must give it."""
    value: dict[str, Any] = Field(validation_alias="schema", serialization_alias="schema")
    """The JSON Schema of its argument, with its `default`; of the whole list or object for a
    parameter that collects several."""


class FunctionSchema(WireModel):
    """One function of a namespace."""

    name: str
    """The `method` of a call."""
    description: str | None = None
    """Its docstring."""
    streams: bool
    """Whether it answers with a stream of items."""
    parameters: list[ParameterSchema]
    """Its parameters, in their order."""
    result: dict[str, Any]
    """The JSON Schema of its result, or of one item of its stream."""


class NamespaceSchemas(WireModel):
    """The functions of a namespace, described in JSON Schema (draft 2020-12)."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    functions: list[FunctionSchema]
    """What is bound, in the order of binding."""
    definitions: dict[str, dict[str, Any]] = Field(
        default_factory=dict, validation_alias="$defs", serialization_alias="$defs"
    )
    """The types that the schemas refer to, as `#/$defs/<name>` of this object."""


class DescribedNamespace(MountedNamespace):
    """One entry of `GET /namespaces?schemas=1`."""

    schemas: NamespaceSchemas | None = None
    """Its functions; `None` where it can not be imported or described, and `error` says why."""
