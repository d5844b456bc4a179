"""CompiledProgram: a compiled module, and why some modules cannot be programs."""

from weakref import WeakKeyDictionary

import wasmtime

from agentix.oanix.engine import Profile
from agentix.oanix.errors import ModuleError, UnknownImportError
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.runner import LinkedModule, WasiRunner, function_type

__all__ = ["CompiledProgram", "check_imports", "explain"]


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
