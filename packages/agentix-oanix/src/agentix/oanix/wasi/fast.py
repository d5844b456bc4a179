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

from agentix.oanix.run import RunConfig
from agentix.oanix.stop import Halt
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.outcome import ENDLESS, NEVER, Outcome, Wrap, function_type, unchanged
from agentix.oanix.wasi.process import NO_MEMORY, Process

__all__ = ["FastSlot", "Prepared"]

_LIBRARY: Any = _bindings.dll  # type: ignore[attr-defined]
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
EPOCH_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p),
)
SLOT = {"i": "I12x", "I": "Q8x"}
MAX_VIEWS = 256
HOST_TRAP = ctypes.c_uint8(ffi.wasmtime_trap_code_enum.WASMTIME_TRAP_CODE_INTERRUPT.value)

_pointer: Callable[[int], Any] = ctypes.c_void_p.from_param
_number: Callable[[int], Any] = ctypes.c_uint64.from_param


def _function(name: str, result: Any = ctypes.c_void_p) -> Any:
    """Gives a function of the C interface.

    It takes whole C values only, made by `_pointer` and `_number` as seldom as can be: ctypes
    converts Python's own slowly, and to 32 bits.
    """
    function = _LIBRARY[name]
    function.restype = result
    return function


define = _function("wasmtime_linker_define_func_unchecked")
store_new = _function("wasmtime_store_new")
store_context = _function("wasmtime_store_context")
store_delete = _function("wasmtime_store_delete", None)
store_limiter = _function("wasmtime_store_limiter", None)
set_fuel = _function("wasmtime_context_set_fuel")
get_fuel = _function("wasmtime_context_get_fuel")
set_deadline = _function("wasmtime_context_set_epoch_deadline", None)
set_epoch_callback = _function("wasmtime_store_epoch_deadline_callback", None)
instantiate = _function("wasmtime_instance_pre_instantiate")
export_get = _function("wasmtime_instance_export_get", ctypes.c_bool)
call = _function("wasmtime_func_call_unchecked")
caller_context = _function("wasmtime_caller_context")
caller_export = _function("wasmtime_caller_export_get", ctypes.c_bool)
memory_size = _function("wasmtime_memory_data_size", ctypes.c_size_t)
memory_data = _function("wasmtime_memory_data")
trap_new_code = _function("wasmtime_trap_new_code", ctypes.c_size_t)
error_new = _function("wasmtime_error_new", ctypes.c_size_t)

