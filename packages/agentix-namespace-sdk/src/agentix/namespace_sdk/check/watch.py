"""What a function does besides giving a result."""

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["State", "Watch"]

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EFFECTS = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.link", "os.mkdir",
    "os.posix_spawn",  "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.system",
    "os.truncate",  "shutil.", "socket.bind", "socket.connect", "socket.sendto",
    "sqlite3.connect", "subprocess.Popen", "tempfile.", "urllib.Request",
)  # fmt: skip
"""Audit events (PEP 578) of what a pure function does not do."""


class Watch:
    """Takes note of what a function does to the world, while the block lasts."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self._watching = False

    def __enter__(self) -> "Watch":
        sys.addaudithook(self._hear)
        self._watching = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._watching = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        effect = None
        if event == "open":
            path, mode, flags = arguments
            if any(letter in (mode or "") for letter in "wax+") or flags & WRITING:
                effect = f"writes to {path!r}"
        elif event.startswith(EFFECTS):
            shown = ", ".join(repr(argument) for argument in arguments[:2])
            effect = f"does {event}({shown})"
        if effect is not None and effect not in self.effects:
            self.effects.append(effect)


@dataclass(frozen=True)
class State:
    """What a function can change in its own process."""

    environment: dict[str, str]
    path: list[str]
    directory: str
    threads: set[int | None]
    names: dict[str, tuple[int, ...]]
    """What marks the value of each global."""

    @classmethod
    def of(cls, module: ModuleType) -> "State":
        """Takes note of how things are."""
        return cls(
            environment=dict(os.environ),
            path=list(sys.path),
            directory=str(Path.cwd()),
            threads={thread.ident for thread in threading.enumerate()},
            names={name: _mark(value) for name, value in list(vars(module).items())},
        )

    def changes(self, module: ModuleType) -> list[str]:
        """Tells what is not as it was."""
        now = State.of(module)
        changed = [
            name
            for name in now.names
            # The interpreter has globals of its own there, such as __warningregistry__.
            if not name.startswith("__") and now.names[name] != self.names.get(name)
        ]
        told = [f"changes the global {name!r}" for name in changed]
        if now.environment != self.environment:
            told.append("changes the environment")
        if now.path != self.path:
            told.append("changes sys.path")
        if now.directory != self.directory:
            told.append("changes the working directory")
        if now.threads - self.threads:
            told.append("starts a thread")
        return told


def _mark(value: Any) -> tuple[int, ...]:
    """Gives what changes with a value, or, for a collection, with what it holds."""
    match value:
        case dict():
            held = [*value.keys(), *value.values()]
        case list() | set():
            held = list(value)
        case _:
            held = []
    return (id(value), *map(id, held))
