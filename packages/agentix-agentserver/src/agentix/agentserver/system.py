"""The system pipeline: meta queries, and what becomes of messages that go no further."""

import logging
from collections.abc import Sequence

from agentix.agentserver.emitter import CORE, Emitter, attempt_of
from agentix.agentserver.ledger import Ledger
from agentix.agentserver.meta import Meta
from agentix.agentserver.pipeline import Failure, MessageState, Step
from agentix.agentserver.xml.huh import CannedText, huh

__all__ = ["System"]

logger = logging.getLogger(__name__)


class System:
    """The steps of the permanent pipeline that needs no listener."""

    def __init__(self, ledger: Ledger, emitter: Emitter, meta: Meta) -> None:
        self._ledger = ledger
        self._emitter = emitter
        self._meta = meta

    def steps(self) -> Sequence[Step]:
        """Gives the steps in their order."""
        return (self.answer_meta, self.record_failure, self.answer_huh)

    async def answer_meta(self, state: MessageState) -> None:
        """Answers a query about capabilities, where the organism's settings allow it."""
        if not state.system or state.error is not None or state.principal is None:
            return
        assert state.payload_tree is not None
        answer = self._meta.answer(state.principal, state.payload_tree)
        if answer is None:
            state.error = Failure(CannedText.INVALID_PAYLOAD, "a query that is not allowed")
            return
        await self._emitter.reply(state.thread, answer, CORE, state.exchange)

    async def record_failure(self, state: MessageState) -> None:
        """Logs why a message goes no further; the reason never travels."""
        if state.error is None:
            return
        level = logging.WARNING if state.error.security else logging.INFO
        detail = state.error.detail
        logger.log(level, "a message of %s goes no further: %s", state.from_id, detail)
        if state.error.security:
            self._ledger.event(
                "security", thread=state.thread_id, sender=state.from_id, detail=detail
            )

    async def answer_huh(self, state: MessageState) -> None:
        """Tells the sender, in canned words; about a `<huh>` nobody is told."""
        if state.error is None or state.error.text is None or state.is_huh:
            return
        attempt = state.raw_bytes if state.attempt is None else state.attempt
        element = huh(state.error.text, attempt_of(attempt))
        receiver = state.emitter or state.thread
        if receiver is not None:
            await self._emitter.reply(receiver, element, CORE, state.exchange, is_huh=True)
        elif state.principal is not None:
            await self._emitter.tell(state.principal.name, element, state.exchange)
