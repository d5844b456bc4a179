"""FastSlot: runs programs with host functions registered through wasmtime's C interface.

wasmtime-py's `Linker.define_func` takes 10 to 30 us for a call; a callback registered by
`wasmtime_linker_define_func_unchecked` takes half a microsecond. It is the C interface of one
version, so `selftest` tries it before it is used, and `public` is there where it fails.
"""

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

import wasmtime
from wasmtime import _bindings
from wasmtime import _ffi as ffi

from agentix.oanix.errors import Code, FsError, from_os_error
from agentix.oanix.stop import Halt
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.outcome import Limits, Outcome, function_type
from agentix.oanix.wasi.process import Process

__all__ = ["FastSlot", "Prepared"]

_LIBRARY: Any = _bindings.dll  # type: ignore[attr-defined]
POINTER = ctypes.c_void_p
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_size_t, POINTER, POINTER, POINTER, ctypes.c_size_t)
EPOCH_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_size_t, POINTER, POINTER, ctypes.POINTER(ctypes.c_uint64), POINTER
)
SLOT = {"i": "I12x", "I": "Q8x"}
MAX_VIEWS = 256
NEVER = 1 << 62
HOST_TRAP = ffi.wasmtime_trap_code_enum.WASMTIME_TRAP_CODE_INTERRUPT.value


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Gives a function of the C interface with types of its own."""
    function = _LIBRARY[name]
    function.restype, function.argtypes = result, list(arguments)
    return function


_BYTES, _SIZE = ctypes.c_char_p, ctypes.c_size_t
define = _function(
    "wasmtime_linker_define_func_unchecked",
    *(POINTER, POINTER, _BYTES, _SIZE, _BYTES, _SIZE, POINTER, CALLBACK, POINTER, POINTER),
)
store_new = _function("wasmtime_store_new", POINTER, POINTER, POINTER, POINTER)
store_context = _function("wasmtime_store_context", POINTER, POINTER)
store_delete = _function("wasmtime_store_delete", None, POINTER)
store_limiter = _function("wasmtime_store_limiter", None, POINTER, *(ctypes.c_int64,) * 5)
set_fuel = _function("wasmtime_context_set_fuel", POINTER, POINTER, ctypes.c_uint64)
get_fuel = _function("wasmtime_context_get_fuel", POINTER, POINTER, POINTER)
set_deadline = _function("wasmtime_context_set_epoch_deadline", None, POINTER, ctypes.c_uint64)
set_epoch_callback = _function(
    "wasmtime_store_epoch_deadline_callback", None, POINTER, EPOCH_CALLBACK, POINTER, POINTER
)
instantiate = _function("wasmtime_instance_pre_instantiate", POINTER, *(POINTER,) * 4)
export_get = _function(
    "wasmtime_instance_export_get", ctypes.c_bool, POINTER, POINTER, _BYTES, _SIZE, POINTER
)
call = _function("wasmtime_func_call_unchecked", *(POINTER,) * 4, _SIZE, POINTER)
caller_context = _function("wasmtime_caller_context", POINTER, POINTER)
caller_export = _function(
    "wasmtime_caller_export_get", ctypes.c_bool, POINTER, _BYTES, _SIZE, POINTER
)
memory_size = _function("wasmtime_memory_data_size", _SIZE, POINTER, POINTER)
memory_data = _function("wasmtime_memory_data", POINTER, POINTER, POINTER)
trap_new_code = _function("wasmtime_trap_new_code", POINTER, ctypes.c_uint8)
error_new = _function("wasmtime_error_new", POINTER, _BYTES)


class Prepared:
    """A module joined with a slot's functions, and its address for the C interface."""

    __slots__ = ("address", "instance")

    def __init__(self, instance: wasmtime.InstancePre) -> None:
        self.instance = instance
        self.address = _address(instance)


