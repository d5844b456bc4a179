"""Functions of namespaces as listeners, and their JSON types as payloads."""

import base64
import binascii
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from lxml import etree

from agentix.agentserver.errors import (
    FunctionFailedError,
    PayloadError,
    RegistrationError,
)
from agentix.agentserver.names import is_ncname
from agentix.agentserver.payload.codec import PayloadCodec
from agentix.agentserver.payload.types import (
    BooleanType,
    BytesType,
    DateTimeType,
    DateType,
    DecimalType,
    Field,
    FieldType,
    FloatType,
    IntegerType,
    ListType,
    LiteralType,
    MapType,
    OptionalType,
    RecordType,
    TextType,
    from_data,
    to_data,
)
from agentix.agentserver.registry import InProcessListener, Request
from agentix.agentserver.spec import RuntimeSpec

__all__ = [
    "Functions",
    "Schemas",
    "from_json",
    "to_json",
]

logger = logging.getLogger(__name__)


DEEPEST = 16
REFERENCE = "#/$defs/"
FORMATS: Mapping[str, FieldType] = {
    "base64url": BytesType(),
    "date": DateType(),
    "date-time": DateTimeType(),
    "decimal": DecimalType(),
}
PLAIN: Mapping[str, FieldType] = {
    "integer": IntegerType(),
    "number": FloatType(),
    "boolean": BooleanType(),
}
NULL = {"type": "null"}


@dataclass(frozen=True)
class Schemas:
    """The definitions that the schemas of one namespace share."""

    definitions: Mapping[str, Any]

    def record(self, name: str, parameters: list[Mapping[str, Any]]) -> RecordType:
        """Make the payload of a function: a field for each parameter.

        Raises:
            RegistrationError: A parameter has no XML form, or collects several arguments.
        """
        fields = []
        for each in parameters:
            if str(each.get("kind", "")).startswith("var_"):
                raise RegistrationError(f"{name}: the parameter {each.get('name')!r} is open-ended")
            required = each.get("required") is True
            fields.append(self._field(str(each.get("name")), each.get("schema"), required, 0))
        return _checked(RecordType(name, tuple(fields)))

    def result(self, schema: object) -> tuple[RecordType, bool]:
        """Make the payload of a result, and tell whether that stands for a value of its own.

        Raises:
            RegistrationError: The result has no XML form.
        """
        if schema == NULL:
            return RecordType("Result", ()), False
        kind = self.type(schema)
        if isinstance(kind, RecordType):
            return _checked(kind), False
        required = not isinstance(kind, OptionalType)
        return _checked(RecordType("Result", (Field("value", kind, "", required),))), True

    def type(self, schema: object, depth: int = 0) -> FieldType:
        """Make a type of its schema.

        Raises:
            RegistrationError: It has no XML form.
        """
        if depth > DEEPEST or not isinstance(schema, Mapping):
            raise RegistrationError(f"no XML form for the schema {str(schema)[:80]}")
        match schema:
            case {"$ref": str(reference)} if reference.startswith(REFERENCE):
                found = self.definitions.get(reference.removeprefix(REFERENCE))
                return self.type(found, depth + 1)
            case {"anyOf": [one, other]} if NULL in (one, other):
                return OptionalType(self.type(other if one == NULL else one, depth + 1))
            case {"enum": list(values)}:
                return LiteralType(tuple(values))
            case {"const": value}:
                return LiteralType((value,))
            case {"type": "string", "format": str(form)} if form in FORMATS:
                return FORMATS[form]
            case {"type": "string"} if "format" not in schema or schema["format"] == "path":
                return TextType()
            case {"type": str(name)} if name in PLAIN:
                return PLAIN[name]
            case {"type": "array", "items": items}:
                return ListType(self.type(items, depth + 1))
            case {"type": "object", "properties": dict(properties)}:
                return self._object(schema, properties, depth + 1)
            case {"type": "object", "additionalProperties": dict(values)}:
                return MapType(self.type(values, depth + 1))
        raise RegistrationError(f"no XML form for the schema {str(schema)[:80]}")

    def _object(
        self, schema: Mapping[str, Any], properties: Mapping[str, object], depth: int
    ) -> RecordType:
        title = str(schema.get("title", "Record"))
        required = schema.get("required", ())
        fields = [
            self._field(name, each, name in required, depth) for name, each in properties.items()
        ]
        return RecordType(title if is_ncname(title) else "Record", tuple(fields))

    def _field(self, name: str, schema: object, required: bool, depth: int) -> Field:
        kind = self.type(schema, depth)
        about = schema if isinstance(schema, Mapping) else {}
        default = about.get("default")
        shown = default if isinstance(default, str | int | float) else None
        doc = str(about.get("description", ""))
        return Field(name, kind, doc, required and not isinstance(kind, OptionalType), shown)


