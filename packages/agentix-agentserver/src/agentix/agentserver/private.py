"""What an organism keeps from its handlers, which import from the directory that it is in."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentix.agentserver.spec import OrganismSpec

__all__ = ["kept_directory", "private_paths"]


def private_paths(spec: OrganismSpec, directory: Path) -> tuple[str, ...]:
    """Gives the files and directories that workers must not read: keys, users and topology.

    Args:
        spec: What the organism is made of.
        directory: Where it is.
    """
    return tuple(sorted({str(directory / path) for path in _paths(spec, directory)}))


def _paths(spec: OrganismSpec, directory: Path) -> Iterator[str | Path]:
    yield from directory.glob("*.yaml")
    yield from directory.glob("*.yml")
    yield spec.schemas
    if spec.journal is not None:
        yield spec.journal.path
    organism = spec.organism
    own = (organism.identity, organism.users, spec.oob.unix_socket, spec.runtime.token_file)
    yield from (path for path in own if path is not None)
    if organism.tls is not None:
        yield organism.tls.key
    yield from (model.key_file for model in spec.llm if model.key_file is not None)


@contextlib.contextmanager
def kept_directory(path: Path) -> Iterator[None]:
    """Has a directory from now on, and leaves it only if something is in it."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()
