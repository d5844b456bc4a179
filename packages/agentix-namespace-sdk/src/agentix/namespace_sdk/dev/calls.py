"""Calls as a line each: what was asked, what came of it, and how long it took."""

import json
import time
from typing import Any

__all__ = ["CallReport"]

SHOWN = 60
"""Characters that are shown of one value."""

KEPT = 64 * 1024
"""Bytes of an answer that are kept to be shown."""

PREFIX = '{"ok":true,"value":'
"""How an answer begins that is a value."""


class CallReport:
    """Follows one call of `/_remote`, from its request to the end of its answer.

    Args:
        body: The body of the request.
    """

    def __init__(self, body: bytes) -> None:
        self._call = _call(body)
        self._started = time.monotonic()
        self._kept = bytearray()
        self._items = 0
        self._streams = False
        self._ended = False

    def begins(self, streams: bool) -> None:
        """Takes note of the head of the answer."""
        self._streams = streams

    def receives(self, chunk: bytes) -> None:
        """Takes note of a piece of the answer."""
        if not self._streams:
            self._kept += chunk[: KEPT - len(self._kept)]
            return
        *lines, rest = (bytes(self._kept) + chunk).split(b"\n")
        self._items += sum(line.startswith(b'{"item"') for line in lines)
        for line in lines:
            if line and not line.startswith(b'{"item"'):
                self._ended = True
                self._kept = bytearray(line)
                return
        self._kept = bytearray(rest)

    def ends(self) -> str:
        """Gives the line of an answer that is complete."""
        if self._streams:
            return self._line(self._stream_outcome())
        return self._line(_outcome(bytes(self._kept)))

    def breaks(self, reason: str) -> str:
        """Gives the line of an answer that is not."""
        return self._line(reason)

    def _stream_outcome(self) -> str:
        gave = f"gave {self._items} item{'' if self._items == 1 else 's'}"
        if not self._ended:
            return f"{gave} and broke off"
        error = json.loads(self._kept).get("error")
        return gave if error is None else f"{gave} and raised {error['type']}: {error['message']}"

    def _line(self, outcome: str) -> str:
        took = (time.monotonic() - self._started) * 1000
        return f"{self._call} {outcome} ({took:.1f} ms)"


def _call(body: bytes) -> str:
    """Writes a call as Python has it; only what cannot be read is left out."""
    try:
        request: Any = json.loads(body)
        given = [_shown(value) for value in request.get("args") or []]
        given += [
            f"{name}={_shown(value)}" for name, value in (request.get("kwargs") or {}).items()
        ]
        return f"{request['method']}({', '.join(given)})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "a call that cannot be read"


def _outcome(body: bytes) -> str:
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return f"-> {_cut(body.decode('utf-8', 'replace').removeprefix(PREFIX))}"
    match answer:
        case {"ok": True, "value": value}:
            return f"-> {_shown(value)}"
        case {"ok": False, "error": {"type": kind, "message": message}}:
            return f"raised {kind}: {message}"
        case {"error": reason}:
            return f"was refused: {reason}"
        case _:
            return f"-> {_shown(answer)}"


def _shown(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
