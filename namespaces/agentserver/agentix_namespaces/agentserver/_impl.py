"""The impls: each sends one request to the pump of the organism that runs."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from . import Capability, Event, Message, OrganismInfo, OrganismSpec, Receipt, ThreadInfo, _pump


async def start(config: OrganismSpec) -> OrganismInfo:
    """Start a pump and asks it what runs."""
    await _pump.PUMPS.start(config.yaml, config.files, config.directory)
    return OrganismInfo(**await _pump.PUMPS.one("info"))


async def grant(principal: str, roots: list[str] | None = None) -> str:
    """Ask for `grant`."""
    return str(await _pump.PUMPS.one("grant", principal=principal, roots=roots))


async def revoke(principal: str) -> None:
    """Ask for `revoke`."""
    await _pump.PUMPS.one("revoke", principal=principal)


async def post(message: str, thread: str | None = None, token: str | None = None) -> Receipt:
    """Ask for `post`."""
    return Receipt(**await _pump.PUMPS.one("post", token, message=message, thread=thread))


async def call(
    message: str, timeout_s: float = 60.0, thread: str | None = None, token: str | None = None
) -> list[Message]:
    """Ask for `call`."""
    request = {"message": message, "thread": thread, "seconds": timeout_s}
    async with aclosing(_pump.PUMPS.many("call", token, **request)) as replies:
        return [Message(**reply) async for reply in replies]


async def listen(
    thread: str | None = None, after_seq: int = 0, token: str | None = None
) -> AsyncIterator[Event]:
    """Ask for `listen`, until the caller goes."""
    request = {"thread": thread, "after_seq": after_seq}
    async with aclosing(_pump.PUMPS.many("listen", token, **request)) as events:
        async for event in events:
            yield Event(**event)


async def describe(capability: str, token: str | None = None) -> Capability:
    """Ask for `describe`."""
    return Capability(**await _pump.PUMPS.one("describe", token, capability=capability))


async def catalog(token: str | None = None) -> list[Capability]:
    """Ask for `catalog`."""
    async with aclosing(_pump.PUMPS.many("catalog", token)) as found:
        return [Capability(**each) async for each in found]


async def threads(token: str | None = None) -> list[ThreadInfo]:
    """Ask for `threads`."""
    async with aclosing(_pump.PUMPS.many("threads", token)) as found:
        return [ThreadInfo(**each) async for each in found]


async def history(thread: str, token: str | None = None) -> AsyncIterator[Message]:
    """Ask for `history`."""
    async with aclosing(_pump.PUMPS.many("history", token, thread=thread)) as messages:
        async for message in messages:
            yield Message(**message)


async def privileged(signed_xml: str) -> str:
    """Ask for `privileged`."""
    return str(await _pump.PUMPS.one("privileged", signed=signed_xml))


async def stop() -> None:
    """Close the pump's standard input and wait for its end."""
    await _pump.PUMPS.stop()
