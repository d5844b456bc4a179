"""Random arguments for all 46 functions: a program cannot bring the host down."""

import pytest
import wasmtime
from hypothesis import given, settings
from hypothesis import strategies as st

from agentix.oanix import DeviceFs, Machine, MemFs, Namespace, RunConfig
from agentix.oanix.wasi.abi import MODULE, SIGNATURES
from tests.oanix.oracle import OracleMachine

TYPES = {"i": "i32", "I": "i64"}
NARROW = st.one_of(
    st.integers(0, 8),
    st.integers(0, 70_000),
    st.sampled_from([0xFFFF, 0x10000, 0x10001, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]),
)
WIDE = st.one_of(NARROW, st.sampled_from([1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]))
ENDING = "proc_exit", "proc_raise"
CALLS = sorted(set(SIGNATURES) - set(ENDING))
CONFIG = RunConfig(deterministic=True, timeout=20.0, stdin=b"input", keep_output=1000)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[int]]:
    name = draw(st.sampled_from(CALLS))
    return name, [draw(NARROW if kind == "i" else WIDE) for kind in SIGNATURES[name]]


def program(made: list[tuple[str, list[int]]], memory: bytes) -> bytes:
    """Make a module that fills its memory and then makes the calls."""
    names = sorted({name for name, _ in made})
    parts = []
    for name in names:
        kinds = " ".join(TYPES[kind] for kind in SIGNATURES[name])
        result = "" if name == "proc_exit" else "(result i32)"
        parts.append(f'(import "{MODULE}" "{name}" (func ${name} (param {kinds}) {result}))')
    text = "".join(f"\\{byte:02x}" for byte in memory)
    body = []
    for name, numbers in made:
        typed = zip(SIGNATURES[name], numbers, strict=True)
        constants = " ".join(f"({TYPES[kind]}.const {number})" for kind, number in typed)
        call = f"(call ${name} {constants})"
        body.append(call if name == "proc_exit" else f"(drop {call})")
    return bytes(
        wasmtime.wat2wasm(
            f'(module {" ".join(parts)} (memory (export "memory") 1)'
            f' (data (i32.const 0) "{text}") (func (export "_start") {" ".join(body)}))'
        )
    )


@pytest.fixture(scope="module", params=[Machine, OracleMachine])
def fuzzed(request: pytest.FixtureRequest) -> Machine:
    machine: Machine = request.param()
    return machine


@settings(max_examples=150, deadline=None)
@given(made=st.lists(calls(), min_size=1, max_size=20), memory=st.binary(max_size=64))
def test_a20_no_argument_crashes_the_host(
    fuzzed: Machine, made: list[tuple[str, list[int]]], memory: bytes
) -> None:
    files = MemFs({"a": b"content", "d/b": b""}, max_bytes=1 << 20)
    namespace = Namespace.builder().mount("/", files).mount("/dev", DeviceFs()).build()
    result = fuzzed.run(program(made, b"a\0d/b\0" + memory), namespace, CONFIG)
    assert result.host_calls == len(made)
    assert (result.exit_code, result.message) == (0, "")


@pytest.mark.parametrize("name", CALLS)
def test_a20_pointers_outside_memory_are_faults_or_unused(fuzzed: Machine, name: str) -> None:
    numbers = [0xFFFF_FFF0] * len(SIGNATURES[name])
    numbers[:1] = [3] if name.startswith(("fd_", "path_")) else numbers[:1]
    namespace = Namespace.builder().mount("/", MemFs()).build()
    assert fuzzed.run(program([(name, numbers)], b""), namespace, CONFIG).exit_code == 0


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(ENDING), number=NARROW, made=st.lists(calls(), max_size=3))
def test_a20_any_number_ends_a_run_with_a_byte(
    fuzzed: Machine, name: str, number: int, made: list[tuple[str, list[int]]]
) -> None:
    namespace = Namespace.builder().mount("/", MemFs()).build()
    result = fuzzed.run(program([*made, (name, [number]), *made], b""), namespace, CONFIG)
    code = number & 0xFF if name == "proc_exit" else 128 + (number & 127)
    assert (result.exit_code, result.message) == (code, "")
    assert result.host_calls == len(made) + 1


def test_a20_every_function_is_fuzzed() -> None:
    assert len({*CALLS, *ENDING}) == len(SIGNATURES) == 46
