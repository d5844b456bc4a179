"""The child process that imports a namespace and asks it questions.

    python -m agentix.namespace_sdk.check.importing.child DIRECTORY PACKAGE DESCRIPTOR

It writes an `ImportReport` in parts to standard output, each as soon as it is known, so that the
findings before a crash count; the namespace's own output goes to standard error.

The descriptor is the end of a pipe whose other end the checking process holds: when that is gone,
this process goes, with all that its session started.
"""

import importlib
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import TextIOBase
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Self, get_args, get_origin

from agentix.dispatch import Dispatcher
from agentix.errors import StubError
from agentix.namespace_sdk.check.importing.samples import kinds_without_json, lost_value, values_of
from agentix.namespace_sdk.check.rules import Breach, Finding, rule
from agentix.stub import UNPACK, Stub, stub_of

__all__ = [
    "ImportReport",
    "broken_import",
    "main",
    "slow_import",
]

REGISTER_SECONDS = 1.0
"""The longest that `register()` may take, once its module is imported."""

LIGHT_MODULES = {
    *("agentix", "agentix_namespaces"),
    *("annotated_types", "pydantic", "pydantic_core", "typing_extensions"),
}
"""Packages that importing stubs may bring to a caller, beside the standard library."""

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SIDE_EFFECTS = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.link", "os.mkdir",
    "os.posix_spawn",  "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.system",
    "os.truncate",  "shutil.", "socket.bind", "socket.connect", "socket.sendto",
    "sqlite3.connect", "subprocess.Popen", "tempfile.", "urllib.Request",
)  # fmt: skip
"""Audit events (PEP 578) of what a pure function does not do."""


