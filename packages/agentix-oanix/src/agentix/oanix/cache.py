"""ModuleCache: compiled modules in a private directory, by the content they were made of."""

import hashlib
import logging
import os
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path

import wasmtime

from agentix.oanix.errors import OanixError

__all__ = ["ModuleCache"]

logger = logging.getLogger(__name__)


class ModuleCache:
    """Compiled modules as files; they are trusted code, so the directory is the user's alone.

    Args:
        directory: Is made where it is missing, and must not be open to others.

    Raises:
        OanixError: The directory is another user's, or others can write to it.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise OanixError(f"{directory} holds trusted code: chown it to you and chmod 700 it")
        self._directory = directory

    def load(self, engine: wasmtime.Engine, wasm: bytes, profile: str) -> wasmtime.Module:
        """Return the compiled module of some bytes, compiling them where they are new.

        Args:
            engine: The engine that compiles and runs it.
            wasm: The module.
            profile: Names the engine's configuration.

        Raises:
            WasmtimeError: The bytes are not a module that the engine compiles.
        """
        path = self._directory / f"{self._key(wasm, profile)}.cwasm"
        if path.exists():
            try:
                return wasmtime.Module.deserialize_file(engine, str(path))
            except wasmtime.WasmtimeError as error:
                logger.info("compiling anew what %s held: %s", path, error)
        module = wasmtime.Module(engine, wasm)
        self._store(path, bytes(module.serialize()))
        return module

    def _store(self, path: Path, compiled: bytes) -> None:
        """Write a file whole or not at all."""
        number, name = tempfile.mkstemp(dir=self._directory)
        with os.fdopen(number, "wb") as file:
            file.write(compiled)
        Path(name).replace(path)

    def _key(self, wasm: bytes, profile: str) -> str:
        digest = hashlib.sha256(f"{version('wasmtime')} {profile}\n".encode())
        digest.update(wasm)
        return digest.hexdigest()
