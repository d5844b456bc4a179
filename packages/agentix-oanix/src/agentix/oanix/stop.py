"""What ends a run: the program's own exit, a limit, or another thread."""

import threading
from collections.abc import Callable
from enum import StrEnum

__all__ = ["Cancellation", "Exit", "Halt", "Reason"]


class Reason(StrEnum):
    """Why a run ended.

    ```python
    from agentix.oanix import Machine, Namespace, Reason, RunConfig

    endless = b'(module (func (export "_start") (loop (br 0))))'
    result = Machine().run(endless, Namespace(), RunConfig(timeout=0.1))
    assert result.reason is Reason.TIMEOUT
    ```
    """

    EXIT = "exit"
    """The program returned or called `proc_exit`."""
    TRAP = "trap"
    """The program did what WebAssembly forbids, such as dividing by zero."""
    STACK = "stack"
    """The program's calls went deeper than its stack."""
    FUEL = "fuel"
    """The fuel was used up."""
    TIMEOUT = "timeout"
    """The time was over."""
    CANCELLED = "cancelled"
    """The run was cancelled."""
    OUTPUT = "output"
    """The program wrote more output than it may."""
    MEMORY = "memory"
    """The program needs more memory at its start than it may have."""


class Exit(BaseException):
    """A program's own end."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Halt(BaseException):
    """The end of a run by a limit or another thread."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Cancellation:
    """A switch by which any thread stops a run, whether the program computes or waits.

    ```python
    import threading

    from agentix.oanix import Cancellation, Machine, Namespace, RunConfig

    endless = b'(module (func (export "_start") (loop (br 0))))'
    cancellation = Cancellation()
    threading.Timer(0.1, cancellation.cancel).start()
    result = Machine().run(endless, Namespace(), RunConfig(cancellation=cancellation))
    assert result.reason == "cancelled"
    ```
    """

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """Whether the run is to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop the run; once is enough."""
        self._cancelled.set()
        with self._lock:
            watchers = tuple(self._watchers)
        for wake in watchers:
            wake()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when the run is cancelled; return the undoing."""
        with self._lock:
            self._watchers.append(wake)
        return lambda: self._watchers.remove(wake)
