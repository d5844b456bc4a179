"""The contract's own handlers, unmodified."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.agentserver.conftest import Start, document, until
from tests.agentserver.messages import add, egress, envelope


def contract() -> list[dict[str, Any]]:
    """Return the fixture's listeners, the researcher with the contract's handler."""
    listeners = document()["listeners"]
    listeners[2]["handler"] = "contract_handlers.research_handler"
    return [*listeners]


@pytest.mark.parametrize("isolation", ["inprocess", "thread"])
async def test_a60_the_contracts_handlers_run_as_they_are(start: Start, isolation: str) -> None:
    organism = await start(isolation=isolation, listeners=contract(), limits={"iterations": 2})
    assert await organism.call(envelope(add(7, 35)), "ext") == [
        egress("calculator.add", '<result xmlns="">42</result>')
    ]
    ask = envelope(
        '<researcher.researchpayload xmlns=""><topic>x</topic></researcher.researchpayload>'
    )
    async with asyncio.timeout(30), aclosing(organism.listen(after_seq=None)) as listening:
        receipt = await organism.post(ask, "ext")
        seen = [event async for event in until(listening, "huh")]
    thought = '<thought xmlns="">I am the researcher agent. Next step...</thought>'
    messages = [event for event in seen if event.kind == "message"]
    routes = [(event.sender, event.to) for event in messages]
    assert routes[:4] == [
        ("ext", ""),
        ("researcher", "ext"),
        ("researcher", "calculator.add"),
        ("calculator.add", "researcher"),
    ]
    assert messages[1].xml == egress("researcher", thought)
    assert b'<result xmlns="">42</result>' in messages[3].xml
    assert receipt.thread == messages[1].thread
    # It asks again at every reply, as the contract has it, until its iterations are used up.
    assert routes[4:] == routes[1:4]
