"""The answer to a unary call: from the body of `POST /_remote` to a value or an error."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from agentix.client.bounds import Cap, shortened
from agentix.client.connection import Connection, reason
from agentix.errors import NamespaceNotFoundError, RemoteCallError, SerializationError
from agentix.stub import Stub, reasons
from agentix.wire import RemoteError

__all__ = [
    "FAILURE",
    "cut_failure",
    "decode_answer",
    "decode_value",
    "mismatch",
    "not_found",
    "remote_call_error",
]

SUCCESS = b'{"ok":true,"value":'
"""How a success begins, as the runtime spaces it: what follows, but for a brace, is the value."""

FAILURE = b'{"ok":false,'
"""How a failure begins, as the runtime spaces it."""

MAX_TYPE = 1024
"""Characters that are kept of the name of an exception's class."""

MAX_MESSAGE = 64 * 1024
"""Characters that are kept of the text of an exception."""

MAX_TRACEBACK = 256 * 1024
"""Characters that are kept of a traceback."""

MAX_PROBLEMS = 100
"""Problems of a value that are told one by one; each takes a kilobyte while it is put together."""


def decode_answer(connection: Connection, stub: Stub, body: bytes, cap: Cap) -> Any:
    """Turn the body of an answer with status 200 into the value of the call.

    Raises:
        RemoteCallError: The call failed in the sandbox.
        SerializationError: The value is not of the stub's type.
        AnswerTooLargeError: The value would take too much memory.
        SandboxGoneError: The body is not an answer.
    """
    cap.check_decoded(body)
    if body.startswith(SUCCESS) and body.endswith(b"}"):
        try:
            return stub.result.decode(memoryview(body)[len(SUCCESS) : -1])
        except ValidationError as error:
            problem = mismatch(stub, error)
        if problem is not None:
            raise problem
    try:
        answer = from_json(body)
    except ValueError as error:
        raise connection.nonsense(body, error) from None
    match answer:
        case {"ok": True, "value": _}:
            # What was parsed is let go before the value is decoded.
            return decode_value(stub, to_json(answer.pop("value"), inf_nan_mode="constants"))
        case {"ok": False, "error": error}:
            raise remote_call_error(error) or connection.nonsense(body)
        case _:
            raise connection.nonsense(body)


def decode_value(stub: Stub, text: bytes) -> Any:
    """Turn JSON into a value of a stub's result type.

    Raises:
        SerializationError: It is not of that type.
    """
    try:
        return stub.result.decode(text)
    except ValidationError as error:
        problem = mismatch(stub, error)
    raise problem or SerializationError(f"{_name(stub)} gave no JSON")


def mismatch(stub: Stub, error: ValidationError) -> SerializationError | None:
    """Make the error for a value of another type; `None` where a text is not one value of JSON.

    The error of pydantic is not its cause: that holds half a kilobyte for each problem.
    """
    count = error.error_count()
    if count > MAX_PROBLEMS:
        why = f"{count:,} parts of it are not"
    else:
        if _is_no_value(error):
            return None
        why = shortened(reasons(error), MAX_MESSAGE)
    return SerializationError(f"{_name(stub)} gave what is not of its declared type: {why}")


def _is_no_value(error: ValidationError) -> bool:
    """Return whether a text between brackets is not the JSON of a tuple of one value."""
    [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
    match first["type"], first["loc"]:
        case ("json_invalid", _) | ("too_long", ()) | ("missing", (0,)):
            return True
    return False


def _name(stub: Stub) -> str:
    return f"{stub.package}.{stub.method}"


def remote_call_error(fields: object) -> RemoteCallError | None:
    """Make the error that a call failed with, or return `None` where the fields are not its."""
    try:
        error = RemoteError.model_validate(fields)
    except ValidationError:
        return None
    return RemoteCallError(
        shortened(error.type, MAX_TYPE),
        shortened(error.message, MAX_MESSAGE),
        shortened(error.traceback, MAX_TRACEBACK),
    )


def cut_failure(start: bytes, size: int | None) -> RemoteCallError | None:
    """Make the error that a call failed with from the beginning of a very long answer or line.

    Args:
        start: The beginning.
        size: The bytes of the whole, where they are known.

    Returns:
        The error with what is known of it; `None` where the call has not failed.
    """
    try:
        match from_json(start, allow_partial="trailing-strings"):
            case {"error": {"type": str() as name, **fields}}:
                error = remote_call_error({"type": name, "message": "", **fields})
            case _:
                return None
    except ValueError:
        return None
    if error is None:
        return None
    whole = "a very long error" if size is None else f"an error of {size:,} bytes"
    return RemoteCallError(
        error.type, f"{error.message}\n[... the rest of {whole} was cut]", error.traceback
    )


def not_found(connection: Connection, body: bytes) -> Exception:
    """Make the error for a call that was answered with status 404."""
    missing = reason(body)
    return NamespaceNotFoundError(missing) if missing else connection.refusal(404, body)
