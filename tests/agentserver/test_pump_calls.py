"""Calls from outside: what comes back, byte for byte, and what is let in at all."""

from typing import Any

import pytest

from agentix.agentserver import Organism, wrap, xmlify
from agentix.agentserver.errors import PayloadError
from agentix.agentserver.registry import MessageState
from tests.agentserver.conftest import Start, events, listener, security
from tests.agentserver.messages import (
    ENVELOPE,
    INVALID,
    MALFORMED,
    T,
    add,
    egress,
    envelope,
    huh,
)

RESULT = egress("calculator.add", '<result xmlns="">42</result>')


@xmlify
class AddPayload:
    """What the adder takes, as a program that calls it has it."""

    a: int
    b: int


@xmlify
class DoPayload:
    """What `do` takes, as a program that calls it has it."""

    returns: str = ""


async def test_a01_a_call_comes_back_as_one_canonical_message(organism: Organism) -> None:
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]


async def test_a08_fields_come_in_any_order_and_may_be_absent(organism: Organism) -> None:
    turned = "<calculator.add.addpayload xmlns=''><b>35</b><a>7</a></calculator.add.addpayload>"
    assert await organism.call(envelope(turned), "ext") == [RESULT]
    (reply,) = await organism.call(envelope("<calculator.add.addpayload xmlns=''/>"), "ext")
    assert reply == egress("calculator.add", '<result xmlns="">0</result>')
    twice = envelope(add("7</a><a>8", 35))
    assert await organism.call(twice, "ext") == [egress("core", huh(INVALID, twice))]


@pytest.mark.parametrize("payload", [add(7, 35).replace(' xmlns=""', ""), add(7, 35)])
async def test_a_wrapped_payload_leaves_nothing_to_repair(start: Start, payload: str) -> None:
    organism = await start()
    replies = [await organism.call(wrap(payload)) for _ in range(2)]
    assert [b'<result xmlns="">42</result>' in reply for (reply,) in replies] == [True, True]
    assert replies[0] != replies[1]  # each has a thread of its own
    assert await events(organism, "repair") == []


async def test_a29_an_unknown_root_is_answered_as_an_invalid_payload(organism: Organism) -> None:
    for payload in ('<nosuch.tool.payload xmlns=""/>', add("x", 1), '<result xmlns="">1</result>'):
        message = envelope(payload)
        replies = await organism.call(message, "ext")
        assert replies == [egress("core", huh(INVALID, message))]


async def test_a30_a_large_attempt_is_given_back_in_part(start: Start) -> None:
    organism = await start()
    message = envelope(add("x" * 1_000_000, 1))
    assert await organism.call(message, "ext") == [egress("core", huh(INVALID, message[:1024]))]


@pytest.mark.parametrize("claimed", ["ext2", "core", "system", "calculator.add"])
async def test_a40_a_sender_can_not_claim_to_be_another(start: Start, claimed: str) -> None:
    organism = await start()
    message = envelope(add(7, 35), sender=claimed)
    (reply,) = await organism.call(message, "ext")
    assert huh(MALFORMED, message).encode() in reply
    assert b"<from>core</from><to>ext</to>" in reply
    assert [event.sender for event in await security(organism)] == ["ext"]
    assert [thread.path for thread in organism.threads()] == [("system",)]


@pytest.mark.parametrize("name", ["calculator.add", "core", "system"])
async def test_a_principal_can_not_have_a_name_of_the_inside(start: Start, name: str) -> None:
    organism = await start()
    (reply,) = await organism.call(envelope(add(7, 35), sender=name), name)
    assert MALFORMED.encode() in reply
    assert len(await security(organism)) == 1


