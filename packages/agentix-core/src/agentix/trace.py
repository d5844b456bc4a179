"""The W3C trace context of the call under way, for callers and impls alike."""

from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["TraceContext", "current_trace"]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The two headers of https://www.w3.org/TR/trace-context/, unparsed."""

    traceparent: str
    """Identifies the request and its parent span."""
    tracestate: str | None = None
    """The vendors' list of key-value pairs."""

    def headers(self) -> dict[str, str]:
        """Gives the context as HTTP headers."""
        headers = {"traceparent": self.traceparent}
        if self.tracestate is not None:
            headers["tracestate"] = self.tracestate
        return headers


current_trace: ContextVar[TraceContext | None] = ContextVar("agentix_current_trace", default=None)
"""Set by the runtime around each impl; read by the client when it sends a call."""