START = ctypes.c_char_p(b"_start"), _number(6)
MEMORY = ctypes.c_char_p(b"memory"), _number(6)
NO_FUEL_LIMIT, NO_DEADLINE, NEXT_TICK, ZERO = map(_number, (ENDLESS, NEVER, 1, 0))
UNLIMITED = _number((1 << 64) - 1)


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

    def __init__(self, engine: wasmtime.Engine, process: Process, wrap: Wrap = unchanged) -> None:
        self.process = process
        self.last: tuple[object, Any] | None = None
        """The program that was run last, and what `prepare` made of it."""
        self._engine = engine
        self._engine_address = _address(engine)
        self._linker = wasmtime.Linker(engine)
        self._alive: list[object] = []
        self._epoch = EPOCH_CALLBACK(self._at_epoch)
        self._instance, self._trap = ffi.wasmtime_instance_t(), ctypes.c_void_p()
        self._export, self._fuel = ffi.wasmtime_extern_t(), ctypes.c_uint64()
        self._instance_place = ctypes.byref(self._instance)
        self._trap_place = ctypes.byref(self._trap)
        self._export_place = ctypes.byref(self._export)
        self._function_place = ctypes.byref(self._export.of)
        self._fuel_place = ctypes.byref(self._fuel)
        self._mapping = Mapping()
        for name, signature in abi.SIGNATURES.items():
            self._define(name, signature, wrap(name, getattr(process, name)))

    def prepare(self, module: wasmtime.Module) -> Prepared:
        """Joins a module with the functions."""
        return Prepared(self._linker.instantiate_pre(module))

    def run(self, prepared: Prepared, config: RunConfig) -> Outcome:
        """Runs a program from a new instance to its end."""
        store = _pointer(store_new(self._engine_address, None, None))
        try:
            context = _pointer(store_context(store))
            fuel = config.fuel
            set_fuel(context, NO_FUEL_LIMIT if fuel is None else _number(fuel))
            if config.memory is not None:
                rest = UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED
                store_limiter(store, _number(config.memory), *rest)
            if config.watched:
                set_epoch_callback(store, self._epoch, None, None)
                set_deadline(context, NEXT_TICK)
            else:
                set_deadline(context, NO_DEADLINE)
            outcome = self._start(context, prepared.address)
            get_fuel(context, self._fuel_place)
            outcome.fuel = (ENDLESS if fuel is None else fuel) - self._fuel.value
            return outcome
        finally:
            store_delete(store)

    def _start(self, context: Any, prepared: Any) -> Outcome:
        instance, trap = self._instance_place, self._trap_place
        error = instantiate(prepared, context, instance, trap)
        if error or self._trap:
            return Outcome(False, _error(error), self._taken_trap())
        if not export_get(context, instance, *START, self._export_place):
            return Outcome(False, wasmtime.WasmtimeError("no export named _start"))
        if _kind(self._export) != ffi.WASMTIME_EXTERN_FUNC.value:
            return Outcome(False, wasmtime.WasmtimeError("_start is no function"))
        error = call(context, self._function_place, None, ZERO, trap)
        if error or self._trap:
            return Outcome(True, _error(error), self._taken_trap())
        return Outcome(True)

    def _taken_trap(self) -> wasmtime.Trap | None:
        address, self._trap.value = self._trap.value, None
        if not address:
            return None
        place = ctypes.cast(address, ctypes.POINTER(ffi.wasm_trap_t))
        return wasmtime.Trap._from_ptr(place)

    def _define(self, name: str, signature: str, function: Callable[..., int]) -> None:
        kind = function_type(name)
        raw = CALLBACK(self._callback(signature, function))
        self._alive += [kind, raw]
        module, field = abi.MODULE.encode(), name.encode()
        failed = define(
            _address(self._linker),
            *(ctypes.c_char_p(module), _number(len(module))),
            *(ctypes.c_char_p(field), _number(len(field))),
            *(_address(kind), raw, None, None),
        )
        if failed:
            raise _error(failed) or RuntimeError(name)

    def _callback(
        self, signature: str, function: Callable[..., int]
    ) -> Callable[[int, int, int, int], int]:
        """Makes the C function: it unpacks the slots, calls, and puts the result into the first."""
        process, mapping = self.process, self._mapping
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
                    mapping.take(caller)
                    process.bind(mapping.remap)
                found[1][0] = function(*unpack(found[0]))
            except BaseException as error:
                number = process.failed(error)
                if number is None:
                    return int(trap_new_code(HOST_TRAP))
                found[1][0] = number
            return 0

        return callback

    def _at_epoch(self, context: int, data: int, delta: Any, kind: int) -> int:
        """Looks, once a tick, whether the run is to stop."""
        try:
            self.process.check_stopped()
        except Halt as halt:
            self.process.stop = halt
            return int(error_new(ctypes.c_char_p(b"stopped")))
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


class Mapping:
    """Where the memory of the program that runs lies."""

    def __init__(self) -> None:
        self._context: Any = None
        self._export = ffi.wasmtime_extern_t()
        self._export_place = ctypes.byref(self._export)
        self._memory_place = ctypes.byref(self._export.of)
        self._views: dict[tuple[int, int], memoryview] = {}

    def take(self, caller: int) -> None:
        """Finds the memory of the program that calls, which may have none."""
        address = _pointer(caller)
        found = caller_export(address, *MEMORY, self._export_place)
        if found and _kind(self._export) == ffi.WASMTIME_EXTERN_MEMORY.value:
            self._context = _pointer(caller_context(address))
        else:
            self._context = None

    def remap(self) -> memoryview:
        """Gives a view of the whole memory; a pool has its memories at few addresses."""
        if self._context is None:
            return NO_MEMORY
        size = memory_size(self._context, self._memory_place)
        if size == 0:
            return NO_MEMORY
        place = memory_data(self._context, self._memory_place), size
        found = self._views.get(place)
        if found is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            content = (ctypes.c_ubyte * size).from_address(place[0])
            found = self._views[place] = memoryview(content).cast("B")
        return found


def _address(managed: Any) -> Any:
    return _pointer(ctypes.cast(managed.ptr(), ctypes.c_void_p).value or 0)


def _error(address: int | None) -> wasmtime.WasmtimeError | None:
    if not address:
        return None
    return wasmtime.WasmtimeError._from_ptr(
        ctypes.cast(address, ctypes.POINTER(ffi.wasmtime_error_t))
    )


def _kind(extern: Any) -> int:
    return int(extern.kind)
