"""`GET /namespaces`: what is mounted and, where it is asked for, what can be called."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from agentix.dispatch import BrokenNamespaceError, Dispatcher, MountedPackage, Registry
from agentix.errors import UsageError
from agentix.runtime.calls import describe
from agentix.runtime.http import json_response
from agentix.threads import in_own_thread
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
        self._describing: dict[str, asyncio.Future[NamespaceSchemas]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        entries: list[MountedNamespace] = []
        if _wants_schemas(scope):
            described = (self._described(mounted) for mounted in self._registry)
            entries += await asyncio.gather(*described)
        else:
            entries += map(_listed, self._registry)
        await json_response({"namespaces": entries})(scope, receive, send)

    async def _described(self, mounted: MountedPackage) -> "DescribedNamespace":
        """Import a namespace and describe it; its entry says what keeps it from either."""
        from agentix.schema import DescribedNamespace  # the runtime starts without

        schemas = None
        failure: BaseException | None = None
        try:
            dispatcher = await self._registry.get_or_load(mounted.manifest.package)
            schemas = await asyncio.shield(self._schemas(mounted.manifest.package, dispatcher))
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

    def _schemas(self, package: str, dispatcher: Dispatcher) -> "asyncio.Future[NamespaceSchemas]":
        """Describe a namespace, once for all who ask meanwhile: its types run code of their own."""
        if package not in self._describing:
            work = in_own_thread(f"agentix-describe {package}", partial(_schemas, dispatcher))
            work.add_done_callback(lambda _: self._describing.pop(package))
            self._describing[package] = work
        return self._describing[package]


def _wants_schemas(scope: Scope) -> bool:
    """Read the query.

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
