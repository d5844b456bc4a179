"""The answer to a unary call: from the body of `POST /_remote` to a value or an error."""

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from agentix.client.connection import Connection, reason
from agentix.errors import NamespaceNotFoundError, RemoteCallError, SerializationError
from agentix.stub import Codec, Stub, reasons
from agentix.wire import RemoteError

__all__ = ["decode_answer", "decode_value", "not_found", "parse", "remote_call_error"]

T = TypeVar("T")

SUCCESS = b'{"ok":true,"value":'
"""How a success begins, as the runtime spaces it: what follows, but for a brace, is the value."""


def decode_answer(connection: Connection, stub: Stub, body: bytes) -> Any:
    """Turns the body of an answer with status 200 into the value of the call.

    Raises:
        RemoteCallError: The call failed in the sandbox.
        SerializationError: The value is not of the stub's type.
        SandboxGoneError: The body is not an answer.
    """
    if body.startswith(SUCCESS) and body.endswith(b"}"):
        try:
            return stub.result.decode(body[len(SUCCESS) : -1])
        except ValidationError:
            pass  # the general way finds out why
    match parse(body):
        case {"ok": True, "value": value}:
            return decode_value(stub, stub.result, value)
        case {"ok": False, "error": error}:
            raise remote_call_error(error) or connection.nonsense(body)
        case _:
            raise connection.nonsense(body)


def decode_value(stub: Stub, codec: Codec[T], value: Any) -> T:
    """Turns parsed JSON into a value of a stub's type.

    Raises:
        SerializationError: It is not of that type.
    """
    try:
        return codec.decode(to_json(value, inf_nan_mode="constants"))
    except ValidationError as error:
        raise SerializationError(
            f"{stub.package}.{stub.method} gave what is not of its declared type: {reasons(error)}"
        ) from error


def parse(text: bytes) -> Any:
    """Parses JSON; what is none becomes `None`, which no answer of the protocol is."""
    try:
        return from_json(text)
    except ValueError:
        return None


def remote_call_error(fields: object) -> RemoteCallError | None:
    """Makes the error that a call failed with, or gives `None` where the fields are not its."""
    try:
        error = RemoteError.model_validate(fields)
    except ValidationError:
        return None
    return RemoteCallError(error.type, error.message, error.traceback)


def not_found(connection: Connection, body: bytes) -> Exception:
    """Makes the error for a call that was answered with status 404."""
    missing = reason(body)
    return NamespaceNotFoundError(missing) if missing else connection.refusal(404, body)
