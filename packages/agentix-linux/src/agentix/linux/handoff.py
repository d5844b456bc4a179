"""Hands a listening socket from its maker to the process that is to serve on it.

The maker binds the socket where only it can reach it, and waits at a second socket, the handoff,
for the server, which may live in another mount namespace and see no more than a read-only mount of
the handoff's directory: connecting writes nothing. Whatever happens in that directory later, the
listening socket stays what and where it was made.
"""

import asyncio
import os
import socket
from pathlib import Path

from agentix.linux.control import SOCKET, listen_unix

__all__ = ["INNER_SOCKET", "Handoff", "receive_listener"]

INNER_SOCKET = "runtime"
"""The name of the listening socket in the directory of its handoff, for programs beside the server
that are to call it: a link to the one inode, which nobody changes through a read-only mount."""

MESSAGE = b"listener"

RECEIVE_TIMEOUT = 10.0
"""Seconds that a server waits for its listening socket."""


class Handoff:
    """The maker's end.

    Args:
        directory: A new directory is made here, all that the server has to see.
        listener: The listening socket to hand over; closed here once it is handed over, or where
            the handoff cannot be made.

    Raises:
        OSError: The directory or its socket cannot be made.
    """

    def __init__(self, directory: Path, listener: socket.socket) -> None:
        self.directory = directory
        self.done = False
        """Whether the listening socket was handed over."""
        self._listener = listener
        try:
            directory.mkdir()
            directory.chmod(0o755)
            # The server may be another user, as root of a user namespace is.
            self._meeting = listen_unix(directory / SOCKET, 0o666)
            os.link(listener.getsockname(), directory / INNER_SOCKET)
        except BaseException:
            listener.close()
            raise
        self._meeting.setblocking(False)

    async def serve(self) -> None:
        """Wait for the server, and hand the listening socket over, once.

        Raises:
            OSError: The server left meanwhile.
        """
        loop = asyncio.get_running_loop()
        server, _ = await loop.sock_accept(self._meeting)
        with server:
            socket.send_fds(server, [MESSAGE], [self._listener.fileno()])
        self.done = True
        self.close()

    def close(self) -> None:
        """Let go of both sockets; the listening one lives on in the server only."""
        (self.directory / SOCKET).unlink(missing_ok=True)
        self._meeting.close()
        self._listener.close()


def receive_listener(path: Path) -> socket.socket:
    """Collect the listening socket that waits at a handoff: the server's end.

    Args:
        path: The socket of the handoff.

    Raises:
        ConnectionError: Nobody waits there, or it hands nothing over in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(RECEIVE_TIMEOUT)
        try:
            connection.connect(str(path))
            _message, descriptors, _flags, _address = socket.recv_fds(connection, len(MESSAGE), 1)
        except OSError as error:
            raise ConnectionError(f"no listening socket came from {path}: {error}") from error
    if not descriptors:
        raise ConnectionError(f"no listening socket came from {path}: it closed")
    return socket.socket(fileno=descriptors[0])
