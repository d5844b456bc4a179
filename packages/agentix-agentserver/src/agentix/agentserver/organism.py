"""Organisms: a pump, its listeners and its journal, from one `organism.yaml`."""

import asyncio
import logging
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lxml import etree

from agentix.agentserver.assembly import (
    Registrar,
    make_handler_runner,
    start_builtins,
    temporary_directory_if_empty,
)
from agentix.agentserver.catalog import (
    Capability,
    allowed_listeners,
    capability_of,
    draw,
    graph_of,
    peer_capability,
)
from agentix.agentserver.commits import PendingCall
from agentix.agentserver.errors import CallTimeoutError, NoReplyError, OrganismClosedError
from agentix.agentserver.journal import Journal
from agentix.agentserver.log import Event, EventBus, EventLog, Recovered, Wanted, history, listen
from agentix.agentserver.names import (
    CORE_NAMESPACE,
    ENVELOPE_NAMESPACE,
    LOCAL,
    Principal,
    new_thread_id,
)
from agentix.agentserver.payload import to_plain
from agentix.agentserver.payload.types import Reply
from agentix.agentserver.pump import CORE, Pump
from agentix.agentserver.registry import InProcessListener, Listener, ListenerRegistry
from agentix.agentserver.spec import GatewaySpec, ListenerSpec, OrganismSpec, load_spec
from agentix.agentserver.state import Thread
from agentix.agentserver.xml.envelope import (
    END,
    TAG,
    build_envelope,
    canonical,
    escape,
    open_envelope,
    opening,
)
from agentix.agentserver.xml.parser import MessageLimits