@dataclass
class ImportReport:
    """What importing a namespace showed, written by the child and read by its parent."""

    findings: list[Finding] = field(default_factory=list)
    """What was found; files are absolute paths."""
    bound: list[str] | None = None
    """The functions that `register()` binds; `None` where it could not be asked."""
    done: bool = False
    """Whether all questions were asked."""

    def to_line(self) -> str:
        """Return this part of a report as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    def add_line(self, line: bytes) -> None:
        """Add the next part of a report to the parts before it."""
        part = json.loads(line)
        self.findings += [Finding(**finding) for finding in part["findings"]]
        self.bound = self.bound if part["bound"] is None else part["bound"]
        self.done |= part["done"]


class ImportProbe:
    """The questions to one namespace.

    Args:
        package: Its import path.
        output: Where the report goes.
    """

    def __init__(self, package: str, output: TextIOBase) -> None:
        self._package = package
        self._output = output
        self._reported: set[Finding] = set()
        self._bound: dict[str, Callable[..., Any]] = {}

    def run(self) -> None:
        """Ask all questions, as far as the namespace lets it."""
        before = set(sys.modules)
        stubs = self._import(self._package)
        if stubs is None:
            return
        self._report(heavy_stubs(self._package, stubs, set(sys.modules) - before))
        with self._observed_bindings() as bindings:
            registering = self._import(f"{self._package}._register")
            if registering is None:
                return
            registration = Registration.observe(registering, bindings)
        self._report(failing_register(self._package, registration))
        self._report(impure_register(registration))
        self._report(slow_import(registration))
        if registration.succeeded:
            self._write(ImportReport(bound=sorted(self._bound)))
            for stub in self._bound.values():
                self._report(type_without_json(stub))
                self._report(lossy_type(stub))
        self._write(ImportReport(done=True))

    def _import(self, name: str) -> ModuleType | None:
        try:
            return importlib.import_module(name)
        except BaseException as error:
            self._report(broken_import(self._package, error, sys.modules.get(self._package)))
            return None

    @contextmanager
    def _observed_bindings(self) -> Iterator[dict[int, list[str]]]:
        """Let `Dispatcher.bind` refuse nothing, and report all that is wrong with a binding.

        Yields:
            The names that were bound to each dispatcher, by its identity.
        """
        original, bindings = Dispatcher.bind, dict[int, list[str]]()

        def bind(dispatcher: Dispatcher, stub: Any, impl: Any) -> None:
            bindings.setdefault(id(dispatcher), []).append(getattr(stub, "__name__", repr(stub)))
            if self._is_own_stub(stub):
                refusal = None
                try:
                    original(dispatcher, stub, impl)
                except StubError as error:
                    refusal = str(error)
                self._report(mismatched_impl(stub, impl, refusal))

        Dispatcher.bind = bind  # type: ignore[assignment,method-assign]
        try:
            yield bindings
        finally:
            Dispatcher.bind = original  # type: ignore[method-assign]

    def _is_own_stub(self, stub: Any) -> bool:
        """Return whether this namespace may bind a stub, which is noted; report why it may not."""
        try:
            contract = stub_of(stub)
        except StubError:
            self._report(type_without_json(stub))
            return False
        if contract.package != self._package:
            self._report(foreign_stub(self._package, stub))
            return False
        self._bound[contract.method] = stub
        return True

    def _report(self, findings: Iterable[Finding]) -> None:
        """Write findings, each once, although `register()` is called twice."""
        new = [finding for finding in findings if finding not in self._reported]
        if new:
            self._reported.update(new)
            self._write(ImportReport(new))

    def _write(self, part: ImportReport) -> None:
        self._output.write(part.to_line())
        self._output.flush()


# What is seen of register()


@dataclass(frozen=True)
class Registration:
    """Two calls of `register()`, and what they did besides returning a result."""

    module: ModuleType
    """The module that has, or lacks, the function."""
    function: Callable[..., Any] | None
    """The function, where there is one."""
    effects: list[str] = field(default_factory=list)
    """What the calls did."""
    error: BaseException | None = None
    """What they raised."""
    result: object = None
    """What the first call returned."""
    seconds: float = 0.0
    """How long the first call took."""
    repeatable: bool = True
    """Whether the second call returned another dispatcher with the same functions."""

    @classmethod
    def observe(cls, module: ModuleType, bindings: dict[int, list[str]]) -> Self:
        """Call `register()` twice, under watch.

        Args:
            module: The module that should have the function.
            bindings: The names that were bound to each dispatcher, kept up to date.
        """
        register = getattr(module, "register", None)
        if not callable(register):
            return cls(module, None)
        monitor, state = SideEffectMonitor(), ProcessState.of(module)
        first: object = None
        second: object = None
        error: BaseException | None = None
        seconds, started = 0.0, perf_counter()
        try:
            with monitor:
                first = register()
                seconds = perf_counter() - started
                second = register()
        except BaseException as raised:
            first, error, seconds = None, raised, 0.0
        effects = [*monitor.effects, *state.changes(module)]
        same = bindings.get(id(first), []) == bindings.get(id(second), [])
        return cls(module, register, effects, error, first, seconds, first is not second and same)

    @property
    def succeeded(self) -> bool:
        """Whether there is a dispatcher."""
        return isinstance(self.result, Dispatcher)


class SideEffectMonitor:
    """Audit events of side effects, recorded for the length of a `with` block."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self._active = False

    def __enter__(self) -> Self:
        sys.addaudithook(self._hear)  # which cannot be taken away again
        self._active = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._active = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        effect = None
        if event == "open":
            path, mode, flags = arguments
            if any(letter in (mode or "") for letter in "wax+") or flags & WRITE_FLAGS:
                effect = f"writes to {path!r}"
        elif event.startswith(SIDE_EFFECTS):
            shown = ", ".join(repr(argument) for argument in arguments[:2])
            effect = f"does {event}({shown})"
        if effect is not None and effect not in self.effects:
            self.effects.append(effect)


@dataclass(frozen=True)
class ProcessState:
    """What a function can change in its own process without an audit event."""

    environment: dict[str, str]
    path: list[str]
    directory: str
    threads: set[int | None]
    globals: dict[str, tuple[int, ...]]
    """The fingerprint of each global of the module."""

    @classmethod
    def of(cls, module: ModuleType) -> Self:
        """Return the state of this process now."""
        return cls(
            environment=dict(os.environ),
            path=list(sys.path),
            directory=str(Path.cwd()),
            threads={thread.ident for thread in threading.enumerate()},
            globals={name: _fingerprint(value) for name, value in list(vars(module).items())},
        )

    def changes(self, module: ModuleType) -> list[str]:
        """Return what is not as it was."""
        now = ProcessState.of(module)
        changes = [
            f"changes the global {name!r}"
            for name, value in now.globals.items()
            # The interpreter has globals of its own there, such as __warningregistry__.
            if not name.startswith("__") and value != self.globals.get(name)
        ]
        if now.environment != self.environment:
            changes.append("changes the environment")
        if now.path != self.path:
            changes.append("changes sys.path")
        if now.directory != self.directory:
            changes.append("changes the working directory")
        if now.threads - self.threads:
            changes.append("starts a thread")
        return changes


