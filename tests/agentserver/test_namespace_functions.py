"""Functions of namespaces as tools, by a real runtime."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from lxml import etree

from agentix.agentserver import Organism, OrganismSpec, RegistrationError
from agentix.agentserver.errors import FunctionFailedError
from agentix.agentserver.functions import Schemas, from_json, to_json
from agentix.agentserver.payload.codec import PayloadCodec
from agentix.local.bundle import make_namespace_bundle
from tests.agentserver.conftest import Start, listener
from tests.agentserver.messages import FAILED, INVALID, envelope, escaped
from tests.docs.exchange import serving

MANIFEST = (
    '{"abi": 1, "name": "n", "version": "1.0.0", "package": "agentix_namespaces.my_namespace"}'
)
STUBS = '''
from collections.abc import AsyncIterator
from dataclasses import dataclass

@dataclass
class RunResult:
    exit_code: int
    patch: str
    data: bytes = b""
    note: str | None = None

def run(instruction: str, workdir: str = "/testbed") -> RunResult:
    """Runs against an instruction."""
    raise NotImplementedError

def count(start: int) -> AsyncIterator[int]:
    """Counts down."""
    raise NotImplementedError

def echo(data: bytes, words: list[str], more: dict[str, float], /, flag: bool = False) -> bytes:
    """Gives what it is given."""
    raise NotImplementedError

def nothing() -> None:
    """Does nothing."""
    raise NotImplementedError

def wait() -> int:
    """Takes its time."""
    raise NotImplementedError

def open_ended(*words: str) -> int:
    """Takes any number."""
    raise NotImplementedError

def long(size: int) -> str:
    """Gives a long text."""
    raise NotImplementedError

def closed() -> int:
    """Nobody may call it."""
    raise NotImplementedError
'''
IMPLS = """
import asyncio
from . import RunResult

def run(instruction: str, workdir: str = "/testbed") -> RunResult:
    if instruction == "fail":
        raise ValueError("the secret is 42")
    return RunResult(3, f"<{instruction}> & {workdir}", b"\\xff\\xfe?")

async def count(start):
    for number in range(start, 0, -1):
        yield number
        if start == 13:
            raise RuntimeError("bad luck, the secret is 13")

def echo(data, words, more, /, flag=False):
    return data + repr((words, more, flag)).encode()

def nothing():
    return None

async def wait():
    await asyncio.sleep(60)

def open_ended(*words):
    return 0

def long(size):
    return "x" * size

def closed():
    return 0
"""
REGISTER = """
from agentix.dispatch import Dispatcher
from . import _impl, closed, count, echo, long, nothing, open_ended, run, wait

def register():
    dispatcher = Dispatcher()
    for stub in (closed, count, echo, long, nothing, open_ended, run, wait):
        dispatcher.bind(stub, getattr(_impl, stub.__name__))
    return dispatcher
"""
ALLOWED = ["run", "count", "echo", "nothing", "wait"]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A runtime with the namespace, which asks for a token; gives its address."""
    root = tmp_path_factory.mktemp("runtime")
    package = root / "source" / "agentix_namespaces" / "my_namespace"
    package.mkdir(parents=True)
    for name, text in (("__init__", STUBS), ("_impl", IMPLS), ("_register", REGISTER)):
        (package / f"{name}.py").write_text(text)
    (root / "source" / "manifest.json").write_text(MANIFEST)
    (root / "mnt").mkdir()
    make_namespace_bundle(root / "source", root / "mnt" / "c1")
    (root / "token").write_text("secret-token")
    with serving(root, {"AGENTIX_TOKEN_FILE": str(root / "token")}) as server:
        yield f"http://{server.address}"


