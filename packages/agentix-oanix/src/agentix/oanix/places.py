"""Where a user's programs and jobs are, unless the user says otherwise."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["jobs_directory", "keep_program", "modules_directory", "programs_directory"]

OWN = "agentix-oanix"


def modules_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of compiled programs: below `XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(environ.get("XDG_CACHE_HOME") or _home() / ".cache") / OWN / "modules"


def programs_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of recorded programs, beside the compiled ones."""
    return modules_directory(environ).with_name("programs")


def keep_program(directory: Path, wasm: bytes) -> Path:
    """Keep the content of a program, and return the file that has it, named by its SHA-256."""
    path = directory / hashlib.sha256(wasm).hexdigest()
    try:
        os.utime(path)
    except FileNotFoundError:
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(wasm)
        unfinished.replace(path)
    return path


def jobs_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the queue: below `XDG_STATE_HOME`, or `~/.local/state`."""
    return Path(environ.get("XDG_STATE_HOME") or _home() / ".local" / "state") / OWN / "jobs"


def _home() -> Path:
    """Return the home directory; one for temporary files where the user has none, as in images."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir())
