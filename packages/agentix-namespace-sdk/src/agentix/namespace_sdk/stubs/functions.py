"""The functions of a stub package."""

from collections.abc import Iterator, Mapping

from agentix.namespace_sdk.stubs.text import docstring, literal
from agentix.namespace_sdk.stubs.types import Schema, Types
from agentix.namespace_sdk.stubs.values import UNKNOWN, expression
from agentix.schema import FunctionSchema, ParameterSchema

__all__ = ["write_function"]

LINE_LENGTH = 100


def write_function(
    function: FunctionSchema, module: str, types: Types, definitions: Mapping[str, Schema]
) -> str:
    """Writes a stub.

    Args:
        function: What is known of it.
        module: What its package is called.
        types: The annotations of the namespace.
        definitions: The `$defs` of the namespace.
    """
    parameters = [*_parameters(function.parameters, types, definitions)]
    result = types.annotation(function.result)
    if function.streams:
        result = f"collections.abc.AsyncIterator[{result}]"
    lines = [f"def {function.name}({', '.join(parameters)}) -> {result}:"]
    if len(lines[0]) > LINE_LENGTH:
        told = [f"    {parameter}," for parameter in parameters]
        lines = [f"def {function.name}(", *told, f") -> {result}:"]
    if function.description:
        lines.append(docstring(function.description, "    "))
    more = ", ..." if function.parameters else ""
    call = f"call via RuntimeClient.remote({module}.{function.name}{more})"
    return "\n".join([*lines, f"    raise NotImplementedError({literal(call)})", ""])


def _parameters(
    parameters: list[ParameterSchema], types: Types, definitions: Mapping[str, Schema]
) -> Iterator[str]:
    """Writes parameters, with the marks between their kinds."""
    previous = ""
    starred = False
    for parameter in parameters:
        if previous == "positional_only" != parameter.kind:
            yield "/"
        if parameter.kind == "keyword_only" and not starred:
            yield "*"
            starred = True
        starred = starred or parameter.kind == "var_positional"
        yield _parameter(parameter, types, definitions)
        previous = parameter.kind
    if previous == "positional_only":
        yield "/"


def _parameter(parameter: ParameterSchema, types: Types, definitions: Mapping[str, Schema]) -> str:
    schema = parameter.value
    match parameter.kind:
        case "var_positional":
            return f"*{parameter.name}: {types.annotation(schema.get('items') or {})}"
        case "var_keyword" if "$ref" in schema:
            return f"**{parameter.name}: typing.Unpack[{types.annotation(schema)}]"
        case "var_keyword":
            values = schema.get("additionalProperties")
            told = types.annotation(values) if isinstance(values, Mapping) else "typing.Any"
            return f"**{parameter.name}: {told}"
    told = f"{parameter.name}: {types.annotation(schema)}"
    if parameter.required:
        return told
    default = None
    if "default" in schema:
        default = expression(schema, schema["default"], types, definitions)
    return f"{told} = {UNKNOWN if default is None else default}"
