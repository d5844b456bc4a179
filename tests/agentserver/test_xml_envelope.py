"""Envelopes: what is one, what it says, and the exact bytes of those that the pump writes."""

from agentix.agentserver.xml.emission import read_emission
from agentix.agentserver.xml.envelope import build_envelope, open_envelope
from agentix.agentserver.xml.limits import Limits

THREAD = "550e8400-e29b-41d4-a716-446655440000"
LIMITS = Limits()
ADD = '<calculator.add.addpayload xmlns=""><a>7</a><b>35</b></calculator.add.addpayload>'


def message(payload: str, meta: str = f"<from>ext</from><thread>{THREAD}</thread>") -> bytes:
    """Writes a message around a payload."""
    return (
        '<message xmlns="https://xml-pipeline.org/ns/envelope/v1">'
        f"<meta>{meta}</meta>{payload}</message>"
    ).encode()


def test_a01_an_answer_has_exactly_these_bytes() -> None:
    (result,) = read_emission(b"<result>42</result>", LIMITS).payloads
    assert build_envelope("calculator.add", "ext", THREAD, result) == (
        b'<message xmlns="https://xml-pipeline.org/ns/envelope/v1"><meta><from>calculator.add'
        b"</from><to>ext</to><thread>550e8400-e29b-41d4-a716-446655440000</thread></meta>"
        b'<result xmlns="">42</result></message>'
    )


def test_a_message_says_who_sends_what_to_whom() -> None:
    meta = f"<from>ext</from><to>calculator.add</to><thread>{THREAD}</thread>"
    envelope = open_envelope(message(ADD, meta), LIMITS)
    assert (envelope.sender, envelope.to, envelope.thread) == ("ext", "calculator.add", THREAD)
    assert envelope.payload.tag == "calculator.add.addpayload"
    assert envelope.canonical == message(ADD, meta)
    assert envelope.repairs == ()
