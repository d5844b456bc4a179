"""The small pieces of HTTP that the endpoints share."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Send

from agentix.wire import ErrorBody

__all__ = [
    "BodyTooLargeError",
    "ClientGoneError",
    "Headers",
    "first_reason",
    "json_response",
    "problem",
    "read_body",
    "send_whole",
    "wait_for_disconnect",
]

JSON = "application/json"

Headers = list[tuple[bytes, bytes]]
"""Header fields as ASGI has them: lower-case names."""


class ClientGoneError(Exception):
    """The client closed its connection before its request was complete."""


class BodyTooLargeError(Exception):
    """A body is larger than the runtime takes."""


def json_response(model: BaseModel | dict[str, Any], status: int = 200) -> Response:
    """Return a model as a JSON answer."""
    return Response(to_json(model), status, media_type=JSON)


def problem(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal: a status of 400 or above with the reason as JSON."""
    body = to_json(ErrorBody(error=reason.encode("utf-8", "replace").decode()))
    return Response(body, status, headers, media_type=JSON)


def first_reason(error: ValidationError) -> str:
    """Return the first thing that is wrong with a body, in one line."""
    item = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, item["loc"]))
    return f"{place}: {item['msg']}" if place else str(item["msg"])


async def read_body(receive: Receive, limit: int) -> bytearray:
    """Read a whole request body.

    Args:
        receive: The channel of the request.
        limit: The largest body in bytes.

    Raises:
        ClientGoneError: The client left first.
        BodyTooLargeError: The body is larger than `limit`.
    """
    body = bytearray()  # a list of tiny chunks would take many times their bytes
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLargeError(f"the body is larger than {limit} bytes")
        if not message.get("more_body", False):
            return body


async def send_whole(send: Send, body: bytes, media_type: bytes, headers: Headers) -> None:
    """Sends a complete answer with status 200."""
    head = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has left; to be used once the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
