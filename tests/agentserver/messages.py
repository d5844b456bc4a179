"""Messages as the specification's acceptance behaviours write them."""

import base64
from typing import Final

ENVELOPE: Final = "https://xml-pipeline.org/ns/envelope/v1"
CORE: Final = "https://xml-pipeline.org/ns/core/v1"
T: Final = "550e8400-e29b-41d4-a716-446655440000"
INVALID: Final = "Invalid payload structure"
MALFORMED: Final = "Malformed message"
FAILED: Final = "Handler failed"
LIMIT: Final = "Limit exceeded"
GUARD: Final = "Handler failed to return valid bytes \u2014 likely missing return or wrong type"


def envelope(payload: str, *, sender: str = "ext", thread: str | None = T) -> bytes:
    """Return a message from outside, E(p) of the specification."""
    named = "" if thread is None else f"<thread>{thread}</thread>"
    meta = f"<meta><from>{sender}</from>{named}</meta>"
    return f'<message xmlns="{ENVELOPE}">{meta}{payload}</message>'.encode()


def add(a: object, b: object) -> str:
    """Return a payload for `calculator.add`, P(a,b) of the specification."""
    return f'<calculator.add.addpayload xmlns=""><a>{a}</a><b>{b}</b></calculator.add.addpayload>'


def egress(sender: str, payload: str, *, to: str = "ext", thread: str = T) -> bytes:
    """Return a message as it leaves the organism."""
    meta = f"<meta><from>{sender}</from><to>{to}</to><thread>{thread}</thread></meta>"
    return f'<message xmlns="{ENVELOPE}">{meta}{payload}</message>'.encode()


def huh(error: str, attempt: bytes) -> str:
    """Return the payload HUH(e, b64) of the specification."""
    encoded = base64.b64encode(attempt[:1024]).decode()
    return (
        f'<huh xmlns="{CORE}"><error>{error}</error>'
        f"<original-attempt>{encoded}</original-attempt></huh>"
    )


def escaped(text: str) -> str:
    """Return a text as the content of an element."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
