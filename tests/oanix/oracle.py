"""The oracle of host calls: programs run by wasmtime-py's public interface alone.

It is 20 times slower than what the package does, and shares none of its use of the C interface, so
that both can be held against each other.
"""

import ctypes
from collections.abc import Callable
from typing import Any, cast

import wasmtime

from agentix.oanix import Machine, RunConfig
from agentix.oanix.engine import TICK_SECONDS
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.process import WasiProcess
from agentix.oanix.wasi.runner import (
    ENDLESS,
    NEVER,
    RunOutcome,
    WasiRunner,
    Wrap,
    function_type,
    unchanged,
)

MASKS = {"i": (1 << 32) - 1, "I": (1 << 64) - 1}


class OracleRunner:
    """A process with its functions defined in a linker, for one program at a time.

    A cancelled program that makes no calls goes on until its deadline.

    Args:
        engine: The engine whose modules are run.
        process: The functions and their state.
        wrap: Is given each function with its name, and returns the one that is called.
    """

    def __init__(
        self, engine: wasmtime.Engine, process: WasiProcess, wrap: Wrap = unchanged
    ) -> None:
        self.process = process
        self.last: tuple[object, Any] | None = None
        self._engine = engine
        self._linker = wasmtime.Linker(engine)
        for name, signature in abi.SIGNATURES.items():
            called = self._adapted(name, signature, wrap(name, getattr(process, name)))
            kind = function_type(name)
            self._linker.define_func(abi.MODULE, name, kind, called, access_caller=True)

    def link(self, module: wasmtime.Module) -> wasmtime.InstancePre:
        """Join a module with the functions."""
        return self._linker.instantiate_pre(module)

    def run(self, linked: wasmtime.InstancePre, config: RunConfig) -> RunOutcome:
        """Run a program from a new instance to its end."""
        store = wasmtime.Store(self._engine)
        if config.memory is not None:
            store.set_limits(memory_size=config.memory)
        fuel = ENDLESS if config.fuel is None else config.fuel
        store.set_fuel(fuel)
        ticks = NEVER if config.timeout is None else int(config.timeout / TICK_SECONDS) + 2
        store.set_epoch_deadline(ticks)
        outcome = RunOutcome(started=False)
        try:
            start = linked.instantiate(store).exports(store)["_start"]
            if not isinstance(start, wasmtime.Func):
                raise wasmtime.WasmtimeError("_start is no function")
            outcome.started = True
            start(store)
        except wasmtime.Trap as trap:
            outcome.trap = trap
        except wasmtime.WasmtimeError as error:
            outcome.error = error
        except KeyError:
            outcome.error = wasmtime.WasmtimeError("no export named _start")
        except _Stopped:
            pass
        outcome.fuel = fuel - store.get_fuel()
        store.close()
        return outcome

    def _adapted(
        self, name: str, signature: str, function: Callable[..., int]
    ) -> Callable[..., int | None]:
        process = self.process
        masks = [MASKS[letter] for letter in signature]

        def adapted(caller: wasmtime.Caller, *arguments: int) -> int | None:
            process.host_calls += 1
            try:
                if process.size < 0:
                    process.bind(_mapping(caller))
                return function(*(a & mask for a, mask in zip(arguments, masks, strict=True)))
            except BaseException as error:
                number = process.failed(error)
                if number is None:
                    raise _Stopped(name) from error
                return number

        return adapted


class _Stopped(Exception):  # noqa: N818 - not an error
    """Carries the end of a run through wasmtime."""


def _mapping(caller: wasmtime.Caller) -> Callable[[], memoryview]:
    """Return what shows the memory of the program that calls, while its calls last."""
    memory = caller.get("memory")
    if not isinstance(memory, wasmtime.Memory):
        return lambda: memoryview(b"")

    def remap() -> memoryview:
        size = memory.data_len(context)
        if size == 0:
            return memoryview(b"")
        base = ctypes.addressof(memory.data_ptr(context).contents)
        return memoryview((ctypes.c_ubyte * size).from_address(base)).cast("B")

    context: Any = wasmtime._store.StoreContext(caller._context())
    return remap


class OracleMachine(Machine):
    """A machine whose programs the oracle runs."""

    runner_class = cast(type[WasiRunner], OracleRunner)