def _checked(record: RecordType) -> RecordType:
    """Hold a record to the rules that descriptions of workers are held to."""
    return from_data(to_data(record))


def from_json(kind: FieldType, value: Any) -> Any:
    """Turn a JSON value into a plain one.

    Raises:
        PayloadError: It is not of the type.
    """
    try:
        return _walk(kind, value, _decoded)
    except (TypeError, AttributeError, binascii.Error, ValueError, KeyError) as error:
        raise PayloadError(f"a value is not of its declared type: {error}") from error


def to_json(kind: FieldType, value: Any) -> Any:
    """Turn a plain value into a JSON one."""
    return _walk(kind, value, lambda data: base64.urlsafe_b64encode(data).decode())


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _walk(kind: FieldType, value: Any, of_bytes: Callable[[Any], Any]) -> Any:
    """Change the bytes in a value, and leave out what is absent."""
    match kind:
        case BytesType():
            return of_bytes(value)
        case ListType(item):
            return [_walk(item, each, of_bytes) for each in value]
        case MapType(inner):
            return {str(key): _walk(inner, each, of_bytes) for key, each in value.items()}
        case OptionalType(inner):
            return None if value is None else _walk(inner, value, of_bytes)
        case RecordType(_, fields):
            return dict(_members(fields, value, of_bytes))
        case FloatType():
            return float(value)
    return value


def _members(
    fields: tuple[Field, ...], value: Any, of_bytes: Callable[[Any], Any]
) -> Iterator[tuple[str, Any]]:
    for field in fields:
        if field.name in value:
            yield field.name, _walk(field.type, value[field.name], of_bytes)


PARENT = "agentix_namespaces."


@dataclass(frozen=True)
class _Function:
    """A function that can be called."""

    package: str
    method: str
    description: str
    streams: bool
    positional: tuple[str, ...]
    """The parameters that cannot be given by name."""
    arguments: RecordType
    result: PayloadCodec
    bare: bool
    """Whether the result is a value of its own, which `<value>` holds."""


