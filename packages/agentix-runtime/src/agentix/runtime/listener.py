"""The socket that a runtime listens on: made here, or handed in by whoever started the runtime."""

import socket
from ipaddress import ip_address

from agentix.errors import UsageError
from agentix.linux.control import listen_unix
from agentix.linux.handoff import receive_listener
from agentix.runtime.settings import Settings

__all__ = ["listen", "url_of"]

BACKLOG = 4096
"""Connections that may wait to be accepted; a client beyond tries again after a second (tcp(7))."""


def listen(settings: Settings) -> socket.socket:
    """Open the socket that the settings name; connections wait there until they are served.

    Raises:
        OSError: The address cannot be used, or nobody hands a socket over.
        UsageError: The socket that was handed in does not listen, or is open to other machines
            while no token is needed.
    """
    if settings.bind_unix is not None:
        settings.bind_unix.unlink(missing_ok=True)
        return listen_unix(settings.bind_unix)
    if settings.bind_fd is not None:
        return _inherited(settings.bind_fd, settings)
    if settings.bind_handoff is not None:
        return _checked(receive_listener(settings.bind_handoff), settings)
    return _listen_tcp(settings.bind_host, settings.bind_port)


def _listen_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host: {error}") from error
    _tune(listener)
    return listener


def _tune(listener: socket.socket) -> None:
    """Set what accepted connections inherit; a host that died without a word is noticed."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _inherited(descriptor: int, settings: Settings) -> socket.socket:
    try:
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise UsageError(f"AGENTIX_BIND_FD={descriptor} is no socket: {error.strerror}") from error
    return _checked(listener, settings)


def _checked(listener: socket.socket, settings: Settings) -> socket.socket:
    """Take a socket that another process made, so that no command inherits it."""
    listener.set_inheritable(False)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise UsageError("the socket that was handed to the runtime does not listen")
    if listener.family == socket.AF_UNIX:
        return listener
    host = listener.getsockname()[0]
    if settings.token is None and not ip_address(host).is_loopback:
        raise UsageError(f"refusing to listen on {host} without a token: set AGENTIX_TOKEN_FILE")
    _tune(listener)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL that a client reaches a listening socket by, as its maker named it."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"
