"""WasiRunner: runs programs with host functions registered through wasmtime's C interface.

    Machine ──► WasiRunner.run ──► wasmtime ──► callback ──► WasiProcess.fd_read, path_open ...
                     ▲                              │
                     └────────── RunOutcome ◄───────┘ a trap, an error, or the end

wasmtime-py's `Linker.define_func` takes 10 to 30 us for a call; a callback registered by
`wasmtime_linker_define_func_unchecked` takes half a microsecond. It is the C interface of one
version, so `check_engine` tries it once in each process and refuses a wasmtime where it differs.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from struct import Struct
from typing import Any

import wasmtime
from wasmtime import _bindings
from wasmtime import _ffi as ffi

from agentix.oanix.errors import EngineError
from agentix.oanix.run import RunConfig
from agentix.oanix.stop import Halt
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.process import NO_MEMORY, WasiProcess

__all__ = [
    "ENDLESS",
    "NEVER",
    "LinkedModule",
    "RunOutcome",
    "WasiRunner",
    "Wrap",
    "check_engine",
    "function_type",
    "probe_engine",
    "unchanged",
]

SUPPORTED = "50.0"
"""The release of wasmtime whose C interface this module is written for."""

ENDLESS = (1 << 63) - 1
"""The fuel of a run without a limit."""

NEVER = 1 << 62
"""Ticks of the engine that no run lives to see."""

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


def _unsupported() -> EngineError:
    return EngineError(
        f"wasmtime {version('wasmtime')} is installed, and OANIX runs with {SUPPORTED}.*:"
        f" install 'wasmtime=={SUPPORTED}.*'"
    )


def _function(name: str, result: Any = ctypes.c_void_p) -> Any:
    """Return a function of the C interface.

    It takes whole C values only, made by `_pointer` and `_number` as seldom as can be: ctypes
    converts Python's own slowly, and to 32 bits.

    Raises:
        EngineError: The installed wasmtime has no such function.
    """
    try:
        function = _LIBRARY[name]
    except AttributeError as error:
        raise _unsupported() from error
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


Wrap = Callable[[str, Callable[..., int]], Callable[..., int]]
"""Is given a function with its name, and returns the one that is called in its place."""


@dataclass(slots=True)
class RunOutcome:
    """How a call into WebAssembly ended, apart from what the process itself noted."""

    started: bool
    """The instance was made and `_start` was called."""
    error: wasmtime.WasmtimeError | None = None
    """The engine's error."""
    trap: wasmtime.Trap | None = None
    """The program's trap."""
    fuel: int = 0
    """Units of fuel used."""


def unchanged(name: str, function: Callable[..., int]) -> Callable[..., int]:
    """Return a function as it is."""
    return function


def function_type(name: str) -> wasmtime.FuncType:
    """Return the WebAssembly type of a function of preview 1."""
    kinds = {"i": wasmtime.ValType.i32, "I": wasmtime.ValType.i64}
    parameters = [kinds[letter]() for letter in abi.SIGNATURES[name]]
    return wasmtime.FuncType(parameters, [] if name == "proc_exit" else [kinds["i"]()])


class LinkedModule:
    """A module joined with a runner's functions, and its address for the C interface."""

    __slots__ = ("address", "instance")

    def __init__(self, instance: wasmtime.InstancePre) -> None:
        self.instance = instance
        self.address = _address(instance)


