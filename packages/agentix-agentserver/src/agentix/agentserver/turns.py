"""Turns: what happened is written first, and only then has effects; once for a turn of the loop."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from agentix.agentserver.exchange import Exchange
from agentix.agentserver.journal import JournalError
from agentix.agentserver.ledger import Ledger
from agentix.agentserver.scheduler import Delivery

__all__ = ["Turns"]


class Turns:
    """Holds back effects until what they follow from is written.

    A message that comes alone is written at once. What comes in the same turn of the loop after it,
    and while messages keep coming, is written together, a turn at a time.

    Args:
        ledger: What writes.
        begin: Gives a delivery to its handler.
        abandon: Ends a delivery that no handler may see.
    """

    def __init__(
        self,
        ledger: Ledger,
        begin: Callable[[Delivery], None],
        abandon: Callable[[Delivery], None],
    ) -> None:
        self._ledger = ledger
        self._begin = begin
        self._abandon = abandon
        self._gathering = False
        self._broken: JournalError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted: list[Exchange] = []
        """The exchanges whose messages are to be acknowledged."""
        self.starting: list[Delivery] = []
        """The deliveries that are to be given to their handlers."""
        self.ended: list[Exchange] = []
        """The exchanges of which nothing is under way."""

    def soon(self) -> None:
        """Has everything written in this turn of the loop or in the next."""
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_soon(self._turn)
            self._write_or_fail()

    def _turn(self) -> None:
        if self.accepted or self.starting or self.ended or self._ledger.waiting:
            asyncio.get_running_loop().call_soon(self._turn)
            self._write_or_fail()
        else:
            self._gathering = False

    def _write_or_fail(self) -> None:
        with suppress(JournalError):  # those who wait for it were told
            self.write()

    def write(self) -> None:
        """Writes everything now, and lets it have its effects.

        Raises:
            JournalError: It can not be written.
        """
        accepted, self.accepted = self.accepted, []
        starting, self.starting = self.starting, []
        ended, self.ended = self.ended, []
        try:
            self._commit()
        except JournalError as error:
            self._fail([*accepted, *ended], starting, error)
            raise
        for exchange in ended:
            exchange.end()
        if self._ledger.on_disk:
            self._follow(self._after_sync(accepted, starting))
        else:
            self._release(accepted, starting)

    def _commit(self) -> None:
        """Writes, unless that failed before: what was lost then may be of any message since."""
        try:
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            self._ledger.commit()
        except JournalError as error:
            self._broken = error
            self._ledger.discard()
            raise

    def _release(self, accepted: list[Exchange], starting: list[Delivery]) -> None:
        for exchange in accepted:
            exchange.written()
        for delivery in starting:
            self._begin(delivery)

    async def _after_sync(self, accepted: list[Exchange], starting: list[Delivery]) -> None:
        try:
            await self._ledger.synced()
        except JournalError as error:
            self._broken = error
            self._fail(accepted, starting, error)
            return
        self._release(accepted, starting)

    def _fail(
        self, exchanges: list[Exchange], starting: list[Delivery], error: JournalError
    ) -> None:
        """Tells who waits, and makes way for those behind, who are to be told, too."""
        for exchange in exchanges:
            exchange.fail(error)
        for delivery in starting:
            delivery.state.exchange.fail(error)
            self._abandon(delivery)

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Writes and acknowledges what is left."""
        self._write_or_fail()
        await asyncio.gather(*self._tasks)
