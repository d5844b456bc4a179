"""What jobs may call: tools by their names, and the interpreters of scripts."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import Any

from agentix.oanix.errors import JobError, NoSuchFileError
from agentix.oanix.jobs.job import Script
from agentix.oanix.machine import Machine
from agentix.oanix.namespace import Namespace
from agentix.oanix.stop import Cancellation

__all__ = ["ENTRY_POINTS", "TOOLBOX", "Tool", "ToolCall", "ToolRegistry", "find_interpreter"]

ENTRY_POINTS = "agentix.oanix.tools"
"""The group of entry points by which distributions offer tools."""

PROGRAMS = "/bin"
"""The directory of a namespace that has the interpreters of scripts."""

INTERPRETERS = {
    ".js": ("qjs", "js"),
    ".lua": ("lua",),
    ".pl": ("perl",),
    ".py": ("python3", "python"),
    ".rb": ("ruby",),
    ".sh": ("sh", "dash", "bash", "ash"),
}
"""Interpreters by the endings of scripts, the preferred one first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """What a tool is called with.

    ```python
    from agentix.oanix.jobs import ToolCall

    def count_words(call: ToolCall) -> int:
        (name,) = call.args
        return len(call.namespace.read(call.path(name)).split())
    ```
    """

    namespace: Namespace
    """The tree of files that the tool works on."""
    args: Sequence[str]
    """Arguments as words."""
    input: Any
    """Arguments as JSON."""
    environment: Mapping[str, str]
    """Environment variables of the job."""
    working_dir: str
    """Where relative paths start."""
    machine: Machine
    """Runs WASI programs, with the namespace or another one."""
    cancellation: Cancellation
    """Whether the call is to end; a tool that takes long looks at it."""
    stdout: Callable[[bytes], None]
    """Adds to the job's standard output."""
    stderr: Callable[[bytes], None]
    """Adds to the job's standard error."""

    def path(self, text: str) -> str:
        """Return a path of the namespace, from the root."""
        return posixpath.normpath(posixpath.join("/", self.working_dir, text))


Tool = Callable[[ToolCall], Any]
"""A function that returns what has a JSON form; an exception fails the job."""


class ToolRegistry:
    """Tools by their names: those given here, and those that installed distributions offer.

    A distribution offers a tool by an entry point of the group `agentix.oanix.tools`, which is
    imported when it is first called.

    ```python
    from agentix.oanix.jobs import ToolRegistry

    tools = ToolRegistry({"echo": lambda call: list(call.args)})
    assert "echo" in tools.names()
    ```

    Args:
        tools: Tools that are here already; they come before entry points of the same name.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = dict(tools)

    def names(self) -> Sequence[str]:
        """Return the names of the tools, sorted."""
        return sorted({*self._tools, *entry_points(group=ENTRY_POINTS).names})

    def get(self, name: str) -> Tool:
        """Return a tool.

        Raises:
            JobError: There is none of this name, or it cannot be imported.
        """
        if name not in self._tools:
            self._tools[name] = self._load(name)
        return self._tools[name]

    def _load(self, name: str) -> Tool:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            try:
                found = point.load()
            except Exception as error:  # whatever a module of others does when it is imported
                raise JobError(f"the tool {name} cannot be imported: {error!r}") from error
            if not callable(found):
                raise JobError(f"the tool {name} is no function: {point.value}")
            tool: Tool = found
            return tool
        raise JobError(f"there is no tool {name!r}; there are {', '.join(self.names())}")


def read_file(call: ToolCall) -> str:
    """Return the text of the file `args[0]`."""
    (path,) = call.args
    return call.namespace.read(call.path(path)).decode()


def write_file(call: ToolCall) -> int:
    """Write the text `args[1]` to the file `args[0]`, and return how many bytes it has."""
    path, text = call.args
    data = text.encode()
    call.namespace.write(call.path(path), data)
    return len(data)


def list_files(call: ToolCall) -> list[dict[str, Any]]:
    """List the directory `args[0]`, or the working directory."""
    (path,) = call.args or (".",)
    entries = call.namespace.readdir(call.path(path))
    return [{"name": e.name, "is_dir": e.is_dir, "size": e.size} for e in entries]


def search_files(call: ToolCall) -> list[dict[str, Any]]:
    """Find lines that match the expression `args[0]` in the files below `args[1]`."""
    pattern, *where = call.args
    (start,) = where or (".",)
    expression, found = re.compile(pattern), []
    for path in _files(call.namespace, call.path(start)):
        if call.cancellation.cancelled:
            break
        lines = call.namespace.read(path).decode(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if expression.search(line):
                found.append({"path": path, "line": number, "text": line})
    return found


def _files(namespace: Namespace, path: str) -> Iterator[str]:
    """Yield the files at and below a path."""
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
"""The tools that every worker has."""


def find_interpreter(namespace: Namespace, script: Script, path: str) -> tuple[str, Sequence[str]]:
    """Return the interpreter of a script, and the arguments that go before the script's path.

    Args:
        namespace: Where both are.
        script: What is to be run.
        path: The script's path from the root.

    Raises:
        JobError: The script is missing, nothing says what runs it, or `/bin` does not have that.
    """
    try:
        with namespace.open(path) as file:
            first = file.read(256).split(b"\n")[0]
    except NoSuchFileError as error:
        raise JobError(f"there is no script {path} in the namespace") from error
    options: Sequence[str] = ()
    if script.interpreter is not None:
        names: Sequence[str] = (script.interpreter,)
    elif first.startswith(b"#!"):
        names, options = _parse_shebang(first.decode(errors="replace"))
    else:
        names = INTERPRETERS.get(PurePosixPath(path).suffix, ())
    if not names:
        raise JobError(f"nothing says what runs {path}: give it a first line such as #!/bin/sh")
    return _find_program(namespace, names, path), options


def _parse_shebang(line: str) -> tuple[Sequence[str], Sequence[str]]:
    """Read `#!PROGRAM OPTIONS`, with `env` passed over."""
    words = line.removeprefix("#!").split()
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return [PurePosixPath(words[0]).name] if words else [], words[1:]


def _find_program(namespace: Namespace, names: Sequence[str], path: str) -> str:
    try:
        there = [entry.name for entry in namespace.readdir(PROGRAMS)]
    except NoSuchFileError:
        there = []
    for name in names:
        for file in (name, f"{name}.wasm"):
            if file in there:
                return f"{PROGRAMS}/{file}"
    has = ", ".join(there) or "nothing"
    raise JobError(f"{path} needs {' or '.join(names)} in {PROGRAMS}, which has {has}")
