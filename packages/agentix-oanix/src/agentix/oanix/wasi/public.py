"""PublicSlot: runs programs by wasmtime-py's public interface alone; slower, and the same."""

import ctypes
from collections.abc import Callable
from typing import Any

import wasmtime

from agentix.oanix.errors import Code, FsError, from_os_error
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.outcome import Limits, Outcome, function_type
from agentix.oanix.wasi.process import Process

__all__ = ["PublicSlot"]

NEVER = 1 << 62
MASKS = {"i": (1 << 32) - 1, "I": (1 << 64) - 1}


class PublicSlot:
    """A process with its functions defined in a linker, for one program at a time.

    A cancelled program that makes no calls goes on until its deadline: only the fast path looks.

    Args:
        engine: The engine whose modules are run.
        process: The functions and their state.
        wrap: Is given each function with its name, and gives the one that is called.
    """

    def __init__(
        self,
        engine: wasmtime.Engine,
        process: Process,
        wrap: Callable[[str, Callable[..., int]], Callable[..., int]] = lambda _, function: (
            function
        ),
    ) -> None:
        self.process = process
        self._engine = engine
        self._linker = wasmtime.Linker(engine)
        for name, signature in abi.SIGNATURES.items():
            function = getattr(process, name)
            adapted = self._adapted(
                name, signature, function if wrap is None else wrap(name, function)
            )
            kind = function_type(name)
            self._linker.define_func(abi.MODULE, name, kind, adapted, access_caller=True)

    def prepare(self, module: wasmtime.Module) -> wasmtime.InstancePre:
        """Joins a module with the functions."""
        return self._linker.instantiate_pre(module)

    def run(self, prepared: wasmtime.InstancePre, limits: Limits) -> Outcome:
        """Runs a program from a new instance to its end."""
        store = wasmtime.Store(self._engine)
        if limits.memory is not None:
            store.set_limits(memory_size=limits.memory)
        store.set_fuel(limits.fuel)
        store.set_epoch_deadline(limits.ticks if limits.watched else NEVER)
        outcome = Outcome(started=False)
        try:
            start = prepared.instantiate(store).exports(store)["_start"]
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
        outcome.fuel = limits.fuel - store.get_fuel()
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
                    _bind_memory(process, caller)
                return function(*(a & mask for a, mask in zip(arguments, masks, strict=True)))
            except FsError as error:
                return int(error.code)
            except OSError as error:
                return int(from_os_error(error).code)
            except MemoryError:
                return int(Code.NOMEM)
            except BaseException as error:
                process.stop = error
                raise _Stopped(name) from error

        return adapted


class _Stopped(Exception):  # noqa: N818 - not an error
    """Carries the end of a run through wasmtime."""


def _bind_memory(process: Process, caller: wasmtime.Caller) -> None:
    """Lets a process see the memory of the program that calls it, while its calls last."""
    process.size = 0
    memory = caller.get("memory")
    if not isinstance(memory, wasmtime.Memory):
        return

    def remap() -> memoryview:
        size = memory.data_len(context)
        if size == 0:
            return memoryview(b"")
        base = ctypes.addressof(memory.data_ptr(context).contents)
        return memoryview((ctypes.c_ubyte * size).from_address(base)).cast("B")

    context: Any = wasmtime._store.StoreContext(caller._context())
    process.remap = remap
    process.memory = remap()
    process.size = len(process.memory)