@pytest.mark.parametrize(
    "message",
    [
        envelope(add(1, 2) + add(3, 4)),
        envelope(""),
        f'<message xmlns="{ENVELOPE}">{add(1, 2)}</message>'.encode(),
        envelope(add(1, 2), sender=""),
        envelope(add(1, 2), thread=""),
        envelope("<payload/>"),
        envelope(envelope(add(1, 2)).decode()),
        b"",
        b"not XML",
    ],
)
async def test_a41_what_is_no_envelope_is_refused(start: Start, message: bytes) -> None:
    organism = await start()
    (reply,) = await organism.call(message, "ext")
    assert huh(MALFORMED, message).encode() in reply
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]


async def test_a_message_that_is_no_bytes_is_told_to_the_programmer(start: Start) -> None:
    organism = await start()
    text: Any = envelope(add(7, 35)).decode()
    for post in (organism.call, organism.post):
        with pytest.raises(TypeError, match=r"in bytes, not a str: wrap\(\) makes one"):
            await post(text, "ext")
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]


async def test_a53_a_privileged_root_is_dropped(start: Start) -> None:
    organism = await start()
    payload = '<privileged-msg xmlns="https://xml-pipeline.org/privileged-msg"/>'
    assert await organism.call(envelope(payload), "ext") == []
    (event,) = await security(organism)
    assert (event.sender, event.thread) == ("ext", T)


async def test_a_message_may_name_its_receiver(start: Start) -> None:
    organism = await start()
    named = envelope(add(7, 35)).replace(b"<thread>", b"<to>calculator.add</to><thread>")
    assert await organism.call(named, "ext") == [RESULT]
    other = envelope(add(7, 35)).replace(b"<thread>", b"<to>calculator.secret</to><thread>")
    assert await organism.call(other, "ext") == [egress("core", huh(INVALID, other))]


async def test_a_listener_takes_its_own_xml_namespace_and_no_other(start: Start) -> None:
    organism = await start()
    own = "https://xml-pipeline.org/ns/listener/calculator.add/v1"
    payload = add(7, 35).replace('xmlns=""', f'xmlns="{own}"')
    assert await organism.call(envelope(payload), "ext") == [RESULT]
    message = envelope(payload.replace("calculator.add/v1", "calculator.sub/v1"))
    assert await organism.call(message, "ext") == [egress("core", huh(INVALID, message))]


async def test_a_step_can_be_replaced_and_one_that_raises_is_answered(start: Start) -> None:
    organism = await start()

    async def broken(state: MessageState) -> None:
        assert state.principal is None, "it fails on what comes from outside"

    organism.pump.ingress.insert(0, broken)
    (reply,) = await organism.call(envelope(add(7, 35)), "ext")
    assert INVALID.encode() in reply
    organism.pump.ingress.replace("broken")
    assert await organism.call(envelope(add(7, 35)), "ext") == [RESULT]
    with pytest.raises(KeyError, match="broken"):
        organism.pump.ingress.replace("broken")


async def test_asking_gives_the_answer_of_a_listener(organism: Organism) -> None:
    reply = await organism.ask("calculator.add", AddPayload(a=7, b=35))
    assert (reply.tag, reply.xml, reply.text) == ("result", "<result>42</result>", "42")


async def test_asking_gives_what_the_pump_says_of_a_failure(start: Start) -> None:
    organism = await start(listener("teller"))
    reply = await organism.ask("teller", DoPayload())
    assert reply.tag == "huh"
    assert reply.text.startswith("Handler failed")


async def test_asking_needs_a_listener_and_a_payload_that_it_takes(start: Start) -> None:
    organism = await start()
    with pytest.raises(KeyError, match="nobody"):
        await organism.ask("nobody", AddPayload(a=1, b=2))
    with pytest.raises(PayloadError):
        await organism.ask("calculator.add", DoPayload(returns="<a/>"))


async def test_asking_goes_on_in_a_thread(start: Start) -> None:
    organism = await start()
    for _ in range(2):
        await organism.ask("calculator.add", AddPayload(a=7, b=35), "ext", thread=T)
    assert [thread.path for thread in organism.threads() if thread.id == T] == [("ext",)]
