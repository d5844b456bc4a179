"""The trial of the fast path, made when this module is imported."""

import logging
from importlib.metadata import version
from typing import Any, Final

import wasmtime

from agentix.oanix.run import RunConfig
from agentix.oanix.wasi.fast import FastSlot
from agentix.oanix.wasi.process import Process
from agentix.oanix.wasi.public import PublicSlot

__all__ = ["FAST_PATH", "passes"]

logger = logging.getLogger(__name__)

TESTED_VERSION = "50.0."
"""The versions of wasmtime whose C interface the fast path is written for."""

PROGRAM = """(module
 (import "wasi_snapshot_preview1" "fd_seek" (func $seek (param i32 i64 i32 i32) (result i32)))
 (import "wasi_snapshot_preview1" "proc_raise" (func $raise (param i32) (result i32)))
 (memory (export "memory") 1)
 (func (export "_start")
  (drop (call $seek (i32.const -2) (i64.const -3) (i32.const 4) (i32.const 5)))
  (drop (call $raise (i32.load8_u (i32.const 40))))
  (drop (memory.grow (i32.const 1)))
  (drop (call $seek (i32.const 65536) (i64.const 4294967296) (i32.const 1) (i32.const 70000)))
  unreachable))"""


class _Probe(Process):
    """Notes what it is called with, and marks memory, so that both directions are seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []

    def fd_seek(self, *arguments: int) -> int:
        """Notes the arguments, and writes where the last one points."""
        self.reach(max(41, arguments[-1] + 1))
        self.memory[40] = 77
        self.seen.append((*arguments, self.size))
        return 5

    def proc_raise(self, *arguments: int) -> int:
        """Notes what the program read in memory."""
        self.seen.append((*arguments, self.size))
        return 6

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: 52


def passes() -> bool:
    """Runs a small program both ways, and tells whether the fast one saw the same."""
    if not version("wasmtime").startswith(TESTED_VERSION):
        return False
    config = wasmtime.Config()
    config.consume_fuel = config.epoch_interruption = True
    config.signals_based_traps = False  # importing must not take the process's signal handlers
    engine = wasmtime.Engine(config)
    module = wasmtime.Module(engine, PROGRAM)
    seen = []
    for kind in (PublicSlot, FastSlot):
        probe = _Probe()
        slot = kind(engine, probe)
        prepared: Any = slot.prepare(module)
        outcome = slot.run(prepared, RunConfig(fuel=1000))
        code = outcome.trap.trap_code if outcome.trap else None
        seen.append((probe.seen, probe.host_calls, outcome.fuel, outcome.started, code))
    return seen[0] == seen[1]


def _try() -> bool:
    try:
        good = passes()
    except (AttributeError, TypeError, ValueError, wasmtime.WasmtimeError) as error:
        logger.warning("the fast path of host calls fails: %r", error)
        return False
    if not good:
        logger.warning("the fast path of host calls differs; the public one is used")
    return good


FAST_PATH: Final = _try()
"""The fast path works with the installed wasmtime."""
