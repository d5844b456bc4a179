"""Calls from outside: what comes back, byte for byte."""

from agentix.agentserver import Organism
from tests.agentserver.messages import INVALID, add, egress, envelope, huh


async def test_a01_a_call_comes_back_as_one_canonical_message(organism: Organism) -> None:
    replies = await organism.call(envelope(add(7, 35)), "ext")
    assert replies == [egress("calculator.add", '<result xmlns="">42</result>')]


async def test_a29_an_unknown_root_is_answered_as_an_invalid_payload(organism: Organism) -> None:
    for payload in ('<nosuch.tool.payload xmlns=""/>', add("x", 1), '<result xmlns="">1</result>'):
        message = envelope(payload)
        replies = await organism.call(message, "ext")
        assert replies == [egress("core", huh(INVALID, message))]
