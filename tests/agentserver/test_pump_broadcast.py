"""Broadcast groups: several listeners behind one root tag."""

from typing import Any

import pytest

from agentix.agentserver import Organism, RegistrationError, SpecError
from agentix.agentserver.spec import parse_spec
from tests.agentserver.conftest import Start, document, listener
from tests.agentserver.messages import INVALID, egress, envelope, huh
from tests.agentserver.test_pump_emissions import tell


def member(name: str, **changes: Any) -> dict[str, Any]:
    """Return a member of the group `search`."""
    return listener(
        f"search.{name}",
        payload_class="fixture_handlers.SearchPayload",
        handler=f"fixture_handlers.{name}",
        broadcast=True,
        **changes,
    )


async def searching(start: Start) -> Organism:
    """Return an organism with a group of a slow and a fast member, and one that may call it."""
    return await start(member("google"), member("bing"), listener("boss", peers=["search"]))


SEARCH = "<search.searchpayload><query>x</query></search.searchpayload>"


async def test_a50_each_member_answers_the_caller_when_it_is_done(start: Start) -> None:
    organism = await searching(start)
    expected = [
        egress(f"search.{name}", f'<result xmlns="">{name}: x</result>')
        for name in ("bing", "google")
    ]
    message = envelope(SEARCH.replace("payload>", 'payload xmlns="">', 1))
    assert await organism.call(message, "ext") == expected
    assert await organism.call(tell("boss", SEARCH), "ext") == expected


async def test_a_member_is_called_alone_by_its_own_root(start: Start) -> None:
    organism = await searching(start)
    own = "<search.bing.searchpayload xmlns=''><query>y</query></search.bing.searchpayload>"
    assert await organism.call(envelope(own), "ext") == [
        egress("search.bing", '<result xmlns="">bing: y</result>')
    ]


async def test_a_peer_that_is_a_group_is_not_its_members(start: Start) -> None:
    organism = await searching(start)
    own = "<search.bing.searchpayload><query>y</query></search.bing.searchpayload>"
    assert await organism.call(tell("boss", own), "ext") == [
        egress("core", huh(INVALID, own.encode()))
    ]


async def test_an_invalid_search_is_refused_once(start: Start) -> None:
    organism = await searching(start)
    wrong = SEARCH.replace("query", "question")
    assert await organism.call(tell("boss", wrong), "ext") == [
        egress("core", huh(INVALID, wrong.encode()))
    ]


async def test_a51_members_take_one_class(start: Start) -> None:
    with pytest.raises(RegistrationError, match=r"search\.bing: the group 'search' takes"):
        await start(member("google"), member("bing") | {
            "payload_class": "fixture_handlers.DoPayload", "handler": "fixture_handlers.do"
        })  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"agent": True}, "an agent has a root tag of its own"),
        ({"name": "search"}, "a broadcast listener is named group.member"),
    ],
)
def test_a51_an_agent_is_no_member(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parse_spec(document(listeners=[member("google") | changes]))


async def test_a_group_that_lost_a_member_goes_on(start: Start) -> None:
    organism = await searching(start)
    await organism.unregister("search.google")
    replies = await organism.call(tell("boss", SEARCH), "ext")
    assert replies == [egress("search.bing", '<result xmlns="">bing: x</result>')]
    await organism.unregister("search.bing")
    replies = await organism.call(tell("boss", SEARCH), "ext")
    assert replies == [egress("core", huh(INVALID, SEARCH.encode()))]
