"""Wrapped payloads: `wrap` writes a message that is read as the payload that it was given."""

import pytest
from lxml import etree

from agentix.agentserver import wrap
from agentix.agentserver.names import is_thread_id
from agentix.agentserver.xml.envelope import canonical, open_envelope, open_ordinary
from agentix.agentserver.xml.parser import MessageLimits
from tests.agentserver.xml_samples import ENVELOPE, THREAD

PAYLOADS = [
    "<a.b-c_1>1</a.b-c_1>",
    "<a><b>1</b>\n<c></c></a>",
    "<a/>",
    "<a >1</a>",
    "<a b='1'/>",
    '<a xmlns=""></a>',
    '<a xmlns="urn:p"><b/></a>',
    '<p:a xmlns:p="urn:p"><b>&amp;</b></p:a>',
    "<\u00e4><b>1</b></\u00e4>",
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("sender", ["ext", "a b", "a&b"])
def test_wrap_keeps_the_payload_and_names_who_sends_it(payload: str, sender: str) -> None:
    envelope = open_envelope(wrap(payload, sender, THREAD), MessageLimits())
    assert (envelope.sender, envelope.thread, envelope.to) == (sender, THREAD, None)
    assert canonical(envelope.payload) == canonical(etree.fromstring(payload))
    assert envelope.repairs == ()


def test_wrap_writes_the_canonical_form_of_a_canonical_payload() -> None:
    meta = f"<meta><from>local</from><thread>{THREAD}</thread></meta>"
    message = f'<message xmlns="{ENVELOPE}">{meta}<a xmlns=""><b>1</b></a></message>'.encode()
    assert wrap("<a><b>1</b></a>", thread=THREAD) == message
    assert open_ordinary(message, MessageLimits()) is not None


def test_wrap_gives_each_message_a_thread_of_its_own() -> None:
    threads = {open_envelope(wrap("<a></a>"), MessageLimits()).thread or "" for _ in range(100)}
    assert len(threads) == 100
    assert all(map(is_thread_id, threads))
