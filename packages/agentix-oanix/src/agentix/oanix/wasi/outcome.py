"""Outcome and Limits: what a slot is given for a run and gives back, by whichever path."""

from collections.abc import Callable
from dataclasses import dataclass

import wasmtime

from agentix.oanix.wasi import abi

__all__ = ["Limits", "Outcome", "Wrap", "function_type"]

Wrap = Callable[[str, Callable[..., int]], Callable[..., int]]
"""Is given a function with its name, and gives the one that is called in its place."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run may use."""

    fuel: int
    """Units of fuel; about one an instruction."""
    memory: int | None = None
    """Bytes of memory."""
    watched: bool = False
    """The run has a deadline or can be cancelled, and looks at them once a tick."""
    ticks: int = 1
    """Ticks of the engine until the deadline, for the path that can not look."""


@dataclass(slots=True)
class Outcome:
    """How a call into WebAssembly ended, apart from what the process itself noted."""

    started: bool
    """The instance was made and `_start` was called."""
    error: wasmtime.WasmtimeError | None = None
    """The engine's error."""
    trap: wasmtime.Trap | None = None
    """The program's trap."""
    fuel: int = 0
    """Units of fuel used."""


def function_type(name: str) -> wasmtime.FuncType:
    """Gives the WebAssembly type of a function of preview 1."""
    kinds = {"i": wasmtime.ValType.i32, "I": wasmtime.ValType.i64}
    parameters = [kinds[letter]() for letter in abi.SIGNATURES[name]]
    return wasmtime.FuncType(parameters, [] if name == "proc_exit" else [kinds["i"]()])
