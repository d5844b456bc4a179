"""The listener that a model answers for: `handler: agentix.agentserver.llm.agent.answer`.

It runs where every handler runs and knows nothing of the organism. What comes in goes to the model
peer, which knows the conversation; the model's raw text is what the listener emits.
"""

import secrets
from collections.abc import Awaitable, Callable

from agentix.agentserver.core import Reply
from agentix.agentserver.llm.chat import (
    chat_request,
    completion_text,
    failed_request,
)
from agentix.agentserver.metadata import HandlerMetadata

__all__ = ["ModelFailedError", "answer", "answering_by"]

Handler = Callable[[object, HandlerMetadata], Awaitable[bytes]]


class ModelFailedError(RuntimeError):
    """The model gave no answer, so this listener has none for its caller."""


def answering_by(peer: str) -> Handler:
    """Makes a handler that asks the model peer of another name than `llm`.

    The peer must be among the listener's `peers`.
    """
    asked: dict[str, set[str]] = {}

    async def handler(payload: object, metadata: HandlerMetadata) -> bytes:
        # Requests are secrets: a tool that answers `<completion>` knows none, and is only quoted.
        requests = asked.setdefault(metadata.thread_id, set())
        if isinstance(payload, Reply):
            request, text = _answered(payload, requests)
            if request is not None:
                requests.discard(request)
                if text is None:
                    raise ModelFailedError(f"the model behind {peer!r} gave no answer")
                return text.encode()
        request = secrets.token_hex(16)
        requests.add(request)
        return chat_request(peer, request, _shown(payload, metadata.own_name or ""))

    return handler


answer = answering_by("llm")
"""The handler for an organism whose model peer is named `llm`."""


def _answered(reply: Reply, requests: set[str]) -> tuple[str | None, str | None]:
    """Finds which request a reply answers, and with what text; without one it has failed."""
    match reply.tag:
        case "completion":
            for request in requests:
                text = completion_text(reply.xml, request)
                if text is not None:
                    return request, text
        case "huh":
            failed = failed_request(reply.xml)
            if failed in requests:
                return failed, None
    return None, None


def _shown(payload: object, own_name: str) -> str:
    """Writes a payload for the model to read: as the XML that it came as."""
    if isinstance(payload, Reply):
        return payload.xml
    # Loaded at the first call, because workers do without it otherwise.
    from lxml import etree

    from agentix.agentserver.names import root_tag
    from agentix.agentserver.payload.codec import PayloadCodec
    from agentix.agentserver.payload.construct import to_plain
    from agentix.agentserver.payload.describe import describe_record

    kind = type(payload)
    codec = PayloadCodec(root_tag(own_name, kind.__name__), describe_record(kind))
    return etree.tostring(codec.encode(to_plain(payload)), encoding="unicode")
