"""`GET /namespaces`: what is mounted and, where it is asked for, what can be called."""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from agentix.dispatch import BrokenNamespaceError, Dispatcher, MountedPackage, Registry
from agentix.errors import UsageError
from agentix.runtime.calls import describe
from agentix.runtime.http import json_response
from agentix.wire import MountedNamespace

if TYPE_CHECKING:
    from agentix.schema import DescribedNamespace, NamespaceSchemas

__all__ = ["NamespacesEndpoint"]


class NamespacesEndpoint:
    """The ASGI application behind `GET /namespaces`.

    Args:
        registry: What was found at boot.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        entries: list[MountedNamespace] = []
        if _wants_schemas(scope):
            described = (self._described(mounted) for mounted in self._registry)
            entries += await asyncio.gather(*described)
        else:
            entries += map(_listed, self._registry)
        await json_response({"namespaces": entries})(scope, receive, send)

    async def _described(self, mounted: MountedPackage) -> "DescribedNamespace":
        """Imports a namespace and describes it; what keeps it from either is told in its entry."""
        from agentix.schema import DescribedNamespace  # the runtime starts without

        schemas = None
        failure: BaseException | None = None
        try:
            dispatcher = await self._registry.get_or_load(mounted.manifest.package)
            schemas = await asyncio.to_thread(_schemas, dispatcher)
        except BrokenNamespaceError:
            failure = mounted.error
        except Exception as error:  # a type describes itself by code of its own
            failure = error
        return DescribedNamespace(
            manifest=mounted.manifest,
            loaded=mounted.dispatcher is not None,
            error=None if failure is None else _summary(failure),
            schemas=schemas,
        )


def _wants_schemas(scope: Scope) -> bool:
    """Reads the query.

    Raises:
        UsageError: Its value is neither 0 nor 1.
    """
    text = str(scope["query_string"], "latin-1")
    query = dict(parse_qsl(text, keep_blank_values=True))
    value = query.get("schemas", "0")
    if value not in ("0", "1"):
        raise UsageError(f"schemas={value!r} is neither 0 nor 1")
    return value == "1"


def _schemas(dispatcher: Dispatcher) -> "NamespaceSchemas":
    from agentix.description import describe_functions  # the runtime starts without

    return describe_functions(dispatcher)


def _listed(mounted: MountedPackage) -> MountedNamespace:
    return MountedNamespace(
        manifest=mounted.manifest,
        loaded=mounted.dispatcher is not None,
        error=None if mounted.error is None else _summary(mounted.error),
    )


def _summary(error: BaseException) -> str:
    told = describe(error)
    return f"{told.type}: {told.message}"
