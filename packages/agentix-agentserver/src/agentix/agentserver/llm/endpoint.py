"""The endpoints of language models, and the listener by which agents reach them."""

import asyncio
import json
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp
from lxml import etree
from lxml.etree import _Element as Element
from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from agentix.agentserver.errors import (
    LLMAnswerError,
    LLMError,
    LLMUnavailableError,
)
from agentix.agentserver.llm.agent import COMPLETION, SYSTEM_PREAMBLE, ChatRequest
from agentix.agentserver.payload import describe_record
from agentix.agentserver.registry import InProcessListener, Request
from agentix.agentserver.spec import LlmSpec
from agentix.agentserver.xml.parser import MessageLimits, parse_strict

if TYPE_CHECKING:
    from agentix.agentserver.organism import Organism

__all__ = [
    "ChatMessage",
    "Completion",
    "Endpoint",
    "ModelPeer",
    "Usage",
    "read_key",
]

logger = logging.getLogger(__name__)


TRANSIENT = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""

FIRST_PAUSE = 0.5
"""Seconds before the second attempt where the server names none; each further pause doubles."""

DONE = "[DONE]"


def read_key(spec: LlmSpec, directory: Path) -> str | None:
    """Return the key of an endpoint, from where its settings point.

    Raises:
        LLMError: There is none.
    """
    if spec.key_variable is not None:
        place, key = f"the variable {spec.key_variable}", os.environ.get(spec.key_variable, "")
    elif spec.key_file is not None:
        path = directory / spec.key_file
        try:
            place, key = str(path), path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LLMError(f"{spec.name}: no key can be read from {path}") from error
    else:
        return None
    if not key:
        raise LLMError(f"{spec.name}: there is no key in {place}")
    return key


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation with a model."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Usage:
    """What a completion cost."""

    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    """Whether the endpoint did not say: then a token is taken for four bytes."""

    @property
    def total(self) -> int:
        """Tokens of both kinds."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    usage: Usage


class _Wire(BaseModel):
    """Endpoints add fields of their own, which do not matter."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Usage(_Wire):
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0


class _Content(_Wire):
    content: str | None = None


class _Choice(_Wire):
    message: _Content = _Content()
    delta: _Content = _Content()
    finish_reason: str | None = None


class _Answer(_Wire):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None


class _Error(_Wire):
    error: dict[str, Any] | str


_ANSWER: TypeAdapter[_Error | _Answer] = TypeAdapter(_Error | _Answer)


