"""CompiledProgram: a compiled module, where it is kept, and why some modules cannot be programs."""

import hashlib
import logging
import os
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path
from weakref import WeakKeyDictionary

import wasmtime

from agentix.oanix.engine import Profile
from agentix.oanix.errors import ModuleError, OanixError, UnknownImportError
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.runner import LinkedModule, WasiRunner, function_type

__all__ = [
    "CompiledProgram",
    "ModuleCache",
    "check_imports",
    "explain",
]


class CompiledProgram:
    """A compiled module, joined with the functions of each runner that has run it."""

    def __init__(self, module: wasmtime.Module, digest: str, profile: Profile) -> None:
        self.module = module
        self.digest = digest
        """The SHA-256 of the module, in hexadecimal."""
        self.profile = profile
        """The engine that the code is for."""
        self._linked: WeakKeyDictionary[WasiRunner, LinkedModule] = WeakKeyDictionary()

    def linked(self, runner: WasiRunner) -> LinkedModule:
        """Return the module joined with a runner's functions."""
        if runner.last is not None and runner.last[0] is self:
            return runner.last[1]
        found = self._linked.get(runner)
        if found is None:
            found = self._linked[runner] = runner.link(self.module)
        runner.last = self, found
        return found


def check_imports(module: wasmtime.Module) -> None:
    """Refuse a module that imports what is not a function of WASI preview 1.

    Raises:
        UnknownImportError: The message names the import.
    """
    for wanted in module.imports:
        name = f"{wanted.module}.{wanted.name}"
        kind = wanted.type
        if not isinstance(kind, wasmtime.FuncType):
            raise UnknownImportError(f"the module imports {name}, which is not a function")
        if wanted.module != abi.MODULE or wanted.name not in abi.SIGNATURES:
            raise UnknownImportError(f"the module imports {name}; only {abi.MODULE} is offered")
        known = function_type(wanted.name or "")
        if (kind.params, kind.results) != (known.params, known.results):
            raise UnknownImportError(f"the module imports {name} with another signature")


def explain(wasm: bytes, error: wasmtime.WasmtimeError) -> ModuleError:
    """Make the error for a module that does not compile, naming a memory that is the cause."""
    config = wasmtime.Config()
    config.wasm_threads = config.wasm_memory64 = config.shared_memory = True
    try:
        module = wasmtime.Module(wasmtime.Engine(config), wasm)
    except wasmtime.WasmtimeError:
        return ModuleError(f"not a module that this kernel runs: {error}")
    named = [(f"{wanted.module}.{wanted.name}", wanted.type) for wanted in module.imports]
    named += [(given.name, given.type) for given in module.exports]
    for name, kind in named:
        if isinstance(kind, wasmtime.MemoryType) and (kind.is_shared or kind.is_64):
            feature = "shared between threads" if kind.is_shared else "of 64 bits"
            return ModuleError(f"the memory {name} is {feature}, which is not offered")
    return ModuleError(f"the module uses threads or memories of 64 bits: {error}")


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
