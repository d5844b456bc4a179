"""Reads a multipart form as it arrives (RFC 7578)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from agentix.errors import UsageError

__all__ = ["FormEvent", "PartData", "PartStart", "form_events"]

MAX_PART_HEAD = 8192
"""Bytes of the header fields of one part."""


@dataclass(slots=True)
class PartStart:
    """A part of the form begins."""

    name: str
    """The name of its field."""
    filename: str | None
    """The name of its file, where it is one."""


@dataclass(slots=True)
class PartData:
    """The next bytes of the part that began last."""

    data: bytes
    """The bytes."""


FormEvent = PartStart | PartData


async def form_events(request: Request) -> AsyncIterator[FormEvent]:
    """Yield the parts of the form that a request carries.

    Raises:
        UsageError: It is no form, is malformed, or breaks off.
    """
    parser = FormParser(_boundary(request))
    try:
        async for chunk in request.stream():
            for event in parser.feed(chunk):
                yield event
        parser.finish()
    except FormParserError as error:
        raise UsageError(f"the form is malformed: {error}") from error


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
        raise UsageError("an upload is multipart/form-data with a boundary")
    return boundary


class FormParser:
    """Turns the pieces of a multipart form into events.

    Args:
        boundary: What separates the parts.
    """

    def __init__(self, boundary: bytes) -> None:
        self._events: list[FormEvent] = []
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._name = b""
        self._value = b""
        self._complete = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_end": self._on_end,
            },
        )

    def feed(self, chunk: bytes) -> list[FormEvent]:
        """Parses the next piece and gives what it holds."""
        if chunk:
            self._parser.write(chunk)
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Checks that the form came to its end.

        Raises:
            UsageError: It broke off.
        """
        if not self._complete:
            raise UsageError("the form ends before its last boundary")

    def _on_part_begin(self) -> None:
        self._headers = {}
        self._header_bytes = 0

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._count_header(end - start)

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count_header(end - start)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_PART_HEAD:
            raise UsageError(f"the head of a part is larger than {MAX_PART_HEAD} bytes")

    def _on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        text = None if filename is None else filename.decode("utf-8", "replace")
        self._events.append(PartStart(name, text))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(PartData(data[start:end]))

    def _on_end(self) -> None:
        self._complete = True