class FastSlot:
    """A process with its functions defined in a linker, for one program at a time.

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
        self._engine_address = _address(engine)
        self._linker = wasmtime.Linker(engine)
        self._alive: list[object] = []
        self._epoch = EPOCH_CALLBACK(self._at_epoch)
        self._instance, self._trap = ffi.wasmtime_instance_t(), POINTER()
        self._export, self._fuel = ffi.wasmtime_extern_t(), ctypes.c_uint64()
        for name, signature in abi.SIGNATURES.items():
            function = getattr(process, name)
            self._define(name, signature, function if wrap is None else wrap(name, function))

    def prepare(self, module: wasmtime.Module) -> Prepared:
        """Joins a module with the functions."""
        return Prepared(self._linker.instantiate_pre(module))

    def run(self, prepared: Prepared, limits: Limits) -> Outcome:
        """Runs a program from a new instance to its end."""
        store = store_new(self._engine_address, None, None)
        context = store_context(store)
        try:
            if limits.memory is not None:
                store_limiter(store, limits.memory, -1, -1, -1, -1)
            set_fuel(context, limits.fuel)
            if limits.watched:
                set_epoch_callback(store, self._epoch, None, None)
            set_deadline(context, 1 if limits.watched else NEVER)
            outcome = self._start(context, prepared.address)
            get_fuel(context, ctypes.byref(self._fuel))
            outcome.fuel = limits.fuel - self._fuel.value
            return outcome
        finally:
            store_delete(store)

    def _start(self, context: int, prepared: int) -> Outcome:
        trap, export = self._trap, self._export
        trap.value = None
        place, trap_place = ctypes.byref(self._instance), ctypes.byref(trap)
        error = instantiate(prepared, context, place, trap_place)
        if error or trap:
            return Outcome(started=False, error=_error(error), trap=_trap(trap))
        if not export_get(context, place, b"_start", 6, ctypes.byref(export)):
            return Outcome(started=False, error=wasmtime.WasmtimeError("no export named _start"))
        if _kind(export) != ffi.WASMTIME_EXTERN_FUNC.value:
            return Outcome(started=False, error=wasmtime.WasmtimeError("_start is no function"))
        error = call(context, ctypes.addressof(export.of), None, 0, trap_place)
        return Outcome(started=True, error=_error(error), trap=_trap(trap))

    def _define(self, name: str, signature: str, function: Callable[..., int]) -> None:
        kind = function_type(name)
        raw = CALLBACK(self._callback(signature, function))
        self._alive += [kind, raw]
        module, field = abi.MODULE.encode(), name.encode()
        failed = define(
            *(_address(self._linker), module, len(module), field, len(field)),
            *(_address(kind), raw, None, None),
        )
        if failed:
            raise _error(failed) or RuntimeError(name)

    def _callback(
        self, signature: str, function: Callable[..., int]
    ) -> Callable[[int, int, int, int], int]:
        """Makes the C function: it unpacks the slots, calls, and puts the result into the first."""
        process = self.process
        unpack = Struct("<" + "".join(SLOT[letter] for letter in signature)).unpack_from
        slots_type = ctypes.c_ubyte * (16 * max(1, len(signature)))
        views: dict[int, tuple[memoryview, memoryview]] = {}

        def callback(env: int, caller: int, slots: int, count: int) -> int:
            found = views.get(slots)
            if found is None:
                found = _views(views, slots_type, slots)
            process.host_calls += 1
            try:
                if process.size < 0:
                    _bind_memory(process, caller)
                found[1][0] = function(*unpack(found[0]))
            except FsError as error:
                found[1][0] = error.code
            except OSError as error:
                found[1][0] = from_os_error(error).code
            except MemoryError:
                found[1][0] = Code.NOMEM
            except BaseException as error:
                process.stop = error
                return int(trap_new_code(HOST_TRAP))
            return 0

        return callback

    def _at_epoch(self, context: int, data: int, delta: Any, kind: int) -> int:
        """Looks, once a tick, whether the run is to stop."""
        try:
            self.process.check_stopped()
        except Halt as halt:
            self.process.stop = halt
            return int(error_new(b"stopped"))
        delta[0] = 1
        return 0


def _views(
    views: dict[int, tuple[memoryview, memoryview]], slots_type: Any, slots: int
) -> tuple[memoryview, memoryview]:
    """Makes views of the slots at an address; wasmtime uses few addresses again and again."""
    if len(views) >= MAX_VIEWS:
        views.clear()
    raw = memoryview(slots_type.from_address(slots)).cast("B")
    views[slots] = raw, raw[:4].cast("I")
    return views[slots]


def _bind_memory(process: Process, caller: int) -> None:
    """Lets a process see the memory of the program that calls it."""
    context, item = caller_context(caller), ffi.wasmtime_extern_t()
    process.size = 0
    if not caller_export(caller, b"memory", 6, ctypes.byref(item)):
        return
    if _kind(item) != ffi.WASMTIME_EXTERN_MEMORY.value:
        return
    memory = ffi.wasmtime_memory_t.from_buffer_copy(item.of.memory)
    place = ctypes.byref(memory)

    def remap() -> memoryview:
        size = memory_size(context, place)
        if size == 0:
            return memoryview(b"")
        content = (ctypes.c_ubyte * size).from_address(memory_data(context, place))
        return memoryview(content).cast("B")

    process.remap = remap
    process.memory = remap()
    process.size = len(process.memory)


def _address(managed: Any) -> int:
    return int(ctypes.cast(managed.ptr(), POINTER).value or 0)


def _error(address: int | None) -> wasmtime.WasmtimeError | None:
    if not address:
        return None
    return wasmtime.WasmtimeError._from_ptr(
        ctypes.cast(address, ctypes.POINTER(ffi.wasmtime_error_t))
    )


def _trap(trap: ctypes.c_void_p) -> wasmtime.Trap | None:
    if not trap.value:
        return None
    return wasmtime.Trap._from_ptr(ctypes.cast(trap, ctypes.POINTER(ffi.wasm_trap_t)))


def _kind(extern: Any) -> int:
    return int(extern.kind)
