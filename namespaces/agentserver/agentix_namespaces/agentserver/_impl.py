"""The impls: each sends one request to the pump of the organism that runs."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from . import Capability, Event, Message, OrganismInfo, OrganismSpec, Receipt, ThreadInfo, _pump


async def start(config: OrganismSpec) -> OrganismInfo:
    """Starts a pump and asks it what runs."""
    await _pump.PUMPS.start(config.yaml, config.files, config.directory)
    return OrganismInfo(**await _pump.PUMPS.one("info"))


async def post(message: str, thread: str | None = None) -> Receipt:
    """Asks for `post`."""
    return Receipt(**await _pump.PUMPS.one("post", message=message, thread=thread))


async def call(message: str, timeout_s: float = 60.0, thread: str | None = None) -> list[Message]:
    """Asks for `call`."""
    request = {"message": message, "thread": thread, "seconds": timeout_s}
    async with aclosing(_pump.PUMPS.many("call", **request)) as replies:
        return [Message(**reply) async for reply in replies]


async def listen(thread: str | None = None, after_seq: int = 0) -> AsyncIterator[Event]:
    """Asks for `listen`, until the caller goes."""
    request = {"thread": thread, "after_seq": after_seq}
    async with aclosing(_pump.PUMPS.many("listen", **request)) as events:
        async for event in events:
            yield Event(**event)


async def describe(capability: str) -> Capability:
    """Asks for `describe`."""
    return Capability(**await _pump.PUMPS.one("describe", capability=capability))


async def threads() -> list[ThreadInfo]:
    """Asks for `threads`."""
    async with aclosing(_pump.PUMPS.many("threads")) as found:
        return [ThreadInfo(**each) async for each in found]


async def history(thread: str) -> AsyncIterator[Message]:
    """Asks for `history`."""
    async with aclosing(_pump.PUMPS.many("history", thread=thread)) as messages:
        async for message in messages:
            yield Message(**message)


async def privileged(signed_xml: str) -> str:
    """Asks for `privileged`."""
    return str(await _pump.PUMPS.one("privileged", signed=signed_xml))


async def stop() -> None:
    """Closes the pump's standard input and waits for its end."""
    await _pump.PUMPS.stop()
