"""Native: wasmtime's own WASI on a directory in memory, for tests and benches to compare with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import wasmtime

from agentix.oanix.engine import Profile, make_engine
from agentix.oanix.program import ModuleCache
from tests.oanix.programs import CACHE

__all__ = ["Native"]


class Native:
    """A program with an empty directory, in an engine as OANIX makes it.

    Args:
        wasm: The module.
        holder: A directory for that one and for the program's output; on a tmpfs for times.
        at: Where the program sees its directory.
    """

    def __init__(self, wasm: bytes, holder: Path, *, at: str = "/data") -> None:
        self._engine = make_engine(Profile())
        linker = wasmtime.Linker(self._engine)
        linker.define_wasi()
        module = ModuleCache(CACHE / "modules").load(self._engine, wasm, "deterministic=False")
        self._prepared = linker.instantiate_pre(module)
        self.directory = holder / "data"
        """What the program sees."""
        self.directory.mkdir()
        self._output = holder / "stdout"
        self._at = at

    def run(
        self,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        output: bool = False,
    ) -> str:
        """Run the program from a new store to its end, and return what it wrote if that is kept."""
        config = wasmtime.WasiConfig()
        if arguments:
            config.argv = arguments
        if environment:
            config.env = list(environment.items())
        if output:
            config.stdout_file = str(self._output)
        config.preopen_dir(str(self.directory), self._at)
        store = wasmtime.Store(self._engine)
        store.set_wasi(config)
        store.set_fuel(1 << 62)
        store.set_epoch_deadline(1 << 62)
        start = self._prepared.instantiate(store).exports(store)["_start"]
        assert isinstance(start, wasmtime.Func)
        try:
            start(store)
        except wasmtime.ExitTrap as ended:
            if ended.code:
                raise
        store.close()
        return self._output.read_text() if output else ""
