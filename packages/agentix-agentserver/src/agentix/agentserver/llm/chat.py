"""What an agent asks the model peer, and what it is answered; workers import this without lxml."""

import base64
import re
from xml.sax.saxutils import escape, unescape

from agentix.agentserver.xmlify import xmlify

__all__ = ["COMPLETION", "ChatRequest", "chat_request", "completion_text", "failed_request"]

COMPLETION = "completion"
"""The tag of an answer."""

ANSWER = re.compile(
    r"<completion><request>(?P<request>[^<]*)</request><text>(?P<text>[^<]*)</text></completion>"
)
ATTEMPT = re.compile(r"<original-attempt>([A-Za-z0-9+/=]*)</original-attempt>")
REQUEST = re.compile(rb"<request>([^<]*)</request>")
LINE_ENDS = {"&#xD;": "\r", "&quot;": '"'}


@xmlify
class ChatRequest:
    """One more message of a conversation with a model."""

    request: str
    """Comes back with the answer, so that one can tell it from everybody else's."""
    content: str
    """What the model is told next."""


def chat_request(peer: str, request: str, content: str) -> bytes:
    """Writes a request to the model peer of a name."""
    root = f"{peer.lower()}.{ChatRequest.__name__.lower()}"
    text = escape(content, {"\r": "&#13;"})
    fields = f"<request>{escape(request)}</request><content>{text}</content>"
    return f"<{root}>{fields}</{root}>".encode()


def completion_text(xml: str, request: str) -> str | None:
    """Gives the text of the answer to a request; `None` where the XML is not that."""
    found = ANSWER.fullmatch(xml)
    if found is None or found["request"] != request:
        return None
    return unescape(found["text"], LINE_ENDS)


def failed_request(xml: str) -> str | None:
    """Gives which request a `<huh>` is about; `None` where it is about something else."""
    quoted = ATTEMPT.search(xml)
    found = REQUEST.search(base64.b64decode(quoted[1])) if quoted else None
    return found[1].decode(errors="replace") if found else None
