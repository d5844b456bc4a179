"""The tools that every worker has: reading, writing, listing and searching a namespace's files."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentix.oanix.jobs.tool import Tool, ToolCall
from agentix.oanix.namespace import Namespace

__all__ = ["TOOLBOX"]


def read_file(call: ToolCall) -> str:
    """Gives the text of the file `args[0]`."""
    (path,) = call.args
    return call.namespace.read(call.path(path)).decode()


def write_file(call: ToolCall) -> int:
    """Writes the text `args[1]` to the file `args[0]`, and gives the bytes written."""
    path, text = call.args
    data = text.encode()
    call.namespace.write(call.path(path), data)
    return len(data)


def list_files(call: ToolCall) -> list[dict[str, Any]]:
    """Lists the directory `args[0]`, or the working directory."""
    entries = call.namespace.readdir(
        call.path(
            *call.args or ".",
        )
    )
    return [{"name": e.name, "is_dir": e.is_dir, "size": e.size} for e in entries]


def search_files(call: ToolCall) -> list[dict[str, Any]]:
    """Finds lines that match the expression `args[0]` in the files below `args[1]`."""
    pattern, *where = call.args
    expression, found = re.compile(pattern), []
    for path in _files(
        call.namespace,
        call.path(
            *where or ".",
        ),
    ):
        if call.cancellation.cancelled:
            break
        lines = call.namespace.read(path).decode(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if expression.search(line):
                found.append({"path": path, "line": number, "text": line})
    return found


def _files(namespace: Namespace, path: str) -> Iterator[str]:
    """Gives the files at and below a path."""
    if not namespace.stat(path).is_dir:
        yield path
        return
    for entry in namespace.readdir(path):
        below = f"{path.rstrip('/')}/{entry.name}"
        if entry.is_dir:
            yield from _files(namespace, below)
        else:
            yield below


TOOLBOX: Mapping[str, Tool] = {
    "list": list_files,
    "read": read_file,
    "search": search_files,
    "write": write_file,
}
"""The tools by their names."""
