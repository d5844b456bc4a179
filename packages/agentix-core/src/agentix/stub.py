"""The rule that turns a stub's signature into JSON and back, used by both ends of a call.

Values are encoded and validated by pydantic from the stub's annotations. Where a type carries no
JSON policy of its own (pydantic models may), bytes travel as URL-safe base64, and the floats that
JSON lacks as `NaN`, `Infinity` and `-Infinity`.
"""

import inspect
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import lru_cache
from inspect import BoundArguments, Parameter, Signature
from typing import Any, Generic, TypeVar, get_args, get_origin

import typing_extensions
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, to_json

from agentix.errors import ArgumentsError, SerializationError, StubError

__all__ = [
    "Arguments",
    "Codec",
    "EncodedArguments",
    "Stub",
    "adapter_of",
    "stub_of",
    "wire_type",
]

T = TypeVar("T")

JSON_POLICY = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
)
UNPACK = (typing.Unpack, typing_extensions.Unpack)
"""One object from Python 3.12 on."""

STREAM_TYPES = (AsyncIterator, AsyncGenerator, AsyncIterable)


class Codec(Generic[T]):
    """Turns values of one type into JSON and back.

    Args:
        annotation: Any type that pydantic can handle.
    """

    __slots__ = ("_dump", "_load", "_validate")

    def __init__(self, annotation: Any) -> None:
        adapter: TypeAdapter[tuple[T]] = adapter_of(annotation)
        self._dump = adapter.serializer.to_json
        self._load = adapter.validator.validate_json
        self._validate = adapter.validator.validate_python

    def encode(self, value: T) -> bytes:
        """Turns a value into JSON.

        Raises:
            SerializationError: The value is not of the type, or has no JSON form.
        """
        try:
            return self._dump((value,), warnings="error")[1:-1]
        except Exception:  # the lenient way tells what is wrong with it
            return self._encode_leniently(value)

    def encode_item(self, value: T) -> bytes:
        """Encodes as `encode` does, four times as fast, for streams of many small values.

        A value of another type is found where the process turns pydantic's serializer warnings
        into errors, as the runtime does; elsewhere the reader finds it.

        Raises:
            SerializationError: The value is not of the type, or has no JSON form.
        """
        try:
            return self._dump((value,))[1:-1]
        except Exception:  # the slow way tells what is wrong with it
            return self.encode(value)

    def _encode_leniently(self, value: T) -> bytes:
        """Encodes what pydantic can turn into the type, such as a mapping for a dataclass."""
        try:
            return self._dump(self._validate((value,)), warnings="error")[1:-1]
        except ValidationError as error:
            raise SerializationError(reasons(error)) from error
        except Exception as error:  # a user's serializer may raise anything
            raise SerializationError(str(error)) from error

    def validate(self, value: Any) -> T:
        """Checks a Python value.

        Raises:
            ValidationError: pydantic's own: the value is not of the type.
        """
        return self._validate((value,))[0]  # type: ignore[no-any-return]

    def decode(self, text: bytes | memoryview) -> T:
        """Read a value from JSON.

        Raises:
            ValidationError: pydantic's own: the text is not JSON of the type.
        """
        return self._load(b"".join((b"[", text, b"]")))[0]  # type: ignore[no-any-return]


def adapter_of(annotation: Any) -> TypeAdapter[tuple[Any]]:
    """Gives what pydantic makes of a type under the JSON policy of the wire.

    Args:
        annotation: Any type that pydantic can handle.

    Returns:
        The adapter of a tuple around the type, because pydantic takes a policy only for types
        without their own.
    """
    return TypeAdapter(tuple[annotation], config=JSON_POLICY)


