"""Preview1: the 46 functions of WASI preview 1 on the state of one process."""

from agentix.oanix.wasi.files import FileCalls
from agentix.oanix.wasi.paths import PathCalls
from agentix.oanix.wasi.polling import PollCalls

__all__ = ["Preview1"]


class Preview1(FileCalls, PathCalls, PollCalls):
    """The functions by the names that programs import, with the state that they work on."""
