"""Requests and answers as a page shows them, and as a runtime gives them."""

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentix.wire import READY_PREFIX
from tests.docs.blocks import Block
from tests.docs.workbench import shown

DEADLINE = 30.0
"""Seconds that a runtime may take for one answer on a busy machine."""

ANSWER = "HTTP/1.1 "


@dataclass(frozen=True)
class Message:
    """A request or an answer, split into its three parts."""

    first: str
    """The method and the target, or the version and the status."""
    headers: Mapping[str, str]
    """The header fields, names in lower case."""
    body: str
    """All below the first empty line."""

    @classmethod
    def parse(cls, text: str) -> "Message":
        """Reads what a block shows."""
        head, _, body = text.partition("\n\n")
        first, *fields = head.splitlines()
        pairs = [field.split(": ", 1) for field in fields]
        return cls(first, {name.lower(): value for name, value in pairs}, body)


@dataclass(frozen=True)
class Exchange:
    """A request with the answer that it must get."""

    request: Message
    """What is sent."""
    answer: Message
    """What is shown of the answer: other headers may come with it."""
    section: str
    """The heading of the page."""
    line: int
    """The line of the request's block."""


def read_exchanges(blocks: Sequence[Block]) -> list[Exchange]:
    """Pairs the `http` blocks of a page.

    Raises:
        ValueError: A request has no answer, or the other way round.
    """
    found = [block for block in blocks if block.language == "http"]
    exchanges: list[Exchange] = []
    for request, answer in zip(found[::2], found[1::2], strict=True):
        if request.text.startswith(ANSWER) or not answer.text.startswith(ANSWER):
            raise ValueError(f"line {request.line}: a request and its answer do not alternate")
        pair = (Message.parse(request.text), Message.parse(answer.text))
        exchanges.append(Exchange(*pair, request.section, request.line))
    return exchanges


@dataclass(frozen=True)
class Server:
    """A real runtime in a process of its own."""

    address: str
    """Its host and port."""
    workspace: Path
    """Its upload root, which pages call /workspace."""

    def check(self, exchange: Exchange) -> None:
        """Send the request and compare the answer with the one that is shown."""
        connection = http.client.HTTPConnection(self.address, timeout=DEADLINE)
        try:
            method, target = exchange.request.first.split(" ")
            body = request_body(exchange.request)
            connection.request(method, target, body, dict(exchange.request.headers))
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        text = raw.decode().replace(str(self.workspace), "/workspace")
        place = f"line {exchange.line}: {text}"
        assert f"{ANSWER}{answer.status}" == exchange.answer.first, place
        for name, value in exchange.answer.headers.items():
            assert answer.headers[name] == value, place
        assert matches(exchange.answer.body, text, answer.headers["content-type"]), place


def request_body(request: Message) -> bytes | None:
    """Gives the bytes of a body; the lines of a form end as RFC 7578 has them."""
    if not request.body:
        return None
    if request.headers.get("content-type", "").startswith("multipart/"):
        return request.body.replace("\n", "\r\n").encode()
    return request.body.encode()


def matches(expected: str, actual: str, media_type: str) -> bool:
    """Compares a body with the one that is shown, as its media type allows."""
    match media_type:
        case "application/json":
            return like(json.loads(expected), json.loads(actual))
        case "application/x-ndjson":
            return like(as_lines(expected), as_lines(actual))
        case "text/event-stream":
            return like(as_events(expected), as_events(actual))
        case _:
            return expected.removesuffix("\n") == actual


def as_lines(text: str) -> list[Any]:
    """Parses one JSON value a line."""
    return [json.loads(line) for line in text.splitlines()]


def as_events(text: str) -> list[Any]:
    """Parses server-sent events, each of one `event` and one `data` line."""
    found = re.findall(r"event: (\w+)\ndata: (.*)\n(?:\n|$)", text)
    return [[name, json.loads(data)] for name, data in found]


def like(expected: Any, actual: Any) -> bool:
    """Compares JSON; `...` in an expected text stands for any text."""
    match expected, actual:
        case dict(), dict():
            return expected.keys() == actual.keys() and all(
                like(value, actual[key]) for key, value in expected.items()
            )
        case list(), list():
            return len(expected) == len(actual) and all(map(like, expected, actual))
        case str(), str():
            pattern = re.compile(shown(expected).pattern, re.DOTALL)
            return pattern.fullmatch(actual) is not None
        case _:
            return type(expected) is type(actual) and bool(expected == actual)


@contextmanager
def serving(root: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    """Serves the mounts of `root/mnt` for the length of a `with` block."""
    workspace = root / "workspace"
    workspace.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "AGENTIX_BIND_PORT": "0",
        "AGENTIX_MOUNT_ROOT": str(root / "mnt"),
        "AGENTIX_UPLOAD_ROOT": str(workspace),
        **settings,
    }
    command = [sys.executable, "-m", "agentix.runtime"]
    with subprocess.Popen(
        command, env=environment, cwd=workspace, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY_PREFIX), line
        try:
            yield Server(urlsplit(line.removeprefix(READY_PREFIX).strip()).netloc, workspace)
        finally:
            process.terminate()
