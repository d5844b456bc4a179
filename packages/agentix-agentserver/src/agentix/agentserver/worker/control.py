"""Control: what the pump and the zygote say to each other, in messages of one socket."""

from __future__ import annotations

import struct

__all__ = ["BORN", "ENDED", "FORK", "KILL", "ORDER", "READY", "STATE"]

ORDER = struct.Struct(">BQ")
"""The pump to the zygote: what to do, and the number of the worker."""

FORK = 1
"""Fork a worker. The worker's end of its socket, and a pipe for its output, come with it."""

KILL = 2
"""Kill a worker."""

STATE = struct.Struct(">BQi")
"""The zygote to the pump: what happened, the number of the worker, and its wait status."""

READY = 3
"""The zygote takes orders. The report of what holds its workers follows, as JSON."""

ENDED = 4
"""A worker has ended."""

BORN = 5
"""A worker is forked; the status is its process id, as the zygote sees it."""
