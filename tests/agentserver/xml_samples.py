"""Messages and classes that tests of the codec and of XML share."""

from dataclasses import dataclass

from agentix.agentserver.payload import PayloadCodec, describe_record
from agentix.agentserver.payload.types import xmlify
from agentix.agentserver.xml.parser import MessageLimits

THREAD = "550e8400-e29b-41d4-a716-446655440000"
ENVELOPE = "https://xml-pipeline.org/ns/envelope/v1"
CORE = "https://xml-pipeline.org/ns/core/v1"
LIMITS = MessageLimits()
META = f"<from>ext</from><thread>{THREAD}</thread>"
ADD_ROOT = "calculator.add.addpayload"
ADD = f'<{ADD_ROOT} xmlns=""><a>7</a><b>35</b></{ADD_ROOT}>'


@xmlify
@dataclass
class AddPayload:
    a: int = 0  # the first number
    b: int = 0  # the second number


def add_codec() -> PayloadCodec:
    """Make the codec of the calculator."""
    return PayloadCodec(ADD_ROOT, describe_record(AddPayload))


def message(payload: str, meta: str = META) -> bytes:
    """Write a message around a payload."""
    return f'<message xmlns="{ENVELOPE}"><meta>{meta}</meta>{payload}</message>'.encode()
