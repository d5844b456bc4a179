"""Native: wasmtime's own WASI on a directory in memory, for tests and benches to compare with."""

from collections.abc import Sequence
from pathlib import Path

import wasmtime

from agentix.oanix.engine import Profile, make_engine

__all__ = ["Native"]


class Native:
    """A program with an empty directory at `/data`, in an engine as OANIX makes it.

    Args:
        wasm: The module.
        holder: A directory for `/data` and the program's output; on a tmpfs where time matters.
    """

    def __init__(self, wasm: bytes, holder: Path) -> None:
        self._engine = make_engine(Profile())
        linker = wasmtime.Linker(self._engine)
        linker.define_wasi()
        self._prepared = linker.instantiate_pre(wasmtime.Module(self._engine, wasm))
        self.directory = holder / "data"
        """What the program sees at `/data`."""
        self.directory.mkdir()
        self._output = holder / "stdout"

    def run(self, arguments: Sequence[str] = (), *, output: bool = False) -> str:
        """Runs the program from a new store to its end, and gives what it wrote if that is kept."""
        config = wasmtime.WasiConfig()
        if arguments:
            config.argv = arguments
        if output:
            config.stdout_file = str(self._output)
        config.preopen_dir(str(self.directory), "/data")
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
