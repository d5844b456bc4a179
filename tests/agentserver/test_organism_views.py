"""What an organism tells of itself: graph, status, listeners, and what runs in its pump."""

import json
from pathlib import Path

import pytest

from agentix.agentserver import InProcessListener, Organism, RegistrationError, Request
from agentix.agentserver.spec import GatewaySpec
from tests.agentserver.conftest import Start, events, listener, organism_of, security
from tests.agentserver.messages import FAILED, INVALID, T, egress, envelope, huh
from tests.agentserver.test_pump_broadcast import member
from tests.agentserver.test_pump_emissions import tell


async def organism_with_a_group(start: Start) -> Organism:
    return await start(member("google"), member("bing"), listener("boss", peers=["search"]))


async def test_the_graph_is_drawn_as_mermaid(start: Start) -> None:
    organism = await organism_with_a_group(start)
    assert organism.graph() == (
        "graph LR\n"
        '    n0["calculator.add"]\n'
        '    n1["calculator.secret"]\n'
        '    n2(["researcher"])\n'
        '    n3["search.google"]\n'
        '    n4["search.bing"]\n'
        '    n5["boss"]\n'
        '    n6{{"search"}}\n'
        "    n2 --> n0\n"
        "    n5 --> n6\n"
        "    n6 -.- n3\n"
        "    n6 -.- n4\n"
    )


async def test_the_graph_is_drawn_for_graphviz(start: Start) -> None:
    organism = await start()
    assert organism.graph("graphviz") == (
        'digraph "fixture" {\n'
        "    rankdir=LR;\n"
        '    "calculator.add" [shape=box];\n'
        '    "calculator.secret" [shape=box];\n'
        '    "researcher" [shape=oval];\n'
        '    "researcher" -> "calculator.add";\n'
        "}\n"
    )


async def test_a_team_is_what_a_listener_reaches(start: Start) -> None:
    organism = await organism_with_a_group(start)
    drawn = json.loads(organism.graph("json", team="boss"))
    assert [node["name"] for node in drawn["nodes"]] == [
        "search.google",
        "search.bing",
        "boss",
        "search",
    ]
    assert drawn["edges"] == [["boss", "search"]]
    assert drawn["members"] == [["search", "search.google"], ["search", "search.bing"]]
    with pytest.raises(ValueError, match="'ascii' is no format"):
        organism.graph("ascii")


async def test_the_status_says_what_there_is(start: Start) -> None:
    organism = await start()
    status = organism.status()
    assert (status["name"], status["running"], status["listeners"]) == ("fixture", True, 3)
    assert (status["threads"], status["handlers_running"]) == (1, 0)
    assert status["isolation"][0] == "isolation: inprocess"
    json.dumps(status)


async def test_a_listener_is_described(start: Start) -> None:
    organism = await start()
    described = organism.describe("calculator.add")
    assert described.root_tag == "calculator.add.addpayload"
    assert described.example in described.prompt
    assert "a(int) - the first number" in described.prompt
    assert [peer.name for peer in organism.peers("researcher")] == ["calculator.add"]
    for ask in (organism.describe, organism.peers):
        with pytest.raises(KeyError, match=r"no\.such"):
            ask("no.such")


async def test_a_gateway_records_what_it_saw(start: Start) -> None:
    organism = await start()
    organism.security("stranger", "three wrong codes")
    (event,) = await security(organism)
    assert (event.sender, event.detail) == ("stranger", "three wrong codes")


REQUESTS: list[Request] = []


async def trusted(request: Request) -> bytes:
    """Keep what it was asked, and book tokens for it."""
    REQUESTS.append(request)
    request.record_tokens(7)
    return b"<answer/>" if b"fail" not in request.xml else b"".join([None])  # type: ignore[list-item]


async def test_what_runs_in_the_pump_is_told_who_calls(start: Start) -> None:
    organism = await start(listener("boss", peers=["remote"]), gateways=[
        {"name": "remote", "remote_url": None, "trusted_identity": "x", "description": "Far."}
    ])  # fmt: skip
    REQUESTS.clear()
    gateway = GatewaySpec(name="remote", trusted_identity="x", description="Far.")
    organism.add_gateway(gateway, InProcessListener("remote", "Far.", trusted))
    payload = "<remote.some.tool><x>1</x></remote.some.tool>"
    assert await organism.call(tell("boss", payload), "ext") == [
        egress("remote", '<answer xmlns=""></answer>')
    ]
    paths = {thread.path: thread.id for thread in organism.threads()}
    (request,) = REQUESTS
    assert (request.caller, request.caller_thread) == ("boss", paths["ext", "boss"])
    assert request.thread_id == paths["ext", "boss", "remote"]
    assert request.xml == payload.encode()
    (used,) = await events(organism, "token_usage")
    assert (used.thread, used.detail) == (paths["ext", "boss"], "7 tokens, 7 in all")
    assert '[["remote"]]' in organism.graph()

    failing = "<remote.fail></remote.fail>"
    assert await organism.call(tell("boss", failing), "ext") == [
        egress("core", huh(FAILED, failing.encode()))
    ]
    organism.remove_in_process("remote")
    assert await organism.call(tell("boss", payload), "ext") == [
        egress("core", huh(INVALID, payload.encode()))
    ]


async def test_what_runs_in_the_pump_has_a_name_of_its_own(start: Start) -> None:
    organism = await start()
    with pytest.raises(RegistrationError, match=r"'calculator\.add' is registered already"):
        organism.add_in_process(InProcessListener("calculator.add", "Twice.", trusted))


async def test_a_sender_from_outside_calls_what_runs_in_the_pump(start: Start) -> None:
    organism = await start()
    organism.add_in_process(InProcessListener("remote", "Far.", trusted))
    REQUESTS.clear()
    (reply,) = await organism.call(envelope('<remote.x xmlns=""/>'), "ext")
    assert reply == egress("remote", '<answer xmlns=""></answer>')
    assert (REQUESTS[0].caller, REQUESTS[0].caller_thread) == ("ext", T)


async def test_tokens_stay_used_after_a_restart(tmp_path: Path) -> None:
    tool = listener("tool", tokens=10)
    async with organism_of(tmp_path, [tool], isolation="inprocess") as organism:
        await organism.call(tell("tool", "<a/>"), "ext")
        (own,) = [thread.id for thread in organism.threads() if thread.path == ("ext", "tool")]
        organism.record_tokens(own, 10)
    async with organism_of(tmp_path, [tool], isolation="inprocess") as organism:
        assert organism.tokens_left(own) == 0
        (reply,) = await organism.call(tell("tool", "<a/>"), "ext")
        assert b"<error>Limit exceeded</error>" in reply


async def test_a_handler_whose_every_element_is_dropped_has_failed(start: Start) -> None:
    organism = await start(listener("tool"))
    privileged = '<privileged-msg xmlns="https://xml-pipeline.org/privileged-msg"/>'
    (reply,) = await organism.call(tell("tool", privileged), "ext")
    assert b"<error>Handler failed to return valid bytes" in reply
    assert len(await security(organism)) == 1
