"""The model peer: a listener in the pump, which every conversation with a model goes through.

What it is asked and what it answers are messages like any other: routed by declared peers, in the
audit log, and booked in tokens to the thread and the listener that asked.
"""

import logging
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.llm.chat import COMPLETION, ChatRequest
from agentix.agentserver.llm.endpoint import ChatMessage, Endpoint
from agentix.agentserver.llm.manifesto import MANIFESTO
from agentix.agentserver.payload import describe_record
from agentix.agentserver.trusted import Request, TrustedListener
from agentix.agentserver.xml.limits import Limits
from agentix.agentserver.xml.parser import parse_strict

if TYPE_CHECKING:
    from agentix.agentserver.organism import Organism

__all__ = ["ModelPeer"]

logger = logging.getLogger(__name__)

CONVERSATIONS = 1000
"""Conversations that are remembered; the one that was quiet for longest makes room."""

CONVERSATION_BYTES = 4 << 20
"""Bytes of one conversation; one that outgrows them is refused."""

RULES = """\
You are {name}: {description}

Answer with XML elements only; what is outside of elements is not read. Escape & and < in text.
- To call a tool, write its element. You may call several at once. Each answer comes to you as a
  message of its own.
- To answer whoever asked you, write one element whose name has no dot, such as
  <answer>...</answer>.
- <huh> means that your last message, or a tool, did not work. Correct it, or answer without it.
"""


class ModelPeer:
    """Answers requests by an endpoint, and remembers the conversation of each thread that asks.

    Args:
        endpoint: Where the model is; it is open for as long as the peer is used.
        organism: The organism around it.
    """

    def __init__(self, endpoint: Endpoint, organism: "Organism") -> None:
        self._endpoint = endpoint
        self._organism = organism
        self._conversations: OrderedDict[str, list[ChatMessage]] = OrderedDict()
        self._unread: set[str] | None = None

    def listener(self) -> TrustedListener:
        """Gives what the organism registers."""
        spec = self._endpoint.spec
        return TrustedListener(
            name=spec.name,
            description=spec.description,
            handle=self.handle,
            payload=describe_record(ChatRequest),
            handler_seconds=spec.timeout_seconds + 1.0,
        )

    async def handle(self, request: Request) -> bytes:
        """Asks the model for what comes next in the conversation of the thread that calls.

        Raises:
            LLMError: The model gave no whole answer; the conversation stays as it was.
        """
        asked = ChatMessage("user", request.payload["content"])
        conversation = [*await self._remembered(request), asked]
        messages = [*self._system(request.caller), *conversation]
        if sum(len(message.content) for message in messages) > CONVERSATION_BYTES:
            raise ValueError(f"the conversation of {request.caller} has outgrown its bounds")
        completion = await self._endpoint.complete(messages)
        request.book(completion.usage.total)
        conversation.append(ChatMessage("assistant", completion.text))
        self._remember(request.thread_id, conversation)
        return _answer(request.payload["request"], completion.text)

    def _system(self, caller: str) -> list[ChatMessage]:
        """Gives what comes before the conversation: the manifesto, and who the caller is."""
        messages = [ChatMessage("system", MANIFESTO)]
        spec = next((each for each in self._organism.spec.listeners if each.name == caller), None)
        if spec is None or not spec.agent:
            return messages
        parts = [RULES.format(name=spec.name, description=spec.description)]
        parts += [spec.prompt] if spec.prompt else []
        models = {each.name for each in self._organism.spec.llm}
        parts += [peer.prompt for peer in self._organism.peers(caller) if peer.name not in models]
        return [*messages, ChatMessage("system", "\n".join(parts))]

    async def _remembered(self, request: Request) -> list[ChatMessage]:
        """Gives the conversation so far; the audit log has those that are not in memory."""
        thread = request.thread_id
        if self._unread is None:
            name = self._endpoint.spec.name
            self._unread = {each.id for each in self._organism.threads() if each.path[-1] == name}
        if thread in self._unread:
            self._unread.discard(thread)
            self._remember(thread, await self._read_again(request))
        return self._conversations.get(thread, [])

    async def _read_again(self, request: Request) -> list[ChatMessage]:
        """Reads a conversation in the audit log: the questions that were answered."""
        answers = {
            payload.findtext("request"): payload.findtext("text") or ""
            async for payload in self._payloads(request.caller_thread)
            if payload.tag == COMPLETION
        }
        conversation = []
        async for payload in self._payloads(request.thread_id):
            answer = answers.get(payload.findtext("request"))
            if answer is not None:
                conversation.append(ChatMessage("user", payload.findtext("content") or ""))
                conversation.append(ChatMessage("assistant", answer))
        return conversation

    async def _payloads(self, thread: str) -> AsyncIterator[Element]:
        limits = Limits(size=sys.maxsize)
        async for event in self._organism.history(thread):
            if event.kind != "gap":  # what the journal no longer keeps is forgotten here too
                yield parse_strict(event.xml, limits)[1]

    def _remember(self, thread: str, conversation: list[ChatMessage]) -> None:
        self._conversations[thread] = conversation
        self._conversations.move_to_end(thread)
        while len(self._conversations) > CONVERSATIONS:
            quiet, _ = self._conversations.popitem(last=False)
            if self._unread is not None:
                self._unread.add(quiet)


def _answer(request: str, text: str) -> bytes:
    """Writes the answer, with all of the text in it.

    Raises:
        ValueError: The text has characters that XML can not carry.
    """
    root = etree.Element(COMPLETION)
    etree.SubElement(root, "request").text = request
    etree.SubElement(root, "text").text = text
    return etree.tostring(root, encoding="utf-8")