class WasiRunner:
    """A process with its functions defined in a linker, for one program at a time.

    Args:
        engine: The engine whose modules are run.
        process: The functions and their state.
        wrap: Is given each function with its name, and returns the one that is called.
    """

    def __init__(
        self, engine: wasmtime.Engine, process: WasiProcess, wrap: Wrap = unchanged
    ) -> None:
        self.process = process
        self.last: tuple[object, LinkedModule] | None = None
        """The program that was run last, and what `link` made of it."""
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

    def link(self, module: wasmtime.Module) -> LinkedModule:
        """Join a module with the functions."""
        return LinkedModule(self._linker.instantiate_pre(module))

    def run(self, prepared: LinkedModule, config: RunConfig) -> RunOutcome:
        """Run a program from a new instance to its end."""
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

    def _start(self, context: Any, prepared: Any) -> RunOutcome:
        instance, trap = self._instance_place, self._trap_place
        error = instantiate(prepared, context, instance, trap)
        if error or self._trap:
            return RunOutcome(False, _error(error), self._taken_trap())
        if not export_get(context, instance, *START, self._export_place):
            return RunOutcome(False, wasmtime.WasmtimeError("no export named _start"))
        if _kind(self._export) != ffi.WASMTIME_EXTERN_FUNC.value:
            return RunOutcome(False, wasmtime.WasmtimeError("_start is no function"))
        error = call(context, self._function_place, None, ZERO, trap)
        if error or self._trap:
            return RunOutcome(True, _error(error), self._taken_trap())
        return RunOutcome(True)

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
        """Make the C function: it unpacks the slots, calls, and puts the result into the first."""
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
        """Look, once a tick, whether the run is to stop."""
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
    """Make views of the slots at an address; wasmtime uses few addresses again and again."""
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
        """Find the memory of the program that calls, which may have none."""
        address = _pointer(caller)
        found = caller_export(address, *MEMORY, self._export_place)
        if found and _kind(self._export) == ffi.WASMTIME_EXTERN_MEMORY.value:
            self._context = _pointer(caller_context(address))
        else:
            self._context = None

    def remap(self) -> memoryview:
        """Return a view of the whole memory; a pool has its memories at few addresses."""
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


PROBE = """(module
 (import "wasi_snapshot_preview1" "fd_seek" (func $seek (param i32 i64 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "proc_raise" (func $raise (param i32) (result i32)))
 (memory (export "memory") 1)
 (func (export "_start")
  (drop (call $seek (i32.const -2) (i64.const -3) (i32.const 4) (i32.const 5)))
  (drop (call $raise (i32.load8_u (i32.const 40))))
  (drop (memory.grow (i32.const 1)))
  (drop (call $seek (i32.const 65536) (i64.const 4294967296) (i32.const 1) (i32.const 70000)))
  unreachable))"""

PROBE_FUEL = 17
"""The fuel that the probe uses."""

PROBED = [
    ((1 << 32) - 2, (1 << 64) - 3, 4, 5, 1 << 16),
    (77, 1 << 16),
    (1 << 16, 1 << 32, 1, 70000, 1 << 17),
]
"""What the functions of the probe are given, and the bytes of memory at each call."""


class _ProbeProcess(WasiProcess):
    """A process that notes its calls and marks memory, so that both directions are seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def fd_seek(self, *arguments: int) -> int:
        """Note the arguments, and write where the last one points."""
        self.reach(max(41, arguments[-1] + 1))
        self.memory[40] = 77
        self.seen.append((*arguments, self.size))
        return 5

    def proc_raise(self, *arguments: int) -> int:
        """Note what the program read in memory."""
        self.seen.append((*arguments, self.size))
        return 6

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: 52


def probe_engine() -> None:
    """Run a small program, and compare what it and the host saw of each other.

    Raises:
        EngineError: The installed wasmtime is of another version, or differs.
    """
    installed = version("wasmtime")
    if not installed.startswith(f"{SUPPORTED}."):
        raise _unsupported()
    config = wasmtime.Config()
    config.consume_fuel = config.epoch_interruption = True
    config.signals_based_traps = False  # a probe must not take the process's signal handlers
    engine = wasmtime.Engine(config)
    process = _ProbeProcess()
    try:
        runner = WasiRunner(engine, process)
        linked = runner.link(wasmtime.Module(engine, PROBE))
        outcome = runner.run(linked, RunConfig(fuel=1000))
    except (AttributeError, TypeError, ValueError, wasmtime.WasmtimeError) as error:
        raise EngineError(f"host calls fail with wasmtime {installed}: {error!r}") from error
    code = None if outcome.trap is None else outcome.trap.trap_code
    seen = process.seen, process.host_calls, outcome.fuel, code
    expected = PROBED, 3, PROBE_FUEL, wasmtime.TrapCode.UNREACHABLE
    if seen != expected:
        raise EngineError(f"host calls differ with wasmtime {installed}: {seen}, not {expected}")


check_engine = cache(probe_engine)
"""Call `probe_engine`, once in each process that it does not fail in."""
