"""An echo by a bare process: what the kernel takes to switch there and back."""

import os
import socket
import time

__all__ = ["echo_times"]


def echo_times(count: int, size: int) -> list[float]:
    """Measures echoes over a pair of sockets, one at a time.

    Args:
        count: How many.
        size: How many bytes each.

    Returns:
        Their times in microseconds.
    """
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        _echo(far)
    far.close()
    try:
        return [_timed(near, b"x" * size) for _ in range(count)]
    finally:
        near.close()
        os.waitpid(child, 0)


def _timed(near: socket.socket, data: bytes) -> float:
    started = time.perf_counter()
    near.sendall(data)
    near.recv(len(data))
    return (time.perf_counter() - started) * 1e6


def _echo(far: socket.socket) -> None:
    while data := far.recv(65536):
        far.sendall(data)
    os._exit(0)