class Endpoint:
    """A connection pool to one endpoint; an asynchronous context manager.

    Args:
        spec: Where it is and how it is asked.
        key: The API key, which is sent as a bearer token and appears in no message of an error.
    """

    def __init__(self, spec: LlmSpec, key: str | None = None) -> None:
        self.spec = spec
        self._url = f"{spec.base_url.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
            # A redirected key would be a given-away key, and proxies are for other programs.
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def complete(self, messages: Sequence[ChatMessage]) -> Completion:
        """Ask the model.

        Raises:
            LLMUnavailableError: There was no answer within the deadline.
            LLMAnswerError: The answer is not a completion, or the model was cut off.
        """
        try:
            async with asyncio.timeout(self.spec.timeout_seconds):
                return await self._attempts(self._request(messages))
        except TimeoutError as error:
            raise LLMUnavailableError(
                f"{self._url} gave no completion within {self.spec.timeout_seconds:g} s"
            ) from error

    def _request(self, messages: Sequence[ChatMessage]) -> dict[str, object]:
        request: dict[str, object] = {
            "model": self.spec.model,
            "messages": [{"role": each.role, "content": each.content} for each in messages],
        }
        if self.spec.stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.spec.temperature is not None:
            request["temperature"] = self.spec.temperature
        if self.spec.max_tokens is not None:
            request["max_tokens"] = self.spec.max_tokens
        return request

    async def _attempts(self, request: Mapping[str, object]) -> Completion:
        """Send a request again after statuses that pass, and never after a part of an answer."""
        pause = FIRST_PAUSE
        for attempt in range(1, self.spec.attempts + 1):
            try:
                return await self._attempt(request)
            except _PassingError as error:
                if attempt == self.spec.attempts:
                    raise LLMUnavailableError(str(error)) from error
                logger.warning("%s; attempt %d follows", error, attempt + 1)
                await asyncio.sleep(pause if error.pause is None else error.pause)
                pause *= 2
        raise AssertionError("there is at least one attempt")

    async def _attempt(self, request: Mapping[str, object]) -> Completion:
        assert self._session is not None, "the endpoint is not open"
        try:
            async with self._session.post(
                self._url, json=request, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                if response.content_type == "text/event-stream":
                    return await self._streamed(response, request)
                return await self._whole(response, request)
        except aiohttp.ClientConnectorError as error:
            raise _PassingError(f"{self._url} cannot be reached") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise LLMUnavailableError(f"the answer of {self._url} broke off: {error}") from error

    async def _refusal(self, response: aiohttp.ClientResponse) -> "LLMError | _PassingError":
        message = f"{self._url} answered with status {response.status}"
        if response.status not in TRANSIENT:
            return LLMAnswerError(message)
        try:
            pause = float(response.headers["Retry-After"])
        except (KeyError, ValueError):
            return _PassingError(message)
        return _PassingError(message, max(pause, 0.0))

    async def _whole(
        self, response: aiohttp.ClientResponse, request: Mapping[str, object]
    ) -> Completion:
        body = await response.content.read(self.spec.answer_bytes + 1)
        while len(body) <= self.spec.answer_bytes and (
            more := await response.content.read(1 << 16)
        ):
            body += more
        if len(body) > self.spec.answer_bytes:
            raise self._too_long()
        answer = self._parse(body)
        if not answer.choices:
            raise LLMAnswerError(f"the answer of {self._url} has no choices")
        choice = answer.choices[0]
        text = choice.message.content or ""
        return self._completion(text, choice.finish_reason, answer.usage, request)

    async def _streamed(
        self, response: aiohttp.ClientResponse, request: Mapping[str, object]
    ) -> Completion:
        pieces: list[str] = []
        size, reason, usage = 0, None, None
        async for data in _events(response, self.spec.answer_bytes):
            if data == DONE:
                return self._completion("".join(pieces), reason, usage, request)
            answer = self._parse(data.encode())
            usage = answer.usage or usage
            for choice in answer.choices[:1]:
                pieces.append(choice.delta.content or "")
                size += len(pieces[-1].encode())
                reason = choice.finish_reason or reason
            if size > self.spec.answer_bytes:
                raise self._too_long()
        raise LLMAnswerError(f"the stream of {self._url} ended before {DONE}")

    def _parse(self, data: bytes) -> _Answer:
        try:
            answer = _ANSWER.validate_json(data)
        except ValidationError as error:
            raise LLMAnswerError(f"the answer of {self._url} is not a completion") from error
        if isinstance(answer, _Error):
            raise LLMAnswerError(f"{self._url} answered with an error")
        return answer

    def _completion(
        self,
        text: str,
        reason: str | None,
        usage: _Usage | None,
        request: Mapping[str, object],
    ) -> Completion:
        if reason != "stop":
            # A text that was cut off must not pass for a whole one.
            raise LLMAnswerError(f"the model did not finish its answer: {reason or 'no reason'}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise LLMAnswerError(f"the answer of {self._url} is not text") from error
        if usage is None:
            asked = len(json.dumps(request["messages"], ensure_ascii=False).encode())
            return Completion(text, Usage(asked // 4, len(text.encode()) // 4, estimated=True))
        return Completion(text, Usage(usage.prompt_tokens, usage.completion_tokens))

    def _too_long(self) -> LLMAnswerError:
        return LLMAnswerError(
            f"the answer of {self._url} is longer than {self.spec.answer_bytes} bytes"
        )


class _PassingError(Exception):
    """A refusal that may pass."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


async def _events(response: aiohttp.ClientResponse, limit: int) -> AsyncIterator[str]:
    """Return the data of each server-sent event (HTML Living Standard, 9.2)."""
    lines: list[str] = []
    async for raw in response.content:
        line = raw.decode("utf-8").rstrip("\r\n")
        if not line and lines:
            yield "\n".join(lines)
            lines = []
        elif line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        if sum(map(len, lines)) > limit:
            raise ValueError("an event is too long")
    if lines:
        yield "\n".join(lines)


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

    def listener(self) -> InProcessListener:
        """Return what the organism registers."""
        spec = self._endpoint.spec
        return InProcessListener(
            name=spec.name,
            description=spec.description,
            handle=self.handle,
            payload=describe_record(ChatRequest),
            handler_seconds=spec.timeout_seconds + 1.0,
        )

    async def handle(self, request: Request) -> bytes:
        """Ask the model for what comes next in the conversation of the thread that calls.

        Raises:
            LLMError: The model gave no whole answer; the conversation stays as it was.
        """
        asked = ChatMessage("user", request.payload["content"])
        conversation = [*await self._remembered(request), asked]
        messages = [*self._system(request.caller), *conversation]
        if sum(len(message.content) for message in messages) > CONVERSATION_BYTES:
            raise ValueError(f"the conversation of {request.caller} has outgrown its bounds")
        completion = await self._endpoint.complete(messages)
        request.record_tokens(completion.usage.total)
        conversation.append(ChatMessage("assistant", completion.text))
        self._remember(request.thread_id, conversation)
        return _answer(request.payload["request"], completion.text)

    def _system(self, caller: str) -> list[ChatMessage]:
        """Return what comes before the conversation: the manifesto, and who the caller is."""
        messages = [ChatMessage("system", SYSTEM_PREAMBLE)]
        spec = next((each for each in self._organism.spec.listeners if each.name == caller), None)
        if spec is None or not spec.agent:
            return messages
        parts = [RULES.format(name=spec.name, description=spec.description)]
        parts += [spec.prompt] if spec.prompt else []
        models = {each.name for each in self._organism.spec.llm}
        parts += [peer.prompt for peer in self._organism.peers(caller) if peer.name not in models]
        return [*messages, ChatMessage("system", "\n".join(parts))]

    async def _remembered(self, request: Request) -> list[ChatMessage]:
        """Return the conversation so far; the audit log has those that are not in memory."""
        thread = request.thread_id
        if self._unread is None:
            name = self._endpoint.spec.name
            self._unread = {each.id for each in self._organism.threads() if each.path[-1] == name}
        if thread in self._unread:
            self._unread.discard(thread)
            self._remember(thread, await self._read_again(request))
        return self._conversations.get(thread, [])

    async def _read_again(self, request: Request) -> list[ChatMessage]:
        """Read a conversation in the audit log: the questions that were answered."""
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
        limits = MessageLimits(size=sys.maxsize)
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
    """Write the answer, with all of the text in it.

    Raises:
        ValueError: The text has characters that XML cannot carry.
    """
    root = etree.Element(COMPLETION)
    etree.SubElement(root, "request").text = request
    etree.SubElement(root, "text").text = text
    return etree.tostring(root, encoding="utf-8")