class Functions:
    """The functions of a runtime; an asynchronous context manager.

    Args:
        spec: Where the runtime is.
        directory: What relative paths in `spec` are relative to.
        most: Bytes of the longest result.
    """

    def __init__(self, spec: RuntimeSpec, directory: Path, most: int) -> None:
        self._spec = spec
        self._most = most
        self._headers = {}
        if token := _token(spec, directory):
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None
        self._url = spec.url or _own_runtime(os.environ)
        self._base = ""

    async def __aenter__(self) -> Self:
        url = self._url
        unix = url.startswith("unix:")
        self._base = "http://localhost" if unix else url.rstrip("/")
        path = "/" + url.removeprefix("unix:").lstrip("/")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path) if unix else aiohttp.TCPConnector(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._spec.timeout_seconds),
            read_bufsize=self._most,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def listeners(self, names: Iterable[str]) -> list[InProcessListener]:
        """Make a listener of each function, from what the runtime says of it.

        Args:
            names: The functions, such as `mock_agent.run`.

        Raises:
            FunctionFailedError: The runtime cannot be asked.
            RegistrationError: It has no such function, or the function has no XML form.
        """
        described = await self._describe()
        return [self._listener(name, self._function(name, described)) for name in names]

    def _listener(self, name: str, function: _Function) -> InProcessListener:
        async def handle(request: Request) -> bytes:
            return await self._call(function, request.payload)

        return InProcessListener(
            name=f"ns.{name}",
            description=function.description,
            handle=handle,
            payload=function.arguments,
            handler_seconds=self._spec.timeout_seconds + 1.0,
        )

    async def _describe(self) -> Mapping[str, Any]:
        """Return the description of each package that the runtime has."""
        assert self._session is not None, "the functions are not open"
        try:
            async with self._session.get(f"{self._base}/namespaces?schemas=1") as response:
                if response.status in (401, 403):
                    raise FunctionFailedError(
                        f"the runtime at {self._url} refuses the token that it is given: "
                        "set runtime.token_file or runtime.token_variable"
                    )
                if response.status != 200:
                    raise FunctionFailedError(
                        f"what answers at {self._url}, with status {response.status}, is no "
                        "runtime that is well: set runtime.url, or see the runtime's log"
                    )
                found = await response.json()
                return {each["manifest"]["package"]: each for each in found["namespaces"]}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise FunctionFailedError(
                f"no runtime answers at {self._url} ({error}): start it, or set runtime.url"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise FunctionFailedError(
                f"what answers at {self._url} does not describe namespaces as a runtime does: "
                "set runtime.url"
            ) from error

    def _function(self, name: str, described: Mapping[str, Any]) -> _Function:
        package, _, method = name.rpartition(".")
        entry = described.get(PARENT + package)
        if entry is None:
            raise RegistrationError(f"ns:{name}: the runtime has no namespace {package}")
        if entry.get("schemas") is None:
            raise RegistrationError(f"ns:{name}: {package} cannot be used: {entry.get('error')}")
        functions = {each["name"]: each for each in entry["schemas"]["functions"]}
        if method not in functions:
            raise RegistrationError(
                f"ns:{name}: there are {', '.join(functions) or 'no functions'}"
            )
        found = functions[method]
        schemas = Schemas(entry["schemas"].get("$defs", {}))
        arguments = schemas.record(f"{_title(method)}Args", found["parameters"])
        result, bare = schemas.result(found["result"])
        return _Function(
            package=PARENT + package,
            method=method,
            description=found.get("description") or f"The function {method} of {package}.",
            streams=bool(found["streams"]),
            positional=tuple(
                each["name"] for each in found["parameters"] if each["kind"] == "positional_only"
            ),
            arguments=arguments,
            result=PayloadCodec("item" if found["streams"] else "result", result),
            bare=bare,
        )

    async def _call(self, function: _Function, payload: dict[str, Any]) -> bytes:
        """Call a function and write its result, or each of its items.

        Raises:
            FunctionFailedError: It failed, or its result is too long.
            PayloadError: Its result is not of its declared type.
        """
        given = to_json(function.arguments, payload)
        positional = [given.pop(name) for name in function.positional if name in given]
        body = {
            "package": function.package,
            "method": function.method,
            "args": positional,
            "kwargs": given,
        }
        parts: list[bytes] = []
        size = 0
        async for value in self._values(function, body):
            parts.append(_written(function, value))
            size += len(parts[-1])
            if size > self._most:
                raise FunctionFailedError(f"{function.method} gave more than {self._most} bytes")
        return b"".join([*parts, b"<end/>"] if function.streams else parts)

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        """Read an answer, as long as it may be: JSON takes up to six bytes for one."""
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > 6 * self._most:
                raise FunctionFailedError(f"the answer has more than {6 * self._most} bytes")
        return bytes(body)

    async def _values(self, function: _Function, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        assert self._session is not None, "the functions are not open"
        try:
            async with self._session.post(f"{self._base}/_remote", json=body) as response:
                if response.status != 200:
                    raise FunctionFailedError(f"the runtime answers with status {response.status}")
                if response.content_type != "application/x-ndjson":
                    yield _value(function, json.loads(await self._whole(response)))
                    return
                async for line in response.content:
                    match json.loads(line):
                        case {"item": item}:
                            yield item
                        case {"end": True}:
                            return
                        case answer:
                            _value(function, answer)
                raise FunctionFailedError(f"the stream of {function.method} broke off")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise FunctionFailedError(f"{function.method} gave no answer: {error}") from error


def _value(function: _Function, answer: Any) -> Any:
    """Take the value out of an answer; what failed, and where, is for the log alone."""
    match answer:
        case {"ok": True, "value": value}:
            return value
        case {"error": {"type": kind, "message": message, **more}}:
            logger.warning("%s failed: %s: %s\n%s", function.method, kind, message, more)
            raise FunctionFailedError(f"{function.method} raised {kind}: {message}")
    raise FunctionFailedError(f"the runtime answers {function.method} with {str(answer)[:80]}")


def _written(function: _Function, value: Any) -> bytes:
    """Write a value as `<result>` or `<item>`."""
    named = {"value": value} if function.bare else value if value is not None else {}
    plain = from_json(function.result.record, named)
    try:
        return etree.tostring(function.result.encode(plain), encoding="utf-8")
    except (KeyError, TypeError, AttributeError) as error:
        raise PayloadError(f"{function.method} gave a value of another type: {error}") from error


def _title(method: str) -> str:
    """Return `RunArgs` its first half: the function's name as a class would have it."""
    return "".join(part[:1].upper() + part[1:] for part in method.split("_"))


def _token(spec: RuntimeSpec, directory: Path) -> str | None:
    if spec.token_file is not None:
        try:
            return (directory / spec.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FunctionFailedError(
                f"no token can be read from runtime.token_file, {spec.token_file}: {error}"
            ) from error
    if spec.token_variable is not None:
        try:
            return os.environ[spec.token_variable]
        except KeyError:
            raise FunctionFailedError(
                f"no token is in the variable of runtime.token_variable, {spec.token_variable}: "
                "set it where the organism is started"
            ) from None
    return None


def _own_runtime(environ: Mapping[str, str]) -> str:
    """Return the URL of the runtime that started this process, which passes its settings on."""
    if url := environ.get("AGENTIX_URL"):
        return url
    if unix := environ.get("AGENTIX_BIND_UNIX"):
        return f"unix:{unix}"
    host = environ.get("AGENTIX_BIND_HOST", "127.0.0.1")
    return f"http://{host}:{environ.get('AGENTIX_BIND_PORT', '8000')}"