def _fingerprint(value: Any) -> tuple[int, ...]:
    """Return what changes with a value, or, for a collection, with what it holds."""
    match value:
        case dict():
            held = [*value.keys(), *value.values()]
        case list() | set():
            held = list(value)
        case _:
            held = []
    return (id(value), *map(id, held))


# The rules


@rule(
    "AGX303",
    "an impl does not match its stub",
    fix=(
        "give the impl the same parameters, and let it be an asynchronous generator exactly where"
        " the stub streams"
    ),
)
def mismatched_impl(
    stub: Callable[..., Any], impl: object, refusal: str | None
) -> Iterator[Breach]:
    """An impl takes what its stub promises: the same parameters in name, kind, order and default.

    Its annotations do not matter. It is an asynchronous generator exactly where the stub returns
    an `AsyncIterator`. `Dispatcher.bind` refuses everything else, and then no function of the
    namespace can be called. Nor can the stub be its own impl, as where `register()` binds `greet`
    to `greet`: each call would raise.
    """
    if impl is stub:
        contract = stub_of(stub)
        reason = f"{contract.package}.{contract.method} is bound to itself, not to an impl"
        yield _at_function(stub, reason)
    if refusal is not None:
        yield _at_function(stub, refusal)


@rule(
    "AGX304",
    "an annotation has no JSON form",
    fix="use types that pydantic can write as JSON and read back",
)
def type_without_json(stub: Callable[..., Any]) -> Iterator[Breach]:
    """Arguments, results and items of streams cross the wire as JSON.

    pydantic writes and reads them by the stub's annotations, and knows most types of the standard
    library, dataclasses, typed dictionaries and its own models. It knows no way for a function, an
    open file or a class of your own that says nothing about itself.
    """
    try:
        contract = stub_of(stub)
    except StubError as error:
        yield _at_function(stub, str(error))
        return
    for place, annotation in _types_of(contract):
        if kinds := kinds_without_json(annotation):
            what = "functions" if "callable" in kinds else "objects that only Python makes"
            yield _at_function(stub, f"{contract.method}: {place} takes {what}")


@rule(
    "AGX305",
    "a value does not survive JSON",
    fix="change the annotation, or say how the value is written and read",
)
def lossy_type(stub: Callable[..., Any]) -> Iterator[Breach]:
    """A value comes back from JSON as it went in, or the impl gets something else than was sent.

    The check makes values at the edges of each annotated type, sends each through JSON as a call
    does, and compares what comes back.
    """
    contract = stub_of(stub)
    for place, annotation in _types_of(contract):
        if not kinds_without_json(annotation) and (lost := _first_lost(annotation)) is not None:
            yield _at_function(stub, f"{contract.method}: {place}: {lost}")


@rule(
    "AGX306",
    "a stub is defined elsewhere",
    fix="define the stub in the package's own `__init__.py`: its module is the routing key",
)
def foreign_stub(package: str, stub: Callable[..., Any]) -> Iterator[Breach]:
    """`client.remote` reads the routing key off the stub: its module.

    A stub that was imported from elsewhere carries the name of another module, and no call of it
    would reach this namespace.
    """
    contract = stub_of(stub)
    reason = f"{contract.package}.{contract.method} is bound in {package}"
    yield _at_function(stub, reason)


@rule("AGX401", "the package cannot be imported", fix="fix what the import raises")
def broken_import(
    package: str, error: BaseException, module: ModuleType | None
) -> Iterator[Breach]:
    """The first call imports the package and its `_register`.

    What that raises is the answer to this call and to each later one. The check imports both in a
    child process, with the Python that runs the check.
    """
    yield _at_raise(package, error, module)


@rule(
    "AGX402",
    "importing the stubs imports the impls",
    fix="import `_impl` and `_register` nowhere in `__init__.py`",
)
def heavy_stubs(package: str, module: ModuleType, loaded: set[str]) -> Iterator[Breach]:
    """Callers import the stubs, in a process that has nothing to do with the sandbox.

    That is a trainer, or a notebook. Importing them brings the standard library, pydantic and
    `agentix`, and neither the impls nor anything heavy that these need.
    """
    own = [name for name in ("_impl", "_register") if f"{package}.{name}" in loaded]
    foreign = {name.partition(".")[0] for name in loaded} - LIGHT_MODULES - sys.stdlib_module_names
    imported = [f"its {name}" for name in own] + ([", ".join(sorted(foreign))] if foreign else [])
    for names in imported:
        yield Breach(str(module.__file__), f"importing {package} imports {names}", 1)