def reasons(error: ValidationError) -> str:
    """Puts a validation error into one line: each place with what is wrong there."""
    return "; ".join(
        f"{'.'.join(map(str, item['loc'][1:])) + ': ' if len(item['loc']) > 1 else ''}{item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    )


@dataclass(frozen=True, slots=True)
class EncodedArguments:
    """The arguments of one call as the JSON of the wire."""

    args: bytes
    """A JSON array."""
    kwargs: bytes
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call as an impl takes them."""

    args: tuple[Any, ...]
    """The positional arguments."""
    kwargs: dict[str, Any]
    """The keyword arguments."""


@dataclass(frozen=True, slots=True)
class Stub:
    """The contract of one remote function, worked out once from its signature."""

    package: str
    """The routing key: the module of the function."""
    method: str
    """The name of the function."""
    signature: Signature
    """The signature, annotations resolved."""
    streams: bool
    """Whether the function gives an asynchronous iterator."""
    parameters: Mapping[str, Codec[Any]]
    """One codec a parameter; of the list for `*args`, of the mapping for `**kwargs`."""
    positional_only: frozenset[str]
    """The parameters that have no name for a caller."""
    result: Codec[Any]
    """The codec of the result, or of one item of the stream."""
    doc: str | None
    """The docstring of the function, as it is written."""

    @property
    def result_type(self) -> Any:
        """The type of the result, or of one item of the stream."""
        returned = self.signature.return_annotation
        return next(iter(get_args(returned)), Any) if self.streams else returned

    def encode_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EncodedArguments:
        """Checks the arguments of a call against the stub and turns them into JSON.

        Raises:
            ArgumentsError: They do not fit the signature, or one is not of its type.
        """
        try:
            given = self._bind(args, kwargs).arguments
        except TypeError as error:
            raise ArgumentsError(f"{self.package}.{self.method}: {error}") from error
        by_position: list[bytes] = []
        by_name: list[bytes] = []
        spread = any(
            self.signature.parameters[name].kind is Parameter.VAR_POSITIONAL for name in given
        )
        for name, value in given.items():
            encoded = self._encode_argument(name, value)
            match self.signature.parameters[name].kind:
                case Parameter.VAR_POSITIONAL | Parameter.VAR_KEYWORD as kind if len(encoded) > 2:
                    target = by_position if kind is Parameter.VAR_POSITIONAL else by_name
                    target.append(encoded[1:-1])
                case Parameter.VAR_POSITIONAL | Parameter.VAR_KEYWORD:
                    pass
                case Parameter.POSITIONAL_ONLY:
                    by_position.append(encoded)
                case Parameter.POSITIONAL_OR_KEYWORD if spread:
                    by_position.append(encoded)
                case _:
                    by_name.append(to_json(name) + b":" + encoded)
        return EncodedArguments(
            b"[" + b",".join(by_position) + b"]", b"{" + b",".join(by_name) + b"}"
        )

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
        # Among the collected keywords, each version of Python takes such a name for something else.
        for name in self.positional_only.intersection(kwargs):
            raise TypeError(f"{name!r} parameter is positional only, but was passed as a keyword")
        return self.signature.bind(*args, **kwargs)

    def _encode_argument(self, name: str, value: Any) -> bytes:
        codec = self.parameters[name]
        try:
            return codec.encode(codec.validate(value))
        except ValidationError as error:
            reason = reasons(error)
        except SerializationError as error:
            reason = str(error)
        raise ArgumentsError(f"{self.package}.{self.method}: argument {name!r}: {reason}")

    def decode_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Reads the arguments of a call from parsed JSON; the stub's defaults fill the rest.

        Raises:
            ArgumentsError: One is missing, unknown, or not of its type; all of them are named.
        """
        try:
            bound = self._bind(args, kwargs)
        except TypeError as error:
            raise ArgumentsError(str(error)) from None
        problems: list[str] = []
        for name, raw in bound.arguments.items():
            try:
                text = to_json(raw, inf_nan_mode="constants")
                bound.arguments[name] = self.parameters[name].decode(text)
            except ValidationError as error:
                problems.append(f"argument {name!r}: {reasons(error)}")
        if problems:
            raise ArgumentsError("; ".join(problems))
        bound.apply_defaults()
        return Arguments(bound.args, bound.kwargs)


@lru_cache(maxsize=4096)
def stub_of(function: Callable[..., Any]) -> Stub:
    """Works out the contract of a stub; the result is kept for the next call.

    Raises:
        StubError: It is not a module's function, or an annotation can not be resolved or turned
            into JSON; the message names the function and the parameter.
    """
    if not inspect.isfunction(function) or function.__name__ != function.__qualname__:
        raise StubError(f"{function!r} is not a function of a module, so it can not be a stub")
    name = f"{function.__module__}.{function.__name__}"
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # annotations are code: evaluating them may raise anything
        raise StubError(f"{name}: an annotation can not be resolved: {error}") from error
    signature = _resolved(inspect.signature(function), hints)
    parameters = {
        parameter.name: _codec(name, f"parameter {parameter.name!r}", wire_type(parameter))
        for parameter in signature.parameters.values()
    }
    returned = hints.get("return", Any)
    streams = (get_origin(returned) or returned) in STREAM_TYPES
    if streams:
        returned = next(iter(get_args(returned)), Any)
    return Stub(
        package=function.__module__,
        method=function.__name__,
        signature=signature,
        streams=streams,
        parameters=parameters,
        positional_only=_positional_only(signature),
        result=_codec(name, "the return type", returned),
        doc=function.__doc__,
    )


def _resolved(signature: Signature, hints: Mapping[str, Any]) -> Signature:
    parameters = [
        parameter.replace(annotation=hints.get(parameter.name, Any))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", Any))


def _positional_only(signature: Signature) -> frozenset[str]:
    kinds = ((name, parameter.kind) for name, parameter in signature.parameters.items())
    return frozenset(name for name, kind in kinds if kind is Parameter.POSITIONAL_ONLY)


def wire_type(parameter: Parameter) -> Any:
    """Gives the type of what a parameter collects."""
    annotation: Any = parameter.annotation
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            return list[annotation]
        case Parameter.VAR_KEYWORD if get_origin(annotation) in UNPACK:
            return get_args(annotation)[0]
        case Parameter.VAR_KEYWORD:
            return dict[str, annotation]
        case _:
            return annotation


def _codec(function: str, place: str, annotation: Any) -> Codec[Any]:
    try:
        return Codec(annotation)
    except (PydanticUserError, SchemaError, NameError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise StubError(
            f"{function}: {place} is {annotation!r}, which pydantic can not handle: {reason}"
        ) from error
