"""`POST /_remote`: one typed call, answered whole or as a stream (protocol: Wire)."""

import asyncio

from starlette.types import Receive, Scope, Send

from agentix.dispatch import Binding, Registry
from agentix.runtime.calls import Calls, describe, encode_error, is_cancelled
from agentix.runtime.departure import Departure
from agentix.runtime.http import problem, read_body, send_whole
from agentix.runtime.stream import stream_items
from agentix.stub import Arguments
from agentix.trace import TraceContext, current_trace
from agentix.wire import RemoteError, RemoteRequest

__all__ = ["RemoteEndpoint"]


class RemoteEndpoint:
    """The ASGI application behind `/_remote`.

    Args:
        registry: The namespaces that can be called.
        calls: What runs their impls.
        max_body: The largest request body in bytes.
    """

    def __init__(self, registry: Registry, calls: Calls, max_body: int) -> None:
        self._registry = registry
        self._calls = calls
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        request = RemoteRequest.model_validate_json(await read_body(receive, self._max_body))
        trace = _trace_of(scope)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in _items(trace)]
        if self._registry.get(request.package) is None:
            reason = f"no namespace {request.package} is mounted"
            return await problem(404, reason, dict(_items(trace)))(scope, receive, send)
        current_trace.set(trace)
        with Departure(receive) as departure:
            answer = await self._call(request)
        if departure.happened:
            return None
        if isinstance(answer, bytes):
            return await send_whole(send, answer, b"application/json", headers)
        return await stream_items(*answer, headers, receive, send)

    async def _call(self, request: RemoteRequest) -> bytes | tuple[Binding, Arguments]:
        """Return the whole answer of a call, or what is to be streamed."""
        try:
            dispatcher = await self._registry.get_or_load(request.package)
            binding = dispatcher.get(request.method)
            if binding is None:
                return _failure(_method_not_found(request))
            arguments = binding.stub.decode_arguments(request.args, request.kwargs)
            if binding.stub.streams:
                return binding, arguments
            value = await self._calls.run(binding, arguments)
            return b'{"ok":true,"value":' + binding.stub.result.encode(value) + b"}"
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return _failure(describe(error))
        except BaseException as error:  # SystemExit too: it would end the event loop
            return _failure(describe(error))


def _failure(error: RemoteError) -> bytes:
    return b'{"ok":false,"error":' + encode_error(error) + b"}"


def _method_not_found(request: RemoteRequest) -> RemoteError:
    message = f"{request.package} has no function {request.method!r}"
    return RemoteError(type="MethodNotFound", message=message)


def _trace_of(scope: Scope) -> TraceContext | None:
    parent = state = None
    for name, value in scope["headers"]:
        if name == b"traceparent":
            parent = value.decode("latin-1")
        elif name == b"tracestate":
            # Several lines are one list (RFC 9110, 5.3).
            state = ",".join(filter(None, [state, value.decode("latin-1")]))
    return None if parent is None else TraceContext(parent, state)


def _items(trace: TraceContext | None) -> list[tuple[str, str]]:
    return [] if trace is None else list(trace.headers().items())
