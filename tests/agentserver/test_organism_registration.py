"""Registration: what organism.yaml may say, and that a listener is registered whole or not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentix.agentserver import ListenerSpec, Organism, RegistrationError, SpecError
from agentix.agentserver.spec import load_spec, parse_spec
from tests.agentserver.conftest import FIXTURE, Start, document, listener, organism_of
from tests.agentserver.messages import add, egress, envelope
from tests.agentserver.test_pump_emissions import tell

ADD = {
    "payload_class": "contract_handlers.AddPayload",
    "handler": "contract_handlers.add_handler",
    "description": "Adds.",
}
INF, NAN = yaml.safe_load("[.inf, .nan]")
FINITE = "a number is needed here that is neither infinite nor .nan"


def spec_of(name: str, **changes: Any) -> ListenerSpec:
    return ListenerSpec(**(ADD | {"name": name} | changes))


async def test_a03_a_root_tag_is_taken_once(start: Start) -> None:
    organism = await start(listeners=[ADD | {"name": "Calculator.ADD"}])
    assert organism.describe("Calculator.ADD").root_tag == "calculator.add.addpayload"
    with pytest.raises(RegistrationError, match=r"'calculator\.add\.addpayload' is taken"):
        await organism.register(spec_of("calculator.add"))
    assert await organism.call(envelope(add(7, 35)), "ext") == [
        egress("Calculator.ADD", '<result xmlns="">42</result>')
    ]
    assert [each.name for each in organism.catalog()] == ["Calculator.ADD"]


@pytest.mark.parametrize("description", [None, "", "   "])
def test_a04_a_listener_needs_a_description(tmp_path: Path, description: str | None) -> None:
    given = document()
    given["listeners"][0]["description"] = description
    if description is None:
        del given["listeners"][0]["description"]
    (tmp_path / "organism.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(SpecError, match=r"listeners\.0\.description"):
        Organism.from_yaml(tmp_path / "organism.yaml")
    assert not (tmp_path / "schemas").exists()


@pytest.mark.parametrize("isolation", ["inprocess", "thread"])
async def test_a05_a_synchronous_handler_is_refused(start: Start, isolation: str) -> None:
    with pytest.raises(RegistrationError, match=r"tool: .*fixture_handlers\.synchronous"):
        await start(listener("tool", handler="fixture_handlers.synchronous"), isolation=isolation)


@pytest.mark.parametrize("isolation", ["inprocess", "thread"])
async def test_a06_an_import_error_names_the_path(
    start: Start, tmp_path: Path, isolation: str
) -> None:
    broken = listener("tool", handler="fixture_handlers.nothing")
    with pytest.raises(RegistrationError, match=r"tool: .*fixture_handlers\.nothing"):
        await start(broken, isolation=isolation)
    assert not (tmp_path / "schemas").exists()


async def test_a07_the_schema_is_written_and_stays_the_same(start: Start, tmp_path: Path) -> None:
    organism = await start()
    file = tmp_path / "schemas" / "calculator.add" / "v1.xsd"
    assert file.read_bytes() == organism.describe("calculator.add").xsd
    written = file.stat().st_mtime_ns
    await start(journal=None)
    assert file.stat().st_mtime_ns == written


async def test_a_listener_is_added_and_removed_while_others_run(start: Start) -> None:
    organism = await start()
    capability = await organism.register(ListenerSpec(**listener("tool", peers=["calculator.add"])))
    assert capability.root_tag == "tool.dopayload"
    (reply,) = await organism.call(tell("tool", "<a/>"), "ext")
    assert reply == egress("tool", '<a xmlns=""></a>')
    await organism.unregister("tool")
    (reply,) = await organism.call(tell("tool", "<a/>"), "ext")
    assert b"Invalid payload structure" in reply
    with pytest.raises(KeyError):
        await organism.unregister("tool")


async def test_a_name_is_given_once(start: Start) -> None:
    organism = await start()
    with pytest.raises(RegistrationError, match=r"'researcher' is registered already"):
        await organism.register(spec_of("researcher"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unknown": 1}, "unknown: there is no such key"),
        (
            {"organism": {"name": "x", "nmae": "y"}},
            "nmae: there is no such key; is 'name' meant?",
        ),
        ({"organism": {"name": "core"}}, "reserved"),
        ({"organism": {"name": "x", "identity": "../key"}}, "leaves the directory"),
        ({"schemas": "a/../../b"}, "leaves the directory"),
        ({"oob": {"unix_socket": "../oob.sock"}}, "leaves the directory"),
        ({"workers": {"readable": ["../data"]}}, "leaves the directory"),
        (
            {"gateways": [{"name": "g", "description": "G.", "trusted_identity": "../g.pub"}]},
            "leaves the directory",
        ),
        (
            {"listeners": [ADD | {"name": "a", "peers": ["nobody"]}]},
            "a: no such peer: nobody (there are a)",
        ),
        ({"packages": "contract_handlers"}, "packages: a list is needed here, such as [one, two]"),
        ({"organism": {"name": True}}, "organism.name: a text is needed here; put quotes"),
        ({"organism": "x"}, "organism: keys with values are needed here"),
        ({"listeners": [ADD | {"name": "a"}] * 2}, "names are given twice: a"),
        ({"listeners": [ADD | {"name": "dummy.a"}]}, "reserved"),
        ({"listeners": [ADD | {"name": "1a"}]}, "no listener name"),
        ({"listeners": [ADD | {"name": "a", "handler": "os.system"}]}, "os.system is in none of"),
        ({"listeners": [ADD | {"name": "a", "handler": "nowhere"}]}, "no import path"),
        ({"listeners": [ADD | {"name": "a", "payload_class": "..x.Y"}]}, "no import path"),
        ({"listeners": [ADD | {"name": "a", "peers": ["ns:x"]}]}, "no function"),
        ({"isolation": "none"}, "isolation"),
        ({"oob": {"bind": "0.0.0.0"}}, "oob.bind"),
        ({"limits": {"handler_seconds": 0}}, "limits.handler_seconds"),
        ({"limits": {"handler_seconds": INF}}, f"limits.handler_seconds: {FINITE}"),
        ({"limits": {"handler_seconds": NAN}}, f"limits.handler_seconds: {FINITE}"),
        ({"limits": {"iterations": INF}}, f"limits.iterations: {FINITE}"),
        ({"workers": {"idle_seconds": INF}}, f"workers.idle_seconds: {FINITE}"),
        ({"runtime": {"timeout_seconds": NAN}}, f"runtime.timeout_seconds: {FINITE}"),
        (
            {"organism": {"name": "x", "authentication_seconds": INF}},
            f"organism.authentication_seconds: {FINITE}",
        ),
        (
            {"listeners": [ADD | {"name": "a", "handler_seconds": NAN}]},
            f"listeners.0.handler_seconds: {FINITE}",
        ),
        (
            {"llm": [{"base_url": "http://x", "model": "m", "temperature": INF}]},
            f"llm.0.temperature: {FINITE}",
        ),
        ({"meta": {"allow_schema_requests": "everybody"}}, "meta.allow_schema_requests"),
    ],
)
def test_what_can_not_be_an_organism_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_spec(document(**changes))
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    "text", ["a: [", "- 1", "!!python/object/apply:os.getcwd []", "", "organism: {name: x"]
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "organism.yaml").write_text(text)
    with pytest.raises(SpecError, match=r"organism\.yaml: "):
        load_spec(tmp_path / "organism.yaml")


def test_a_key_of_a_mapping_is_given_once(tmp_path: Path) -> None:
    text = (FIXTURE / "organism.yaml").read_text()
    (tmp_path / "organism.yaml").write_text(text + "isolation: thread\nisolation: inprocess\n")
    with pytest.raises(SpecError, match=r"the key 'isolation' is given twice(?s:.*)line \d+"):
        load_spec(tmp_path / "organism.yaml")
    (tmp_path / "organism.yaml").write_text(text + "limits: &a {depth: 2}\nworkers: {<<: *a}\n")
    with pytest.raises(SpecError, match=r"workers\.depth: there is no such key"):
        load_spec(tmp_path / "organism.yaml")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no\.yaml: cannot be read"):
        Organism.from_yaml(tmp_path / "no.yaml")


def test_the_fixture_is_an_organism() -> None:
    assert Organism.from_yaml(FIXTURE / "organism.yaml").spec.organism.name == "fixture"


async def test_inprocess_is_told_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with organism_of(tmp_path, isolation="inprocess"):
        pass
    assert "isolation: inprocess" in caplog.text


async def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    organism = organism_of(tmp_path, [listener("tool", handler="fixture_handlers.nothing")])
    with pytest.raises(RegistrationError):
        await organism.__aenter__()
    async with organism_of(tmp_path) as again:
        assert len(again.catalog()) == 3
