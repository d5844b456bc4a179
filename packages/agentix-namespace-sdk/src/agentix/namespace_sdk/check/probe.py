"""Imports a namespace and asks it questions, in a process of its own.

    python -m agentix.namespace_sdk.check.probe DIRECTORY PACKAGE DESCRIPTOR

Each answer is one line of JSON on standard output, as soon as it is known, so that the answers
before a crash count; the namespace's own output goes to standard error. A line is a finding, with
`code`, `message`, `file` and `line`, or `{"bound": [...]}`, or in the end `{"done": true}`.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from io import TextIOBase
from time import perf_counter
from types import ModuleType
from typing import Any, get_args, get_origin

from agentix.dispatch import Dispatcher
from agentix.errors import StubError
from agentix.namespace_sdk.check.values import kinds_without_json, lost_value, values_of
from agentix.namespace_sdk.check.watch import State, Watch
from agentix.stub import UNPACK, Stub, stub_of

__all__ = ["main"]

REGISTER_SECONDS = 1.0
"""The longest that `register()` may take, once its module is imported."""

BROUGHT = {"agentix", "agentix_namespaces", "annotated_types", "pydantic", "pydantic_core"}
"""Packages that importing stubs may bring to a caller, beside the standard library."""


@dataclass
class Probe:
    """The questions to one namespace.

    Args:
        package: Its import path.
        output: Where the answers go.
    """

    package: str
    output: TextIOBase
    bound: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """The stubs that `register()` binds, by method."""

    def run(self) -> None:
        """Asks all questions, as far as the namespace lets it."""
        before = set(sys.modules)
        module = self._import(self.package)
        if module is None:
            return
        self._look_at_imports(module, set(sys.modules) - before)
        with Binder(self) as binder:
            registering = self._import(f"{self.package}._register")
            if registering is None:
                return
            registered = self._register(registering, binder)
        if registered:
            self._answer(bound=sorted(self.bound))
            for stub in self.bound.values():
                self._look_at_values(stub)
        self._answer(done=True)

    def _answer(self, **answer: Any) -> None:
        self.output.write(json.dumps(answer) + "\n")
        self.output.flush()

    def _find(self, code: str, message: str, file: str, line: int | None = None) -> None:
        self._answer(code=code, message=message, file=file, line=line)

    def _find_at(self, code: str, message: str, function: Callable[..., Any]) -> None:
        """Finds something at a function."""
        place = inspect.unwrap(function)
        written = getattr(place, "__code__", None)
        file = written.co_filename if written else "_register.py"
        self._find(code, message, file, written.co_firstlineno if written else None)

    def _find_raised(self, code: str, error: BaseException, default: ModuleType | None) -> None:
        """Finds what was raised, at the last line of the namespace's own code."""
        own = f"{os.sep}{self.package.replace('.', os.sep)}{os.sep}"
        frames = [
            item for item in traceback.extract_tb(error.__traceback__) if own in item.filename
        ]
        file = (
            frames[-1].filename if frames else getattr(default, "__file__", None) or "__init__.py"
        )
        line = frames[-1].lineno if frames else None
        if isinstance(error, SyntaxError) and error.filename:
            file, line = error.filename, error.lineno
        text = str(error).partition("\n")[0]
        self._find(code, f"{type(error).__name__}: {text}".removesuffix(": "), file, line)

    def _import(self, name: str) -> ModuleType | None:
        try:
            return importlib.import_module(name)
        except BaseException as error:
            self._find_raised("AGX401", error, sys.modules.get(self.package))
            return None

    def _look_at_imports(self, module: ModuleType, loaded: set[str]) -> None:
        """Looks at what a caller gets who imports the stubs."""
        file = str(module.__file__)
        for name in ("_impl", "_register"):
            if f"{self.package}.{name}" in loaded:
                self._find("AGX402", f"importing {self.package} imports its {name}", file, 1)
        tops = {name.partition(".")[0] for name in loaded}
        foreign = sorted(tops - BROUGHT - sys.stdlib_module_names - {"typing_extensions"})
        if foreign:
            names = ", ".join(foreign)
            self._find("AGX402", f"importing {self.package} imports {names}", file, 1)

    def _register(self, module: ModuleType, binder: "Binder") -> bool:
        """Calls `register()` twice, under watch."""
        register = getattr(module, "register", None)
        if not callable(register):
            self._find("AGX404", "there is no function register()", str(module.__file__))
            return False
        watch, state = Watch(), State.of(module)
        started = perf_counter()
        try:
            with watch:
                first = register()
                seconds = perf_counter() - started
                second = register()
        except BaseException as error:
            self._find_raised("AGX404", error, module)
            return False
        finally:
            for effect in [*watch.effects, *state.changes(module)]:
                self._find_at("AGX405", f"register() {effect}", register)
        if seconds > REGISTER_SECONDS:
            reason = f"register() took {seconds:.1f} s; {REGISTER_SECONDS:g} s is the most"
            self._find_at("AGX406", reason, register)
        if not isinstance(first, Dispatcher):
            self._find_at("AGX404", f"register() gave {first!r}, not a Dispatcher", register)
            return False
        if first is second or list(binder.methods(first)) != list(binder.methods(second)):
            self._find_at("AGX405", "the second call of register() gives another result", register)
        return True

    def _look_at_values(self, function: Callable[..., Any]) -> None:
        """Sends values of each type of a stub through JSON."""
        stub = stub_of(function)
        for place, annotation in _types_of(stub):
            if kinds := kinds_without_json(annotation):
                what = "functions" if "callable" in kinds else "objects that only Python makes"
                self._find_at("AGX304", f"{stub.method}: {place} takes {what}", function)
                continue
            if (lost := _first_lost(annotation)) is not None:
                self._find_at("AGX305", f"{stub.method}: {place}: {lost}", function)


