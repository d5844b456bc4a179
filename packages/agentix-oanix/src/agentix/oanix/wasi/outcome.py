"""Outcome: what came of a call into WebAssembly, by whichever path."""

from collections.abc import Callable
from dataclasses import dataclass

import wasmtime

from agentix.oanix.wasi import abi

__all__ = ["ENDLESS", "NEVER", "Outcome", "Wrap", "function_type", "unchanged"]

ENDLESS = (1 << 63) - 1
"""The fuel of a run without a limit."""

NEVER = 1 << 62
"""Ticks of the engine that no run lives to see."""

Wrap = Callable[[str, Callable[..., int]], Callable[..., int]]
"""Is given a function with its name, and gives the one that is called in its place."""


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


def unchanged(name: str, function: Callable[..., int]) -> Callable[..., int]:
    """Has a function called as it is."""
    return function


def function_type(name: str) -> wasmtime.FuncType:
    """Gives the WebAssembly type of a function of preview 1."""
    kinds = {"i": wasmtime.ValType.i32, "I": wasmtime.ValType.i64}
    parameters = [kinds[letter]() for letter in abi.SIGNATURES[name]]
    return wasmtime.FuncType(parameters, [] if name == "proc_exit" else [kinds["i"]()])
