"""The runtime as an ASGI application, built from its settings."""

import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentix.errors import UsageError
from agentix.runtime.auth import BearerAuth
from agentix.runtime.body import WholeRequests
from agentix.runtime.calls import Calls
from agentix.runtime.confined import ConfinedDirectory
from agentix.runtime.discovery import RUNTIME_MOUNT, discover
from agentix.runtime.download import DownloadEndpoint
from agentix.runtime.environment import CommandEnvironment, User
from agentix.runtime.execute import ExecEndpoint
from agentix.runtime.http import (
    BodyTooLargeError,
    ClientGoneError,
    first_reason,
    json_response,
    problem,
)
from agentix.runtime.namespaces import NamespacesEndpoint
from agentix.runtime.origin import OriginCheck
from agentix.runtime.remote import RemoteEndpoint
from agentix.runtime.settings import Settings
from agentix.runtime.threads import FileThreads
from agentix.runtime.upload import UploadEndpoint
from agentix.wire import Health

__all__ = ["create_app"]

logger = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    on_ready: Callable[[], None] = lambda: None,
    most_descriptors: int | None = None,
) -> ASGIApp:
    """Build the runtime: find the mounted namespaces and wire up the endpoints.

    Args:
        settings: What the runtime is told from outside.
        on_ready: Called once the application has started.
        most_descriptors: The soft limit on descriptors of commands; the runtime's own where it is
            `None`.

    Raises:
        UsageError: The user that shall run commands does not exist.
    """
    registry = discover(settings.mount_root)
    user = _command_user(settings.exec_user)
    files = ConfinedDirectory(settings.upload_root, user)
    _prepare(files)
    execute = ExecEndpoint(
        CommandEnvironment.of_process(registry, user),
        user,
        settings.mount_root / RUNTIME_MOUNT / "entry" / "bin" / "sh",
        settings.max_output,
        settings.max_body,
        most_descriptors,
    )
    calls, threads = Calls(), FileThreads()
    app = Starlette(
        routes=[
            Route("/_remote", RemoteEndpoint(registry, calls, settings.max_body), methods=["POST"]),
            Route("/exec", execute, methods=["POST"]),
            Route("/upload", UploadEndpoint(files, threads), methods=["POST"]),
            Route("/download", DownloadEndpoint(files, threads), methods=["GET"]),
            Route("/health", _health(calls), methods=["GET"]),
            Route("/namespaces", NamespacesEndpoint(registry), methods=["GET"]),
        ],
        exception_handlers={
            HTTPException: _http_problem,
            ClientGoneError: _gone,
            ClientDisconnect: _gone,
            BodyTooLargeError: _too_large,
            ValidationError: _malformed,
            UsageError: _refused,
            OSError: _failed,
        },
        lifespan=_lifespan(on_ready),
    )
    app.router.redirect_slashes = False
    if settings.token is None:
        return WholeRequests(OriginCheck(app))
    return WholeRequests(BearerAuth(app, settings.token))


def _command_user(name: str | None) -> User | None:
    user = None if name is None else User.find(name)
    return None if user is None or user.uid == os.getuid() else user


def _prepare(files: ConfinedDirectory) -> None:
    try:
        files.prepare()
    except UsageError as error:
        logger.warning("uploads and downloads cannot work: %s", error)


def _lifespan(
    on_ready: Callable[[], None],
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        on_ready()
        yield

    return lifespan


def _health(calls: Calls) -> Callable[[Request], Awaitable[Response]]:
    async def health(request: Request) -> Response:
        return json_response(Health(calls=calls.running, abandoned=calls.abandoned))

    return health


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail, error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return problem(400, "the request broke off")


async def _too_large(request: Request, error: Exception) -> Response:
    return problem(413, str(error))


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    return problem(400, first_reason(error))


async def _refused(request: Request, error: Exception) -> Response:
    return problem(400, str(error))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer for the sandbox's files: a missing one and a full disk have a status of their own."""
    assert isinstance(error, OSError)
    status = {errno.ENOENT: 404, errno.ENOSPC: 507, errno.EDQUOT: 507}.get(error.errno or 0, 400)
    return problem(status, f"{error.filename}: {error.strerror}" if error.filename else str(error))
