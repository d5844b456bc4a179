"""Meta queries: who is told what about listeners."""

from typing import Any

import pytest
from lxml import etree

from agentix.agentserver import Organism, Principal
from tests.agentserver.conftest import Start, listener
from tests.agentserver.messages import INVALID, egress, envelope, huh

META = "https://xml-pipeline.org/ns/meta/v1"
ADMIN = Principal("ext", admin=True)


def query(name: str, capability: str = "calculator.add") -> bytes:
    """Return a query as a message of `ext`."""
    inner = f"<capability>{capability}</capability>" if capability else ""
    return envelope(f'<{name} xmlns="{META}">{inner}</{name}>')


async def asked(organism: Organism, principal: Principal, message: bytes) -> dict[str, list[str]]:
    """Return the elements of the answer from core, by their names."""
    (reply,) = await organism.call(message, principal)
    assert b"<from>core</from><to>ext</to>" in reply
    _, answer = etree.fromstring(reply)
    found: dict[str, list[str]] = {}
    for element in answer:
        found.setdefault(etree.QName(element).localname, []).append(element.text or "")
    return found


async def test_a52_a_schema_is_told_to_whom_it_is_allowed(start: Start) -> None:
    organism = await start(meta={"allow_schema_requests": "admin"})
    told = await asked(organism, ADMIN, query("request-schema"))
    xsd = organism.describe("calculator.add").xsd
    assert told == {"capability": ["calculator.add"], "content": [xsd.decode()]}
    message = query("request-schema")
    assert await organism.call(message, Principal("ext")) == [egress("core", huh(INVALID, message))]


async def test_a52_the_list_has_what_the_principal_may_call(start: Start) -> None:
    organism = await start()
    told = await asked(organism, Principal("ext"), query("list-capabilities", ""))
    assert told == {"capability": ["calculator.add", "calculator.secret", "researcher"]}
    limited = Principal("ext", frozenset({"calculator.add.addpayload"}))
    told = await asked(organism, limited, query("list-capabilities", ""))
    assert told == {"capability": ["calculator.add"]}
    message = query("request-example", "calculator.secret")
    assert await organism.call(message, limited) == [egress("core", huh(INVALID, message))]


@pytest.mark.parametrize("subject", ["example", "prompt"])
async def test_examples_and_prompts_are_told_too(start: Start, subject: str) -> None:
    organism = await start()
    told = await asked(organism, ADMIN, query(f"request-{subject}"))
    expected = getattr(organism.describe("calculator.add"), subject)
    assert told["content"] == [expected]


@pytest.mark.parametrize(
    ("meta", "principal", "name", "capability"),
    [
        ({"enabled": False}, ADMIN, "request-schema", "calculator.add"),
        ({"allow_list_capabilities": False}, ADMIN, "list-capabilities", ""),
        ({"allow_schema_requests": "none"}, ADMIN, "request-schema", "calculator.add"),
        ({}, Principal("ext", remote=True), "request-schema", "calculator.add"),
        ({}, ADMIN, "request-schema", "no.such"),
        ({}, ADMIN, "request-schema", ""),
        ({}, ADMIN, "request-secrets", "calculator.add"),
    ],
)
async def test_what_is_not_allowed_is_answered_as_an_invalid_payload(
    start: Start, meta: dict[str, Any], principal: Principal, name: str, capability: str
) -> None:
    organism = await start(meta=meta)
    message = query(name, capability)
    assert await organism.call(message, principal) == [egress("core", huh(INVALID, message))]


async def test_a_principal_may_send_what_it_is_allowed_to(start: Start) -> None:
    organism = await start(listener("tool"))
    limited = Principal("ext", frozenset({"tool.dopayload"}))
    message = envelope('<tool.dopayload xmlns=""><returns>&lt;a/></returns></tool.dopayload>')
    assert await organism.call(message, limited) == [egress("tool", '<a xmlns=""></a>')]
    refused = envelope('<calculator.add.addpayload xmlns=""/>')
    assert await organism.call(refused, limited) == [egress("core", huh(INVALID, refused))]
    assert [each.name for each in organism.catalog(limited)] == ["tool"]