__all__ = [
    "CallTimeoutError",
    "Capability",
    "Organism",
    "OrganismClosedError",
    "Receipt",
    "ThreadInfo",
    "wrap",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement of a message: from here on it is delivered, or its failure told.

    Example:
        ```python
        from agentix.agentserver import Organism, Receipt, wrap


        async def send(organism: Organism, payload: str) -> Receipt:
            return await organism.post(wrap(payload))
        ```
    """

    thread: str
    """The thread that it went to, which is a new one where it named none of its sender's."""
    seq: int
    """The number of the last event before what follows from the message."""


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread that is alive.

    Example:
        ```python
        from agentix.agentserver import Organism, ThreadInfo


        def deepest(organism: Organism) -> ThreadInfo:
            return max(organism.threads(), key=lambda thread: len(thread.path))
        ```
    """

    id: str
    """Its UUID."""
    path: tuple[str, ...]
    """The principal that owns the conversation, then the listeners down to this one."""


UNQUALIFIED = re.compile(rf"<{TAG}(?=>)".encode())
"""The start of an element without a prefix and without attributes."""


def wrap(payload: str | bytes, sender: str = LOCAL.name, thread: str | None = None) -> bytes:
    """Put a payload into an envelope.

    The envelope of a payload that is in canonical form is in canonical form too, which is read in a
    fraction of the time that any other takes.

    Args:
        payload: One element.
        sender: The principal that will post it.
        thread: The thread to go on with; `None` begins a new one.

    Example:
        ```python
        import uuid

        from agentix.agentserver import wrap

        first = wrap("<add.addpayload><a>7</a></add.addpayload>")
        second = wrap("<add.addpayload><a>8</a></add.addpayload>", thread=str(uuid.uuid4()))
        ```
    """
    body = payload.encode() if isinstance(payload, str) else payload
    named = escape(thread or new_thread_id())
    start = UNQUALIFIED.match(body)
    if start is not None:
        head = f'{opening(sender, None)[0]}{named}</thread></meta>{start[0].decode()} xmlns=""'
        return head.encode() + body[start.end() :] + END.encode()
    # Only the payload says what its prefixes and attributes are, so it is left as it came: a prefix
    # for the envelope keeps the default namespace, which the payload may inherit, absent.
    meta = f"<e:from>{escape(sender)}</e:from><e:thread>{named}</e:thread>"
    head = f'<e:message xmlns:e="{ENVELOPE_NAMESPACE}"><e:meta>{meta}</e:meta>'
    return head.encode() + body + b"</e:message>"


SYSTEM = "system"
"""Who owns the thread that the organism boots in."""
DEADLINE_SECONDS = 0.02
"""How late a call may learn that it takes too long."""
NAMELESS_BYTES = 1 << 26
"""Bytes of events that an organism without a journal can look back on, at least."""


class Organism:
    """An organism. It is an async context manager; it runs while that is open.

    Args:
        spec: What it is made of.
        directory: What relative paths in `spec` are relative to.

    Example:
        ```python
        import asyncio
        import tempfile
        from pathlib import Path

        from agentix.agentserver import Organism, OrganismSpec


        async def main() -> None:
            spec = OrganismSpec.model_validate({"organism": {"name": "empty"}, "journal": None})
            with tempfile.TemporaryDirectory() as directory:
                async with Organism(spec, Path(directory)) as organism:
                    assert organism.catalog() == []


        asyncio.run(main())
        ```
    """

    def __init__(self, spec: OrganismSpec, directory: Path) -> None:
        self.spec = spec
        self.directory = directory
        self._registry = ListenerRegistry()
        self._bus = EventBus()
        self._journal = self._make_journal()
        self._log = EventLog(self._journal, self._bus)
        self._handlers = make_handler_runner(spec, directory)
        self._registrar = Registrar(self._handlers, spec.limits, directory / spec.schemas)
        self._in_process: list[InProcessListener] = []
        self._gateways: dict[str, GatewaySpec] = {}
        self._resources = AsyncExitStack()
        self._running = False
        self._changes = asyncio.Lock()
        self._calls: set[PendingCall] = set()
        self._watching: asyncio.Task[None] | None = None
        self.pump = Pump(
            self._registry,
            self._log,
            self._handlers,
            spec.limits,
            spec.meta,
            depth_first=spec.thread_scheduling == "depth-first",
        )
        """The pump, whose pipelines can be changed."""

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Make an organism of an `organism.yaml`, which is checked and not yet started.

        Raises:
            SpecError: The file says what an organism cannot be.
        """
        file = Path(path).absolute()
        return cls(load_spec(file), file.parent)

    def _make_journal(self) -> Journal:
        spec = self.spec.journal
        if spec is None:
            return Journal(None, keep_bytes=NAMELESS_BYTES)
        return Journal(
            self.directory / spec.path,
            disk=spec.sync == "disk",
            segment_bytes=spec.segment_bytes,
            keep_bytes=spec.keep_bytes,
        )

    async def __aenter__(self) -> Self:
        """Start workers, register every listener, and deliver what the journal holds.

        Raises:
            RegistrationError: A listener cannot be registered; nothing was started.
            JournalError: The journal cannot be used.
        """
        async with AsyncExitStack() as resources:
            resources.enter_context(self._journal)
            # Before anything is told, because numbers go on from the time before.
            recovered = self._log.recover()
            # What is there when workers start is hidden from them, names of listeners included.
            resources.enter_context(
                temporary_directory_if_empty(self.directory / self.spec.schemas)
            )
            await self._handlers.start()
            resources.push_async_callback(self._handlers.aclose)
            await resources.enter_async_context(start_builtins(self))
            await self._register_all()
            resources.callback(self._bus.close)
            resources.push_async_callback(self.pump.aclose)
            await self._restore(recovered)
            await self._boot()
            self._resources = resources.pop_all()
        self._running = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running = False
        closed = OrganismClosedError("the organism ended while a call was under way")
        for call in self._calls:
            call.abandon(closed)
        if self._watching is not None:
            self._watching.cancel()
        await self._resources.aclose()

    @asynccontextmanager
    async def registered(self) -> AsyncIterator[Self]:
        """Register every listener and start nothing, to look at what there would be.

        Raises:
            RegistrationError: A listener cannot be registered.
        """
        async with AsyncExitStack() as resources:
            await self._handlers.start()
            resources.push_async_callback(self._handlers.aclose)
            await resources.enter_async_context(start_builtins(self))
            await self._make_all()
            yield self

    async def _make_all(self) -> list[Listener]:
        """Fill the registry, and return those that run elsewhere."""
        listeners = await self._registrar.make(self.spec.listeners)
        in_process = [self._registrar.make_in_process(each) for each in self._in_process]
        self._registry.add([*listeners, *in_process])
        return listeners

    async def _register_all(self) -> None:
        self._registrar.write_schemas(await self._make_all())
        for listener in self._registry:
            self._tell_state(listener, "registered")

    def _tell_state(self, listener: Listener, state: str) -> None:
        detail = f"{state}, root tag {listener.root}"
        self._log.event("listener_state", sender=listener.name, detail=detail)

    async def _restore(self, recovered: Recovered) -> None:
        """Bring back the threads of the time before; deliver or reports what was under way."""
        self.pump.threads.restore(recovered.threads)
        for id, tokens in recovered.tokens.items():  # noqa: A001 - the thread's word for it
            self._thread(id).tokens = tokens
        self._log.threads = self.pump.threads
        for thread in self.pump.threads:
            if thread.parent is None and thread.name == SYSTEM:
                self.pump.close(thread)
        for pending in recovered.pending.values():
            await self.pump.redeliver(pending)

    async def _boot(self) -> None:
        """Tell the organism's own thread that everybody is registered."""
        root = self.pump.threads.open_root(new_thread_id(), SYSTEM)
        self._log.opened(root)
        boot = etree.Element(f"{{{CORE_NAMESPACE}}}boot", nsmap={None: CORE_NAMESPACE})
        xml = build_envelope(CORE, SYSTEM, root.id, boot)
        self._log.event("message", thread=root.id, sender=CORE, to=SYSTEM, xml=xml)
        self.pump.commit()

    async def post(self, message: bytes, principal: Principal | str = LOCAL) -> Receipt:
        """Take an envelope; it is in the journal when this returns.

        A message that is refused is answered by a `<huh>`, which is an event as any reply is.

        Args:
            message: The bytes of a `<message>`.
            principal: Who sends it, as established by the caller of this function.

        Raises:
            OrganismClosedError: The organism does not run.
            TypeError: The message is not bytes.
            JournalError: The journal cannot be written; the message is not taken.
        """
        self._check_message(message)
        seq = self._log.seq
        state = await self.pump.post(message, Principal.of(principal))
        self._check_running()
        await state.call.wait_accepted()
        return Receipt(state.thread_id, seq)

    async def call(
        self, message: bytes, principal: Principal | str = LOCAL, *, timeout: float = 60.0
    ) -> list[bytes]:
        """Post an envelope, and wait until nothing that follows from it is under way.

        Args:
            message: The bytes of a `<message>`.
            principal: Who sends it, as established by the caller of this function.
            timeout: Seconds to wait.

        Returns:
            The canonical envelopes that came back to the principal, in their order.

        Raises:
            CallTimeoutError: Something is still under way.
            OrganismClosedError: The organism does not run, or ended meanwhile.
            TypeError: The message is not bytes.
            JournalError: The journal cannot be written; the message is not taken.
        """
        self._check_message(message)
        state = await self.pump.post(message, Principal.of(principal))
        self._check_running()
        call = state.call
        self._calls.add(call)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_calls())
        try:
            await call.wait_settled(timeout)
        except TimeoutError:
            raise CallTimeoutError(state.thread_id, call.replies) from None
        finally:
            self._calls.discard(call)
        return call.replies

    async def _watch_calls(self) -> None:
        """Look at the deadlines of calls while there are any.

        A timer for each would take a tenth of the time of a call that a worker answers.
        """
        loop = asyncio.get_running_loop()
        while self._calls:
            await asyncio.sleep(DEADLINE_SECONDS)
            for call in [*self._calls]:
                call.check_deadline(loop.time())
        self._watching = None

    async def ask(
        self,
        name: str,
        payload: object,
        principal: Principal | str = LOCAL,
        *,
        thread: str | None = None,
        timeout: float = 60.0,
    ) -> Reply:
        """Send a payload to a listener, and return the last of what comes back.

        Args:
            name: The listener's name.
            payload: An instance of its payload class, or of one with the same fields.
            principal: Who asks.
            thread: The thread to go on with; `None` begins a new one.
            timeout: Seconds to wait.

        Returns:
            The tag and the XML of the answer; the tag is `huh` where the pump gives it.

        Raises:
            KeyError: There is no listener of that name that takes a class.
            PayloadError: The payload has no XML form that the listener takes.
            NoReplyError: Nothing came back.
            CallTimeoutError: Something is still under way.
            OrganismClosedError: The organism does not run, or ended meanwhile.
            JournalError: The journal cannot be written; the message is not taken.
        """
        listener = self._registry.get(name)
        codec = None if listener is None else listener.codecs[0]
        if codec is None:
            raise KeyError(name)
        sender = Principal.of(principal)
        message = wrap(canonical(codec.encode(to_plain(payload))), sender.name, thread)
        replies = await self.call(message, sender, timeout=timeout)
        if not replies:
            raise NoReplyError(f"nothing came back from {name}: the log says why")
        answer = open_envelope(replies[-1], MessageLimits(size=sys.maxsize)).payload
        return Reply(tag=etree.QName(answer).localname, xml=canonical(answer).decode())

    def _check_running(self) -> None:
        if not self._running:
            raise OrganismClosedError("the organism does not run: use it in an `async with`")

    def _check_message(self, message: object) -> None:
        self._check_running()
        if not isinstance(message, bytes):
            kind = type(message).__name__
            raise TypeError(f"a message is an envelope in bytes, not a {kind}: wrap() makes one")

    def listen(
        self,
        thread: str | None = None,
        after_seq: int | None = 0,
        principal: Principal | str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Return events as they happen, after those that have happened already.

        A subscriber that is too slow gets a `gap`: the events before its `seq` are to be had by
        listening again. A `gap` among those that have happened is for good: the journal has them
        no more.

        Args:
            thread: The thread whose events are wanted; `None` for all.
            after_seq: The number of the last event that is known; `None` for those from now on.
            principal: Whose events are wanted; `None` for everybody's.
        """
        after = self._log.seq if after_seq is None else after_seq
        name = None if principal is None else Principal.of(principal).name
        size = self.spec.limits.subscriber_events
        return listen(self._log, self._bus, size, Wanted(thread, name), after)

    def history(
        self, thread: str, principal: Principal | str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Return the messages of a thread, oldest first; those of threads that ended, too.

        A `gap` comes first where the journal has not all events any more.

        Args:
            thread: The UUID of the thread.
            principal: Whose messages are wanted; `None` for everybody's.
        """
        name = None if principal is None else Principal.of(principal).name
        return history(self._log, Wanted(thread, name))

    def describe(self, name: str) -> Capability:
        """Return what callers of a listener need to know.

        Raises:
            KeyError: There is no listener of that name.
        """
        listener = self._registry.get(name)
        if listener is None:
            raise KeyError(name)
        return capability_of(listener)

    def catalog(self, principal: Principal | str = LOCAL) -> list[Capability]:
        """Return the listeners that a principal may call."""
        listeners = allowed_listeners(self._registry, Principal.of(principal))
        return [capability_of(listener) for listener in listeners]

    def peers(self, name: str) -> list[Capability]:
        """Return what a listener may call, groups as one, for the prompt of a model.

        Raises:
            KeyError: There is no listener of that name.
        """
        listener = self._registry.get(name)
        if listener is None:
            raise KeyError(name)
        found = [self._registry.named(each) for each in listener.peers]
        return [
            peer_capability(name, each)
            for name, each in zip(listener.peers, found, strict=True)
            if each
        ]

    def threads(self) -> list[ThreadInfo]:
        """Return the threads that are alive."""
        return [ThreadInfo(thread.id, thread.path) for thread in self.pump.threads]

    def close_thread(self, thread: str, principal: Principal | str = LOCAL) -> bool:
        """End a conversation and frees its threads.

        Returns:
            Whether there was such a conversation of the principal.
        """
        found = self.pump.threads.get(thread)
        if found is None or found.parent is not None or found.name != Principal.of(principal).name:
            return False
        self.pump.close(found)
        self.pump.commit()
        return True

    def tokens_left(self, thread: str) -> int | None:
        """Return the tokens that a listener may still use in a thread; `None` for no limit."""
        found = self._thread(thread)
        listener = self._registry.get(found.name)
        if listener is None or listener.tokens is None:
            return None
        return max(0, listener.tokens - found.tokens)

    def record_tokens(self, thread: str, tokens: int) -> None:
        """Book tokens to a thread.

        Raises:
            KeyError: There is no such thread.
        """
        self.pump.record_tokens(self._thread(thread), tokens)

    def _thread(self, id: str) -> Thread:  # noqa: A002 - the thread's word for it
        thread = self.pump.threads.get(id)
        if thread is None:
            raise KeyError(id)
        return thread

    def graph(self, format: str = "mermaid", team: str | None = None) -> str:  # noqa: A002 - the protocol's word
        """Draw the organism.

        Args:
            format: `mermaid`, `graphviz` or `json`.
            team: A listener or a prefix of names, to draw only what it reaches.

        Raises:
            ValueError: There is no such format.
        """
        graph = graph_of(self.spec.organism.name, self._registry, self._gateways)
        return draw(graph if team is None else graph.team(team), format)

    def status(self) -> dict[str, Any]:
        """Return facts about the organism, as JSON has them."""
        return {
            "name": self.spec.organism.name,
            "running": self._running,
            "listeners": len(self._registry),
            "threads": len(self.pump.threads),
            "handlers_running": self.pump.running,
            "last_seq": self._log.seq,
            "isolation": self._handlers.report().lines(),
        }

    async def wait_idle(self) -> None:
        """Wait until nothing is under way."""
        await self.pump.wait_idle()

    def security(self, principal: str, detail: str) -> None:
        """Record a security event that a gateway saw."""
        logger.warning("%s: %s", principal, detail)
        self._log.event("security", sender=principal, detail=detail)
        self.pump.commit()

    async def register(self, spec: ListenerSpec) -> Capability:
        """Add a listener while messages flow.

        Raises:
            RegistrationError: It cannot be registered; nothing has changed.
        """
        async with self._changes:
            (listener,) = await self._registrar.make([spec])
            self._registry.add([listener])
            self._registrar.write_schemas([listener])
        self._tell_state(listener, "registered")
        self.pump.commit()
        return capability_of(listener)

    async def unregister(self, name: str) -> None:
        """Remove a listener; its threads stay, and messages for it lead nowhere.

        Raises:
            KeyError: There is no listener of that name.
        """
        async with self._changes:
            listener = self._registry.remove(name)
            await self._handlers.unregister(name)
        self._tell_state(listener, "unregistered")
        self.pump.commit()

    def add_in_process(self, listener: InProcessListener) -> None:
        """Add a listener that runs in the pump, before the start or after it.

        Raises:
            RegistrationError: Its name or root tag is taken.
        """
        if not self._running:
            self._in_process.append(listener)
            return
        made = self._registrar.make_in_process(listener)
        self._registry.add([made])
        self._tell_state(made, "registered")
        self.pump.commit()

    def remove_in_process(self, name: str) -> None:
        """Remove a listener that runs in the pump.

        Raises:
            KeyError: There is none of that name.
        """
        listener = self._registry.remove(name)
        self._gateways.pop(name, None)
        self._tell_state(listener, "unregistered")
        self.pump.commit()

    def gateways(self) -> list[GatewaySpec]:
        """Return the other organisms, those that only call this one included."""
        passive = {each.name: each for each in self.spec.gateways if each.remote_url is None}
        return [*(passive | self._gateways).values()]

    def add_gateway(self, gateway: GatewaySpec, listener: InProcessListener) -> None:
        """Add another organism, which is called through a listener of its name."""
        self.add_in_process(listener)
        self._gateways[gateway.name] = gateway