@rule("AGX404", "`register()` fails", fix="let `register()` return a `Dispatcher`")
def failing_register(package: str, registration: Registration) -> Iterator[Breach]:
    """`_register.py` has a function `register` without parameters.

    It returns the `Dispatcher` with all functions of the namespace. What it raises is the answer
    to every call.
    """
    if registration.function is None:
        yield Breach(str(registration.module.__file__), "there is no function register()")
    elif registration.error is not None:
        yield _at_raise(package, registration.error, registration.module)
    elif not registration.succeeded:
        reason = f"register() returned {registration.result!r}, not a Dispatcher"
        yield _at_function(registration.function, reason)


@rule(
    "AGX405",
    "`register()` is not pure",
    fix="let `register()` make a new `Dispatcher` and bind to it, and nothing else",
)
def impure_register(registration: Registration) -> Iterator[Breach]:
    """The runtime calls `register()` at the first call of the namespace, and a test may again.

    It makes a new `Dispatcher`, binds to it, and does nothing else: it writes no file, starts no
    process or thread, opens no connection, and changes neither the environment nor a global. The
    check calls it twice and listens to the interpreter's audit events meanwhile.
    """
    if registration.function is None:
        return
    for effect in registration.effects:
        yield _at_function(registration.function, f"register() {effect}")
    if registration.succeeded and not registration.repeatable:
        reason = "the second call of register() returns another result"
        yield _at_function(registration.function, reason)


@rule(
    "AGX406",
    "importing or `register()` takes too long",
    fix="do the slow work in an impl, at its first call",
)
def slow_import(registration: Registration) -> Iterator[Breach]:
    """The first call of a namespace waits for its import and for `register()`.

    The function may take one second, and importing and checking all of the namespace thirty. Load
    a model, read a large file or ask a server in an impl, at its first call.
    """
    if registration.function is not None and registration.seconds > REGISTER_SECONDS:
        limit = f"{REGISTER_SECONDS:g} s is the most"
        reason = f"register() took {registration.seconds:.1f} s; {limit}"
        yield _at_function(registration.function, reason)


def _at_function(function: Callable[..., Any], message: str) -> Breach:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return Breach("_register.py", message)
    return Breach(code.co_filename, message, code.co_firstlineno)


def _at_raise(package: str, error: BaseException, module: ModuleType | None) -> Breach:
    """Return a breach at the last line of the namespace's own code that an error passed."""
    text = str(error).partition("\n")[0]
    message = f"{type(error).__name__}: {text}".removesuffix(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return Breach(error.filename, message, error.lineno)
    own = f"{os.sep}{package.replace('.', os.sep)}{os.sep}"
    frames = [item for item in traceback.extract_tb(error.__traceback__) if own in item.filename]
    if frames:
        return Breach(frames[-1].filename, message, frames[-1].lineno)
    return Breach(getattr(module, "__file__", None) or "__init__.py", message)


def _first_lost(annotation: Any) -> str | None:
    """Return which value of a type JSON loses, and how, where there is one."""
    try:
        losses = (lost_value(annotation, value) for value in values_of(annotation))
        return next((loss for loss in losses if loss is not None), None)
    except Exception as error:  # comparing and printing a value is code of the namespace
        return f"a value raised {type(error).__name__} when it was compared or shown"


def _types_of(stub: Stub) -> list[tuple[str, Any]]:
    """Return the annotated types of a stub: its parameters', and its result's or items'."""
    types = []
    for name, parameter in stub.signature.parameters.items():
        annotation = parameter.annotation
        if get_origin(annotation) in UNPACK:
            annotation = get_args(annotation)[0]
        types.append((f"the parameter {name!r}", annotation))
    result = stub.signature.return_annotation
    if stub.streams:
        types.append(("an item", next(iter(get_args(result)), Any)))
    else:
        types.append(("the result", result))
    return types


def _end_with_owner(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Ask the namespace that the command line names."""
    directory, package, descriptor = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    threading.Thread(target=_end_with_owner, args=[int(descriptor)], daemon=True).start()
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the namespace prints
    sys.dont_write_bytecode = True
    sys.path.insert(0, directory)
    ImportProbe(package, report).run()
    report.close()
    os._exit(0)  # threads and exit handlers of the namespace are no answer


if __name__ == "__main__":
    main()
