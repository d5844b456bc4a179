"""Records: a class with fields, its schema, and its values there and back."""

from dataclasses import dataclass

from lxml import etree

from agentix.agentserver.payload import PayloadCodec, constructor, describe_record, to_plain
from agentix.agentserver.xmlify import xmlify

ROOT = "calculator.add.addpayload"


@xmlify
@dataclass
class AddPayload:
    a: int = 0  # the first number
    b: int = 0  # the second number


def test_a_record_is_validated_decoded_and_constructed() -> None:
    codec = PayloadCodec(ROOT, describe_record(AddPayload))
    element = etree.fromstring(f"<{ROOT}><a>7</a><b>35</b></{ROOT}>")
    assert codec.validate(element)
    assert codec.decode(element) == {"a": 7, "b": 35}
    assert constructor(AddPayload)({"a": 7, "b": 35}) == AddPayload(7, 35)


def test_an_instance_is_encoded() -> None:
    codec = PayloadCodec(ROOT, describe_record(AddPayload))
    element = codec.encode(to_plain(AddPayload(7, 35)))
    assert etree.tostring(element) == f"<{ROOT}><a>7</a><b>35</b></{ROOT}>".encode()
