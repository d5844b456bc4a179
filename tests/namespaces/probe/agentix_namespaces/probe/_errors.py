"""What impls may raise."""

import asyncio


class BrokenTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class OwnBaseException(BaseException):
    """What test frameworks, for example, raise."""


KINDS: dict[str, BaseException] = {
    "ValueError": ValueError("a wrong value"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "StopIteration": StopIteration("stopped"),
    "StopAsyncIteration": StopAsyncIteration("stopped"),
    "GeneratorExit": GeneratorExit("left"),
    "CancelledError": asyncio.CancelledError("by itself"),
    "TimeoutError": TimeoutError("too late"),
    "OSError": OSError(28, "No space left on device"),
    "BrokenTextError": BrokenTextError(),
    "OwnBaseException": OwnBaseException("outside of Exception"),
    "ExceptionGroup": ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
}


def make(kind: str) -> BaseException:
    if kind == "surrogate":
        return ValueError("half \ud800 a character")
    return KINDS[kind]
