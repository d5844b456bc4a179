"""Engines: wasmtime configured for many short runs, and the ticker behind their deadlines."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import wasmtime
from wasmtime import _bindings as bindings

from agentix.oanix.errors import OanixError

__all__ = ["TICK_SECONDS", "Profile", "Ticker", "make_engine"]

TICK_SECONDS = 0.01
"""Seconds between two looks at the deadlines of computing programs."""

IDLE_SECONDS = 1.0
"""Seconds that a ticker stays when no run needs it."""

STACK_BYTES = 1 << 20
"""Bytes of stack that a program has unless it is told otherwise."""

MIN_STACK_BYTES, MAX_STACK_BYTES = 1 << 16, 1 << 22
"""Bytes of stack that a program can be limited to; threads have 8 MiB in all."""

RESIDENT_BYTES = 1 << 17
"""Bytes of a memory that are cleared after a run and kept; the rest goes back to the kernel.

Clearing more takes longer than the faults that it spares where a program's stack is large.
"""

MAX_INSTANCES = 100
"""Programs that can be alive at once in one engine."""


class Profile(NamedTuple):
    """What distinguishes one engine from another; programs of one profile share an engine."""

    deterministic: bool = False
    """NaNs are canonical, and relaxed SIMD gives one result on every machine."""
    stack: int = STACK_BYTES
    """Bytes of stack, a power of two."""

    @classmethod
    def of(cls, deterministic: bool, stack: int | None) -> "Profile":
        """Return the profile of a run, with the stack rounded up so that engines stay few.

        Raises:
            OanixError: The stack is too big or no size.
        """
        if stack is None:
            return cls(deterministic)
        if not 0 < stack <= MAX_STACK_BYTES:
            raise OanixError(f"a stack of {stack} bytes: give 1 to {MAX_STACK_BYTES}")
        return cls(deterministic, max(MIN_STACK_BYTES, 1 << (stack - 1).bit_length()))


def make_engine(profile: Profile) -> wasmtime.Engine:
    """Make an engine with fuel, epochs and a pool of instances."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.memory_may_move = False
    config.max_wasm_stack = profile.stack
    bindings.wasmtime_config_async_stack_size_set(
        config.ptr(), 2 * MAX_STACK_BYTES
    )  # not used, checked
    config.wasm_threads = False
    config.wasm_memory64 = False
    config.wasm_component_model = False
    config.cranelift_nan_canonicalization = profile.deterministic
    config.wasm_relaxed_simd_deterministic = profile.deterministic
    _pool(config)
    return wasmtime.Engine(config)


def _pool(config: wasmtime.Config) -> None:
    pool = bindings.wasmtime_pooling_allocation_config_new()
    bindings.wasmtime_pooling_allocation_config_total_memories_set(pool, MAX_INSTANCES)
    bindings.wasmtime_pooling_allocation_config_total_core_instances_set(pool, MAX_INSTANCES)
    bindings.wasmtime_pooling_allocation_config_total_tables_set(pool, MAX_INSTANCES)
    bindings.wasmtime_pooling_allocation_config_table_elements_set(pool, 1 << 20)
    bindings.wasmtime_pooling_allocation_config_max_core_instance_size_set(pool, 1 << 24)
    bindings.wasmtime_pooling_allocation_config_max_memory_size_set(pool, 1 << 32)
    bindings.wasmtime_pooling_allocation_config_linear_memory_keep_resident_set(
        pool, RESIDENT_BYTES
    )
    bindings.wasmtime_pooling_allocation_config_max_unused_warm_slots_set(pool, MAX_INSTANCES)
    bindings.wasmtime_pooling_allocation_strategy_set(config.ptr(), pool)
    bindings.wasmtime_pooling_allocation_config_delete(pool)


class Ticker:
    """A thread that moves an engine's epoch on while runs with a deadline are under way."""

    def __init__(self, engine: wasmtime.Engine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._runs = 0
        self._thread: threading.Thread | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the ticker going for one run."""
        with self._changed:
            self._runs += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._tick, name="ticker", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._runs -= 1

    def _tick(self) -> None:
        following = time.monotonic() + TICK_SECONDS
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._runs > 0, IDLE_SECONDS):
                    self._thread = None
                    return
            # Not on the condition: each of many short runs would wake it, a switch of threads.
            time.sleep(max(0.0, following - time.monotonic()))
            self._engine.increment_epoch()
            following = time.monotonic() + TICK_SECONDS
