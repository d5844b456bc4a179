"""The handler contract's own examples, word for word, with the classes that they need."""

import inspect
from typing import Any

import pytest

from agentix.agentserver.payload import PayloadCodec, constructor, describe_record
from agentix.agentserver.payload.types import HandlerMetadata, xmlify
from agentix.agentserver.xml.envelope import canonical, read_emission
from tests.agentserver.xml_samples import ADD_ROOT, LIMITS, THREAD, AddPayload, add_codec

CONTRACT = '''
async def add_handler(payload: AddPayload, metadata: HandlerMetadata) -> bytes:
    result = payload.a + payload.b
    return f"<result>{result}</result>".encode("utf-8")


async def research_handler(payload: ResearchPayload, metadata: HandlerMetadata) -> bytes:
    own = metadata.own_name or "researcher"  # safe fallback
    return b"""
    <thought>I am the """ + own.encode() + b""" agent. Next step...</thought>
    <calculator.add.addpayload><a>7</a><b>35</b></calculator.add.addpayload>
    """
'''


@xmlify
class ResearchPayload:
    query: str


@pytest.fixture
def handlers() -> dict[str, Any]:
    """Return the contract's handlers, where only what they name is imported."""
    names: dict[str, Any] = {
        "AddPayload": AddPayload,
        "HandlerMetadata": HandlerMetadata,
        "ResearchPayload": ResearchPayload,
    }
    exec(CONTRACT, names)
    return names


async def test_a60_the_calculator_of_the_contract_adds(handlers: dict[str, Any]) -> None:
    codec = add_codec()
    (request,) = read_emission(
        f"<{ADD_ROOT}><a>7</a><b>35</b></{ADD_ROOT}>".encode(), LIMITS
    ).payloads
    assert codec.validate(request)
    payload = constructor(AddPayload)(codec.decode(request))
    answer = await handlers["add_handler"](payload, HandlerMetadata(THREAD))
    assert answer == b"<result>42</result>"


@pytest.mark.parametrize(("own_name", "said"), [("analyst", "analyst"), (None, "researcher")])
async def test_a60_the_researcher_of_the_contract_thinks_and_calls(
    handlers: dict[str, Any], own_name: str | None, said: str
) -> None:
    codec = PayloadCodec("researcher.researchpayload", describe_record(ResearchPayload))
    payload = constructor(ResearchPayload)({"query": "what is 7 + 35?"})
    metadata = HandlerMetadata(THREAD, own_name)
    emission = read_emission(await handlers["research_handler"](payload, metadata), LIMITS)
    assert [canonical(element).decode() for element in emission.payloads] == [
        f"<thought>I am the {said} agent. Next step...</thought>",
        f"<{ADD_ROOT}><a>7</a><b>35</b></{ADD_ROOT}>",
    ]
    assert (emission.repairs, emission.prose) == ((), "")
    assert add_codec().validate(emission.payloads[1])
    assert codec.example() == (
        "<researcher.researchpayload><query>text</query></researcher.researchpayload>"
    )


def test_a60_the_metadata_is_declared_as_the_contract_says() -> None:
    signature = inspect.signature(HandlerMetadata)
    assert [*signature.parameters] == ["thread_id", "own_name"]
    assert signature.parameters["own_name"].default is None
