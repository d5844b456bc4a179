"""Streams the items of an asynchronous generator as NDJSON (protocol: Streaming returns)."""

import asyncio
from contextlib import aclosing

from starlette.types import Receive, Send

from agentix.dispatch import Binding
from agentix.runtime.calls import describe, encode_error, is_cancelled
from agentix.runtime.http import Headers
from agentix.runtime.outbox import Outbox, send_from
from agentix.stub import Arguments
from agentix.wire import NDJSON

__all__ = ["stream_items"]

HIGH_WATER = 16 * 1024
"""Bytes that may wait for the socket before the generator stalls."""


async def stream_items(
    binding: Binding, arguments: Arguments, headers: Headers, receive: Receive, send: Send
) -> None:
    """Answers with the items of a generator, and closes it when the client leaves.

    An item goes out as it is yielded; those that come while the socket is busy go out together,
    and the generator stalls while the client does not read.
    """
    outbox = Outbox(HIGH_WATER)
    head = [(b"content-type", NDJSON.encode()), *headers]
    await send_from(outbox, _produce(binding, arguments, outbox), head, receive, send)


async def _produce(binding: Binding, arguments: Arguments, outbox: Outbox) -> None:
    """Puts the items and exactly one last line: the end or an error."""
    try:
        await _put_items(binding, arguments, outbox)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        _put_error(outbox, error)
    except BaseException as error:  # SystemExit too: it would end the event loop
        _put_error(outbox, error)
    else:
        outbox.put(b'{"end":true}\n')


async def _put_items(binding: Binding, arguments: Arguments, outbox: Outbox) -> None:
    encode = binding.stub.result.encode_item
    async with aclosing(binding.impl(*arguments.args, **arguments.kwargs)) as items:
        async for item in items:
            outbox.put(b'{"item":%b}\n' % encode(item))
            if outbox.full:
                await outbox.drained()


def _put_error(outbox: Outbox, error: BaseException) -> None:
    outbox.put(b'{"error":%b}\n' % encode_error(describe(error)))
