"""Describes the functions of a namespace, by the very types that their codecs handle.

Calls do without: a runtime imports this when it is asked for schemas.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, cleandoc
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, NoDefault
from pydantic_core import core_schema

from agentix.dispatch import Binding
from agentix.schema import (
    ENUM_NAMES,
    TYPED_DICT,
    FunctionSchema,
    NamespaceSchemas,
    ParameterKind,
    ParameterSchema,
)
from agentix.stub import JSON_POLICY, Stub, adapter_of, wire_type

__all__ = ["describe_functions"]

EMPTY = (list, dict, set, frozenset, tuple)
"""Factories of defaults that give the same each time."""

RESULT = None
"""Stands for the result where parameters have their names."""


class WireSchema(GenerateJsonSchema):
    """Tells what a caller in Python needs to know beyond what JSON Schema has words for.

    A type that can not describe itself, such as one with a validator of its own, is any value.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._policies: list[Mapping[str, Any]] = [JSON_POLICY]

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leaves out the titles of fields, which repeat their names."""
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        """Describes as any value what has no description."""
        return {}

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        """Gives the default of a field, an empty collection included."""
        factory: Any = schema.get("default_factory")
        return factory() if factory in EMPTY else schema.get("default", NoDefault)

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        """Describes an enumeration with the names of its members."""
        described = super().enum_schema(schema)
        return described | {ENUM_NAMES: [member.name for member in schema["members"]]}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Describes a mapping with fixed keys, and says that it is one."""
        with self._within(schema.get("cls")):
            return super().typed_dict_schema(schema) | {TYPED_DICT: True}

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Describes a dataclass, whose fields have the policy of the wire unless it has its own."""
        with self._within(schema["cls"]):
            return super().dataclass_schema(schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Describes a model, whose fields have its own policy."""
        with self._within(schema["cls"]):
            return super().model_schema(schema)

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Describes bytes by the policy that they have here."""
        key = "ser_json_bytes" if self.mode == "serialization" else "val_json_bytes"
        encoded = self._policies[-1].get(key) == "base64"
        return super().bytes_schema(schema) | {"format": "base64url" if encoded else "binary"}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Describes a decimal number by the text that it is written as; numbers are read too."""
        return {"type": "string", "format": "decimal"}

    @contextmanager
    def _within(self, cls: Any) -> Iterator[None]:
        """Applies the policy of a class; without one of its own, that of what is around it."""
        own = getattr(cls, "model_config", None)
        own = getattr(cls, "__pydantic_config__", None) if own is None else own
        self._policies.append(self._policies[-1] if own is None else own)
        try:
            yield
        finally:
            self._policies.pop()


def describe_functions(bindings: Iterable[Binding]) -> NamespaceSchemas:
    """Describes what is bound in a namespace.

    Parameters are described as the runtime reads them, results as it writes them.

    Raises:
        Exception: Whatever a type's own description raises.
    """
    stubs = [binding.stub for binding in bindings]
    inputs: list[Any] = []
    for stub in stubs:
        for parameter in stub.signature.parameters.values():
            key = (stub.method, parameter.name)
            inputs.append((key, "validation", adapter_of(wire_type(parameter))))
        inputs.append(((stub.method, RESULT), "serialization", adapter_of(stub.result_type)))
    schemas, shared = TypeAdapter.json_schemas(inputs, schema_generator=WireSchema)
    found = {key: _inner(schema) for (key, _), schema in schemas.items()}
    functions = [_function(stub, found) for stub in stubs]
    return NamespaceSchemas(functions=functions, definitions=shared.get("$defs", {}))


def _inner(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Takes the tuple off that the codecs put around each type."""
    inner: JsonSchemaValue = schema["prefixItems"][0]
    return inner


def _function(stub: Stub, found: Any) -> FunctionSchema:
    parameters = [
        _parameter(stub, parameter, found[stub.method, parameter.name])
        for parameter in stub.signature.parameters.values()
    ]
    return FunctionSchema(
        name=stub.method,
        description=None if stub.doc is None else cleandoc(stub.doc),
        streams=stub.streams,
        parameters=parameters,
        result=found[stub.method, RESULT],
    )


def _parameter(stub: Stub, parameter: Parameter, schema: JsonSchemaValue) -> ParameterSchema:
    collects = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    required = parameter.default is Parameter.empty and not collects
    if parameter.default is not Parameter.empty:
        schema = schema | _default(stub, parameter)
    kind = cast(ParameterKind, parameter.kind.name.lower())
    return ParameterSchema(name=parameter.name, kind=kind, required=required, value=schema)


def _default(stub: Stub, parameter: Parameter) -> JsonSchemaValue:
    """Gives the keyword of a default; none for a default that is not of its own type."""
    try:
        return {"default": json.loads(stub.parameters[parameter.name].encode(parameter.default))}
    except Exception:  # a default is not checked before a call uses it
        return {}