def _first_lost(annotation: Any) -> str | None:
    """Tells which value of a type JSON loses, and how, where there is one."""
    try:
        told = (lost_value(annotation, value) for value in values_of(annotation))
        return next((lost for lost in told if lost is not None), None)
    except Exception as error:  # comparing and printing a value is code of the namespace
        return f"a value raised {type(error).__name__} when it was compared or shown"


def _types_of(stub: Stub) -> list[tuple[str, Any]]:
    """Gives the annotated types of a stub: its parameters', and its result's or items'."""
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


class Binder:
    """Lets `Dispatcher.bind` tell all that is wrong instead of the first thing.

    Args:
        probe: Who is told.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._told: set[str] = set()
        self._bind = Dispatcher.bind
        self._seen: dict[int, list[str]] = {}

    def __enter__(self) -> "Binder":
        def bind(dispatcher: Dispatcher, stub: Any, impl: Any) -> None:
            self._seen.setdefault(id(dispatcher), []).append(getattr(stub, "__name__", repr(stub)))
            try:
                self._checked(dispatcher, stub, impl)
            except StubError as error:
                self._tell("AGX303", str(error), stub)

        Dispatcher.bind = bind  # type: ignore[assignment,method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        Dispatcher.bind = self._bind  # type: ignore[method-assign]

    def methods(self, dispatcher: Any) -> list[str]:
        """Gives what was bound to a dispatcher, in order, also where that was refused."""
        return self._seen.get(id(dispatcher), [])

    def _checked(self, dispatcher: Dispatcher, stub: Any, impl: Any) -> None:
        try:
            contract = stub_of(stub)
        except StubError as error:
            self._tell("AGX304", str(error), stub)
            return
        if contract.package != self._probe.package:
            reason = f"{contract.package}.{contract.method} is bound in {self._probe.package}"
            self._tell("AGX306", reason, stub)
            return
        self._probe.bound[contract.method] = stub
        if impl is stub:
            reason = f"{contract.package}.{contract.method} is bound to itself, not to an impl"
            self._tell("AGX303", reason, stub)
        self._bind(dispatcher, stub, impl)

    def _tell(self, code: str, message: str, stub: Any) -> None:
        if message not in self._told:
            self._told.add(message)
            self._probe._find_at(code, message, stub)


def _end_with_owner(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Asks the namespace that the command line names."""
    directory, package, descriptor = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    threading.Thread(target=_end_with_owner, args=[int(descriptor)], daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the namespace prints
    sys.dont_write_bytecode = True
    sys.path.insert(0, directory)
    Probe(package, answers).run()
    answers.close()
    os._exit(0)  # threads and exit handlers of the namespace are no answer


if __name__ == "__main__":
    main()