def settings(runtime: str, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    (tmp_path / "token").write_text("secret-token\n")
    allow = [f"my_namespace.{name}" for name in ALLOWED]
    return {"url": runtime, "token_file": "token", "allow": allow, "timeout_seconds": 1} | changes


@pytest.fixture
async def organism(start: Start, runtime: str, tmp_path: Path) -> Organism:
    peers = [f"ns:my_namespace.{name}" for name in ALLOWED]
    caller = listener("caller", peers=peers)
    return await start(caller, runtime=settings(runtime, tmp_path))


async def call(organism: Organism, payload: str) -> str:
    """Let the caller emit a payload, and return the payload of what comes back."""
    doing = f'<caller.dopayload xmlns=""><returns>{escaped(payload)}</returns></caller.dopayload>'
    replies = await organism.call(envelope(doing), "ext", timeout=20)
    return "".join(
        etree.tostring(etree.fromstring(reply)[-1], method="c14n", exclusive=True).decode()
        for reply in replies
    )


async def test_a59_function_is_a_tool_whose_result_is_of_its_schema(organism: Organism) -> None:
    payload = (
        "<ns.my_namespace.run.runargs><instruction>x</instruction></ns.my_namespace.run.runargs>"
    )
    result = await call(organism, payload)
    assert result == (
        "<result><exit_code>3</exit_code><patch>&lt;x&gt; &amp; /testbed</patch>"
        "<data>//4/</data></result>"
    )
    found = organism.describe("ns.my_namespace.run")
    assert found.root_tag == "ns.my_namespace.run.runargs"
    assert found.description == "Runs against an instruction."
    assert "workdir(str)" in found.prompt
    xmlschema.XMLSchema(found.xsd.decode()).validate(found.example)
    schema = {
        "type": "object",
        "title": "RunResult",
        "properties": {
            "exit_code": {"type": "integer"},
            "patch": {"type": "string"},
            "data": {"type": "string", "format": "base64url"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["exit_code", "patch"],
    }
    record, bare = Schemas({}).result(schema)
    assert bare is False
    xmlschema.XMLSchema(PayloadCodec("result", record).xsd.decode()).validate(result)


async def test_a59_what_a_function_raises_is_not_on_the_bus(organism: Organism) -> None:
    payload = (
        "<ns.my_namespace.run.runargs><instruction>fail</instruction></ns.my_namespace.run.runargs>"
    )
    assert f"<error>{FAILED}</error>" in await call(organism, payload)
    last = organism.status()["last_seq"]
    async for event in organism.listen():
        assert b"secret is" not in event.xml
        assert "secret is" not in event.detail
        if event.seq >= last:
            break


async def test_stream_is_items_and_an_end(organism: Organism) -> None:
    root = "ns.my_namespace.count.countargs"
    assert await call(organism, f"<{root}><start>3</start></{root}>") == (
        "<item><value>3</value></item><item><value>2</value></item><item><value>1</value></item>"
        "<end></end>"
    )
    assert await call(organism, f"<{root}><start>0</start></{root}>") == "<end></end>"
    assert FAILED in await call(organism, f"<{root}><start>13</start></{root}>")


async def test_arguments_of_every_kind_arrive(organism: Organism) -> None:
    root = "ns.my_namespace.echo.echoargs"
    fields = (
        "<data>//4/</data><words><item>a b</item><item/></words>"
        "<more><entry><key>k</key><value>1.5</value></entry></more><flag>true</flag>"
    )
    result = await call(organism, f"<{root}>{fields}</{root}>")
    value = etree.fromstring(result).findtext("value")
    record, _ = Schemas({}).result({"type": "string", "format": "base64url"})
    plain = PayloadCodec("result", record).decode(etree.fromstring(result))
    assert value is not None
    assert plain == {"value": b"\xff\xfe?" + repr((["a b", ""], {"k": 1.5}, True)).encode()}


async def test_function_without_a_result_answers(organism: Organism) -> None:
    assert await call(organism, "<ns.my_namespace.nothing.nothingargs/>") == "<result></result>"


@pytest.mark.parametrize("size", [70_000, 600_000])
async def test_result_that_is_too_long_is_a_huh(
    start: Start, runtime: str, tmp_path: Path, size: int
) -> None:
    peers = ["ns:my_namespace.long", "ns:my_namespace.nothing"]
    section = settings(runtime, tmp_path, allow=["my_namespace.long", "my_namespace.nothing"])
    organism = await start(
        listener("caller", peers=peers), runtime=section, limits={"message_bytes": 65_536}
    )
    root = "ns.my_namespace.long.longargs"
    assert FAILED in await call(organism, f"<{root}><size>{size}</size></{root}>")
    assert await call(organism, "<ns.my_namespace.nothing.nothingargs/>") == "<result></result>"


async def test_function_that_takes_too_long_is_a_huh(organism: Organism) -> None:
    async with asyncio.timeout(15):
        assert FAILED in await call(organism, "<ns.my_namespace.wait.waitargs/>")


async def test_wrong_arguments_are_refused_before_a_call(organism: Organism) -> None:
    assert INVALID in await call(organism, "<ns.my_namespace.run.runargs/>")


def test_function_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    caller = listener("caller", peers=["ns:my_namespace.closed"])
    document = {"organism": {"name": "o"}, "packages": ["fixture_handlers"], "listeners": [caller]}
    with pytest.raises(ValueError, match=r"caller: not in runtime\.allow: my_namespace\.closed"):
        OrganismSpec.model_validate(document)


@pytest.mark.parametrize(
    ("function", "changes", "error", "reason"),
    [
        ("my_namespace.missing", {}, RegistrationError, "there are closed, count"),
        ("other.run", {}, RegistrationError, "the runtime has no namespace other"),
        ("my_namespace.open_ended", {}, RegistrationError, "'words' is open-ended"),
        (
            "my_namespace.run",
            {"token_file": None},
            FunctionFailedError,
            r"refuses the token that it is given: set runtime\.token_file",
        ),
        (
            "my_namespace.run",
            {"token_file": "missing"},
            FunctionFailedError,
            r"no token can be read from runtime\.token_file, missing: .*No such file",
        ),
        (
            "my_namespace.run",
            {"token_file": None, "token_variable": "NO_SUCH_TOKEN"},
            FunctionFailedError,
            "NO_SUCH_TOKEN: set it where the organism is started",
        ),
        (
            "my_namespace.run",
            {"url": "http://127.0.0.1:9"},
            FunctionFailedError,
            r"no runtime answers at http://127\.0\.0\.1:9 \(.*\): start it, or set runtime\.url",
        ),
    ],
)
async def test_function_that_can_not_be_had_keeps_the_organism_from_starting(
    start: Start,
    runtime: str,
    tmp_path: Path,
    function: str,
    changes: dict[str, Any],
    error: type[Exception],
    reason: str,
) -> None:
    caller = listener("caller", peers=[f"ns:{function}"])
    section = settings(runtime, tmp_path, allow=[function], **changes)
    with pytest.raises(error, match=reason):
        await start(caller, runtime=section)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        None,
        {"type": "array"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/$defs/loop"},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": "object", "properties": {"not a name": {"type": "integer"}}},
    ],
)
def test_schema_without_an_xml_form_is_refused(schema: object) -> None:
    with pytest.raises(RegistrationError):
        Schemas({"loop": {"$ref": "#/$defs/loop"}}).result(schema)


def test_values_survive_the_way_there_and_back() -> None:
    schemas = Schemas({"Inner": {"type": "object", "title": "Inner", "properties": {}}})
    cases: list[tuple[Any, Any]] = [
        ({"type": "array", "items": {"type": "string", "format": "base64url"}}, ["_-8=", ""]),
        ({"type": "object", "additionalProperties": {"type": "number"}}, {"a": 1.5}),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, None),
        ({"enum": ["a", "b"]}, "b"),
        ({"$ref": "#/$defs/Inner"}, {}),
        ({"type": "string", "format": "date-time"}, "2026-11-21T12:00:00Z"),
    ]
    for schema, value in cases:
        kind = schemas.type(schema)
        assert to_json(kind, from_json(kind, value)) == value
