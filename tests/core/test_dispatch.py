"""Dispatcher and Registry: what may stand behind a stub, and when it is imported."""

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentix.dispatch import BrokenNamespaceError, Dispatcher, Registry
from agentix.errors import StubError, UsageError
from agentix.manifest import NamespaceManifest


def add(a: int, b: int = 1) -> int:
    raise NotImplementedError


def count(to: int) -> AsyncIterator[int]:
    raise NotImplementedError


def add_impl(a: int, b: int = 1) -> int:
    return a + b


async def add_later(a: int, b: int = 1) -> int:
    return a + b


async def count_impl(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


class Adder:
    def __call__(self, a: int, b: int = 1) -> int:
        return a + b


def scaled(factor: int, a: int, b: int = 1) -> int:
    return factor * (a + b)


@pytest.mark.parametrize(
    ("impl", "asynchronous"),
    [
        (add_impl, False),
        (add_later, True),
        (Adder(), False),
        (functools.partial(scaled, 2), False),
        (lambda a, b=1: a + b, False),
    ],
    ids=["function", "coroutine", "object", "partial", "lambda"],
)
def test_impl_of_the_same_shape_is_bound(impl: Callable[..., Any], asynchronous: bool) -> None:
    dispatcher = Dispatcher()
    dispatcher.bind(add, impl)
    binding = dispatcher.get("add")
    assert binding is not None
    assert (binding.impl, binding.asynchronous) == (impl, asynchronous)
    assert [found.stub.method for found in dispatcher] == ["add"]
    assert dispatcher.get("other") is None


def no_default(a: int, b: int) -> int:
    return a + b


def other_default(a: int, b: int = 2) -> int:
    return a + b


def keyword_only(a: int, *, b: int = 1) -> int:
    return a + b


def reordered(b: int = 1, a: int = 0) -> int:
    return a + b


def lacking(a: int) -> int:
    return a


def with_more(a: int, b: int = 1, c: int = 2) -> int:
    return a + b + c


def generator(a: int, b: int = 1) -> Iterator[int]:
    yield a + b


NAME = f"{__name__}.add"


@pytest.mark.parametrize(
    ("impl", "reason"),
    [
        (lacking, f"{NAME}: its impl lacks the parameter 'b'"),
        (with_more, f"{NAME}: its impl has a parameter 'c' that the stub lacks"),
        (count_impl, f"{NAME}: its impl lacks the parameter 'a'"),
        (5, f"{NAME}: its impl 5 has no signature: 5 is not a callable object"),
        (
            generator,
            f"{NAME} has a generator as impl: make it `async def` to stream",
        ),
    ],
    ids=["lacking", "more", "another", "number", "generator"],
)
def test_impl_of_another_shape_is_refused_by_name(impl: Any, reason: str) -> None:
    with pytest.raises(StubError) as caught:
        Dispatcher().bind(add, impl)
    assert str(caught.value) == reason


@pytest.mark.parametrize("impl", [no_default, other_default, keyword_only, reordered])
def test_parameter_of_another_kind_or_default_is_named(impl: Callable[..., Any]) -> None:
    with pytest.raises(
        StubError, match=rf"^{NAME}: the parameter '[ab]' is `.*` in the stub and `"
    ):
        Dispatcher().bind(add, impl)


def test_stream_needs_an_asynchronous_generator() -> None:
    def impl(to: int) -> list[int]:
        return [to]

    with pytest.raises(StubError, match="streams, so its impl must be an asynchronous generator"):
        Dispatcher().bind(count, impl)


def test_asynchronous_generator_needs_a_stream() -> None:
    async def impl(a: int, b: int = 1) -> AsyncIterator[int]:
        yield a + b

    with pytest.raises(StubError, match="does not stream, and its impl is an asynchronous"):
        Dispatcher().bind(add, impl)


def test_name_is_bound_once() -> None:
    dispatcher = Dispatcher()
    dispatcher.bind(add, add_impl)
    with pytest.raises(StubError, match=rf"^{NAME} is bound already$"):
        dispatcher.bind(add, add_later)
    binding = dispatcher.get("add")
    assert binding is not None
    assert binding.impl is add_impl


STUB = "def f() -> int: raise NotImplementedError\n"
REGISTER = """
from agentix.dispatch import Dispatcher
from . import f
def register():
    dispatcher = Dispatcher()
    dispatcher.bind(f, lambda: 1)
    return dispatcher
"""


class Mounts:
    """Makes packages of namespaces that can be imported while a test runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = Registry()

    def add(self, name: str, stub: str = STUB, register: str = REGISTER) -> str:
        package = f"agentix_namespaces.{name}"
        directory = self.root / "agentix_namespaces" / name
        directory.mkdir(parents=True)
        (directory / "__init__.py").write_text(stub)
        (directory / "_register.py").write_text(register)
        manifest = NamespaceManifest(abi=1, name=name, version="1.0.0", package=package)
        self.registry.register(manifest, self.root)
        return package


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Mounts(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("agentix_namespaces."):
            del sys.modules[name]


async def test_nothing_is_imported_before_the_first_call(mounts: Mounts) -> None:
    package = mounts.add("lazy_one")
    assert package not in sys.modules
    dispatcher = await mounts.registry.get_or_load(package)
    assert package in sys.modules
    assert len(dispatcher) == 1


async def test_first_calls_at_once_import_once(mounts: Mounts) -> None:
    log = mounts.root / "log"
    slow = f"with open({str(log)!r}, 'a') as log: log.write('imported;')\n"
    package = mounts.add("counted_one", slow + STUB)
    calls = [asyncio.create_task(mounts.registry.get_or_load(package)) for _ in range(20)]
    await asyncio.sleep(0)
    calls[0].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert len({id(outcome) for outcome in outcomes[1:]}) == 1
    assert isinstance(outcomes[1], Dispatcher)
    assert log.read_text() == "imported;"


@pytest.mark.parametrize(
    ("stub", "register", "cause"),
    [
        ("import nothing_of_this_name", REGISTER, ModuleNotFoundError),
        ("raise SystemExit(3)", REGISTER, SystemExit),
        (STUB, "def register(): raise ValueError('no')", ValueError),
        (STUB, "def register(): return 5", TypeError),
        ("from json import loads as f", REGISTER, StubError),
    ],
    ids=["import", "exit", "raise", "rubbish", "foreign"],
)
async def test_broken_namespace_tells_its_own_error_each_time(
    mounts: Mounts, stub: str, register: str, cause: type[BaseException]
) -> None:
    package = mounts.add("broken_one", stub, register)
    sound = mounts.add("sound_one")
    for _ in range(2):
        with pytest.raises(BrokenNamespaceError, match=f"^{package} cannot be loaded$") as caught:
            await mounts.registry.get_or_load(package)
        assert type(caught.value.__cause__) is cause
    assert len(await mounts.registry.get_or_load(sound)) == 1


async def test_unknown_package_is_a_key_error(mounts: Mounts) -> None:
    with pytest.raises(KeyError):
        await mounts.registry.get_or_load("agentix_namespaces.nowhere")


def test_package_is_mounted_once(mounts: Mounts) -> None:
    package = mounts.add("twice")
    mounted = mounts.registry.get(package)
    assert mounted is not None
    with pytest.raises(UsageError, match=f"{package} is mounted already, at {mounts.root}"):
        mounts.registry.register(mounted.manifest, Path("/elsewhere"))
    assert [found.entry for found in mounts.registry] == [mounts.root]
