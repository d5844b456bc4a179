"""Which program of a namespace's `/bin` runs a script."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from agentix.oanix.errors import JobError, NotFoundError
from agentix.oanix.jobs.job import Script
from agentix.oanix.namespace import Namespace

__all__ = ["find_interpreter"]

DIRECTORY = "/bin"

ENDINGS = {
    ".js": ("qjs", "js"),
    ".lua": ("lua",),
    ".pl": ("perl",),
    ".py": ("python3", "python"),
    ".rb": ("ruby",),
    ".sh": ("sh", "dash", "bash", "ash"),
}
"""Interpreters by the endings of scripts, the preferred one first."""


def find_interpreter(namespace: Namespace, script: Script, path: str) -> tuple[str, Sequence[str]]:
    """Gives the interpreter of a script, and the arguments that go before the script's path.

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
    except NotFoundError as error:
        raise JobError(f"there is no script {path} in the namespace") from error
    options: Sequence[str] = ()
    if script.interpreter is not None:
        names: Sequence[str] = (script.interpreter,)
    elif first.startswith(b"#!"):
        names, options = _first_line(first.decode(errors="replace"))
    else:
        names = ENDINGS.get(PurePosixPath(path).suffix, ())
    if not names:
        raise JobError(f"nothing says what runs {path}: give it a first line such as #!/bin/sh")
    return _find(namespace, names, path), options


def _first_line(line: str) -> tuple[Sequence[str], Sequence[str]]:
    """Reads `#!PROGRAM OPTIONS`, with `env` passed over."""
    words = line.removeprefix("#!").split()
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return [PurePosixPath(words[0]).name] if words else [], words[1:]


def _find(namespace: Namespace, names: Sequence[str], path: str) -> str:
    try:
        there = [entry.name for entry in namespace.readdir(DIRECTORY)]
    except NotFoundError:
        there = []
    for name in names:
        for file in (name, f"{name}.wasm"):
            if file in there:
                return f"{DIRECTORY}/{file}"
    has = ", ".join(there) or "nothing"
    raise JobError(f"{path} needs {' or '.join(names)} in {DIRECTORY}, which has {has}")
