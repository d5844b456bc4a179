"""Group commits: what happened is written first, and only then has effects.

A message that comes alone is written at once. What comes in the same turn of the loop after it, and
while messages keep coming, is written together, a turn at a time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agentix.agentserver.errors import JournalError
from agentix.agentserver.log import EventLog
from agentix.agentserver.state import CALL, CallEvent, CallState

__all__ = ["CommitGroup", "GroupCommit", "PendingCall"]


class PendingCall:
    """All that follows from one external message, and what came back to its sender."""

    __slots__ = ("_deadline", "_error", "_waiter", "group", "outstanding", "replies", "state")

    def __init__(self) -> None:
        self.state = CallState.OPEN
        """How far it is."""
        self.outstanding = 1
        """How many things are under way; at first it is the message itself."""
        self.replies: list[bytes] = []
        """The envelopes that left the organism for the sender."""
        self.group: CommitGroup | None = None
        """What its message is written with."""
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0

    def written(self) -> None:
        """Take note that the message is written."""
        self.state = CALL[self.state][CallEvent.WRITTEN]

    def settled(self) -> None:
        """Tell who waits that all that came of the message is written."""
        self.state = CALL[self.state][CallEvent.SETTLED]
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Tell who waits that there will be no more."""
        self.state = CALL[self.state][CallEvent.FAIL]
        self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def abandon(self, error: Exception) -> None:
        """Tell who waits that the end of it is not waited for any more."""
        if self.state not in (CallState.SETTLED, CallState.ENDED):
            self.fail(error)

    async def wait_accepted(self) -> None:
        """Wait until its message is written.

        Raises:
            JournalError: It cannot be.
        """
        assert self.group is not None
        await self.group.wait()

    async def wait_settled(self, seconds: float) -> None:
        """Wait until nothing is under way; one caller does.

        Raises:
            JournalError: What follows from it cannot be written.
            OrganismClosedError: The organism has ended.
            TimeoutError: `check_deadline` finds that it takes longer than so many seconds.
        """
        if self._error is not None:
            raise self._error
        if self.state in (CallState.SETTLED, CallState.ENDED):
            return
        if seconds <= 0:
            raise TimeoutError
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        self._waiter = loop.create_future()
        await self._waiter

    def check_deadline(self, now: float) -> None:
        """End the wait where it has taken too long, by the clock of the loop."""
        if self._waiter is not None and self._deadline <= now and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())


class CommitGroup:
    """What is written as one frame: calls that it acknowledges or ends, and who waits for it."""

    __slots__ = ("_error", "_event", "accepted", "ended")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._error: JournalError | None = None
        self.accepted: list[PendingCall] = []
        """The calls whose messages it has."""
        self.ended: list[PendingCall] = []
        """The calls of which nothing is under way once it is written."""

    async def wait(self) -> None:
        """Wait until it is written.

        Raises:
            JournalError: It cannot be.
        """
        if not self._event.is_set():
            await self._event.wait()
        if self._error is not None:
            raise self._error

    def written(self) -> None:
        """Let what it has be seen by callers."""
        for call in self.ended:
            call.settled()

    def release(self) -> None:
        """Let what it has take effect, now that it survives what it is to survive."""
        for call in self.accepted:
            call.written()
        self._event.set()

    def fail(self, error: JournalError, *calls: PendingCall) -> None:
        """Tell calls, and all who wait, that it cannot be written."""
        for call in (*self.accepted, *calls):
            call.fail(error)
        self._error = error
        self._event.set()


class GroupCommit:
    """Writes what was noted in a log, in groups.

    Args:
        log: What writes.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._gathering = False
        self._broken: JournalError | None = None
        self._syncs: set[asyncio.Task[None]] = set()
        self.group = CommitGroup()
        """The group of what is noted now."""

    def soon(self) -> None:
        """Write everything in this turn of the loop or in the next."""
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_soon(self._turn)
            self._write_or_fail()

    def _turn(self) -> None:
        if self.group.accepted or self.group.ended or self._log.waiting:
            asyncio.get_running_loop().call_soon(self._turn)
            self._write_or_fail()
        else:
            self._gathering = False

    def _write_or_fail(self) -> None:
        with suppress(JournalError):  # those who wait for it were told
            self.write()

    def write(self) -> None:
        """Write everything now.

        Raises:
            JournalError: It cannot be written.
        """
        group, self.group = self.group, CommitGroup()
        try:
            self._commit()
        except JournalError as error:
            group.fail(error, *group.ended)
            raise
        group.written()
        if self._log.on_disk:
            sync = asyncio.get_running_loop().create_task(self._sync(group))
            self._syncs.add(sync)
            sync.add_done_callback(self._syncs.discard)
        else:
            group.release()

    def _commit(self) -> None:
        """Write, unless that failed before: what was lost then may be of any message since."""
        try:
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            self._log.commit()
        except JournalError as error:
            self._broken = error
            self._log.discard()
            raise

    async def _sync(self, group: CommitGroup) -> None:
        try:
            await self._log.synced()
        except JournalError as error:
            self._broken = error
            group.fail(error)
        else:
            group.release()

    async def aclose(self) -> None:
        """Write and acknowledge what is left."""
        self._write_or_fail()
        await asyncio.gather(*self._syncs)
