"""Dispatcher and Registry: from a package and a method to the impl that answers."""

import asyncio
import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from agentix.errors import StubError, UsageError
from agentix.manifest import NamespaceManifest
from agentix.stub import Stub, stub_of
from agentix.threads import in_own_thread

__all__ = ["Binding", "BrokenNamespaceError", "Dispatcher", "MountedPackage", "Registry"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Binding:
    """A stub with the impl that stands behind it."""

    stub: Stub
    """The contract."""
    impl: Callable[..., Any]
    """What is called with the decoded arguments."""
    asynchronous: bool
    """Whether the impl is a coroutine function; a plain function runs in a thread."""


class Dispatcher:
    """The functions of one namespace, filled by its `register()`."""

    def __init__(self) -> None:
        self._bindings: dict[str, Binding] = {}

    def bind(self, stub: Callable[..., Any], impl: Callable[..., Any]) -> None:
        """Puts an impl behind a stub.

        Raises:
            StubError: The stub's name is bound already, an annotation can not be handled, or the
                parameters or the kind of the impl do not match the stub.
        """
        contract = stub_of(stub)
        name = f"{contract.package}.{contract.method}"
        if contract.method in self._bindings:
            raise StubError(f"{name} is bound already")
        _check_parameters(name, contract, impl)
        generator = _is(inspect.isasyncgenfunction, impl)
        if contract.streams and not generator:
            raise StubError(f"{name} streams, so its impl must be an asynchronous generator")
        if generator and not contract.streams:
            raise StubError(f"{name} does not stream, and its impl is an asynchronous generator")
        if _is(inspect.isgeneratorfunction, impl):
            raise StubError(f"{name} has a generator as impl: make it `async def` to stream")
        asynchronous = _is(inspect.iscoroutinefunction, impl)
        self._bindings[contract.method] = Binding(contract, impl, asynchronous)

    def get(self, method: str) -> Binding | None:
        """Gives what is bound to a method's name, or `None`."""
        return self._bindings.get(method)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._bindings.values())

    def __len__(self) -> int:
        return len(self._bindings)


def _is(predicate: Callable[[Any], bool], impl: Callable[..., Any]) -> bool:
    """Asks a question of a function, or of the `__call__` of an object."""
    return predicate(impl) or predicate(getattr(impl, "__call__", None))  # noqa: B004


def _check_parameters(name: str, contract: Stub, impl: Callable[..., Any]) -> None:
    try:
        actual = inspect.signature(impl)
    except (TypeError, ValueError) as error:
        raise StubError(f"{name}: its impl {impl!r} has no signature: {error}") from error
    wanted = _shape(contract.signature)
    found = _shape(actual)
    for parameter in [*wanted, *(extra for extra in found if extra not in wanted)]:
        if parameter not in found:
            raise StubError(f"{name}: its impl lacks the parameter {parameter!r}")
        if parameter not in wanted:
            raise StubError(f"{name}: its impl has a parameter {parameter!r} that the stub lacks")
        if wanted[parameter] != found[parameter]:
            raise StubError(
                f"{name}: the parameter {parameter!r} is `{_described(wanted[parameter])}` in the"
                f" stub and `{_described(found[parameter])}` in its impl"
            )
    if [key for key, kind in wanted.items()] != list(found):
        raise StubError(f"{name}: its impl has the parameters in another order: {list(found)}")


def _shape(signature: Signature) -> Mapping[str, Parameter]:
    """Gives the parameters without their annotations, which the stub alone decides."""
    return {
        name: parameter.replace(annotation=Parameter.empty)
        for name, parameter in signature.parameters.items()
    }


def _described(parameter: Parameter) -> str:
    return f"{parameter.kind.description} {parameter}"


class BrokenNamespaceError(UsageError):
    """A mounted namespace can not be imported; the cause is the error of its own code."""


@dataclass(slots=True)
class MountedPackage:
    """A namespace that was found at boot."""

    manifest: NamespaceManifest
    """What it says of itself."""
    entry: Path
    """Its `entry` directory in the sandbox."""
    dispatcher: Dispatcher | None = None
    """Its functions, once it was imported."""
    error: BaseException | None = None
    """What its import raised, where it failed."""
    loading: asyncio.Task[None] | None = None
    """Its one import, from the first call on."""


class Registry:
    """The namespaces of one sandbox, each imported at its first call."""

    def __init__(self) -> None:
        self._mounted: dict[str, MountedPackage] = {}

    def register(self, manifest: NamespaceManifest, entry: Path) -> None:
        """Takes note of a namespace, without importing it.

        Raises:
            UsageError: A namespace of that package is there already.
        """
        package = manifest.package
        if package in self._mounted:
            first = self._mounted[package].entry
            raise UsageError(f"package {package} is mounted already, at {first}")
        self._mounted[package] = MountedPackage(manifest, entry)

    def get(self, package: str) -> MountedPackage | None:
        """Gives a namespace as it stands, or `None` where it is not mounted."""
        return self._mounted.get(package)

    def __iter__(self) -> Iterator[MountedPackage]:
        return iter(self._mounted.values())

    async def get_or_load(self, package: str) -> Dispatcher:
        """Return the functions of a namespace; the first call imports it, once, in its own thread.

        A caller that is cancelled does not cancel the import, which others may wait for.

        Raises:
            KeyError: No such namespace is mounted.
            BrokenNamespaceError: Its import failed; the cause is what it raised.
        """
        mounted = self._mounted[package]
        if mounted.dispatcher is None:
            if mounted.loading is None:
                mounted.loading = asyncio.create_task(_load(mounted))
            await asyncio.shield(mounted.loading)
        if mounted.dispatcher is None:
            raise BrokenNamespaceError(f"{package} cannot be loaded") from mounted.error
        return mounted.dispatcher


async def _load(mounted: MountedPackage) -> None:
    package = mounted.manifest.package
    work = partial(_import_dispatcher, package)
    outcome = await in_own_thread(f"agentix-import {package}", work)
    if isinstance(outcome, Dispatcher):
        mounted.dispatcher = outcome
        logger.info("loaded namespace %s", package)
    else:
        mounted.error = outcome
        logger.error("namespace %s cannot be loaded: %r", package, outcome)


def _import_dispatcher(package: str) -> Dispatcher | BaseException:
    """Import a namespace; what its code raises, `SystemExit` too, is an outcome."""
    try:
        return _registered(package)
    except BaseException as error:
        return error


def _registered(package: str) -> Dispatcher:
    importlib.import_module(package)
    dispatcher = importlib.import_module(f"{package}._register").register()
    if not isinstance(dispatcher, Dispatcher):
        raise TypeError(f"{package}._register.register() gave {dispatcher!r}, not a Dispatcher")
    for binding in dispatcher:
        if binding.stub.package != package:
            raise StubError(
                f"{binding.stub.package}.{binding.stub.method} is bound in {package}:"
                " a stub must be defined in the package itself"
            )
    return dispatcher
