"""Every error that OANIX raises, in one tree under `AgentixError`.

OanixError
├── NamespaceError          a mount, a path or a specification that makes no namespace
├── ModuleError             bytes that are not a module this kernel runs
│   └── UnknownImportError  a module asks for a function that no kernel offers
├── EngineError             the installed wasmtime is not one that OANIX runs with
├── ReplayError             a run differs from its recording
├── JobError                a job that cannot be submitted, found or changed
└── FsError                 a file operation failed; `code` is the WASI error number
    ├── NoSuchFileError, AlreadyExistsError, NotDirectoryError, NotAFileError
    ├── PermissionDeniedError, ReadOnlyError, NotCapableError
    └── NoSpaceError, QuotaError
"""

import errno
from enum import IntEnum

from agentix.errors import AgentixError

__all__ = [
    "AlreadyExistsError",
    "Code",
    "EngineError",
    "FsError",
    "JobError",
    "ModuleError",
    "NamespaceError",
    "NoSpaceError",
    "NoSuchFileError",
    "NotAFileError",
    "NotCapableError",
    "NotDirectoryError",
    "OanixError",
    "PermissionDeniedError",
    "QuotaError",
    "ReadOnlyError",
    "ReplayError",
    "UnknownImportError",
    "fs_error",
]


class Code(IntEnum):
    """The error numbers of WASI preview 1 (`errno` in wasi_snapshot_preview1.witx)."""

    SUCCESS = 0
    ACCES = 2
    AGAIN = 6
    BADF = 8
    BUSY = 10
    DQUOT = 19
    EXIST = 20
    FAULT = 21
    FBIG = 22
    ILSEQ = 25
    INTR = 27
    INVAL = 28
    IO = 29
    ISDIR = 31
    LOOP = 32
    MFILE = 33
    MLINK = 34
    NAMETOOLONG = 37
    NOENT = 44
    NOMEM = 48
    NOSPC = 51
    NOSYS = 52
    NOTDIR = 54
    NOTEMPTY = 55
    NOTSOCK = 57
    NOTSUP = 58
    OVERFLOW = 61
    PERM = 63
    PIPE = 64
    ROFS = 69
    SPIPE = 70
    XDEV = 75
    NOTCAPABLE = 76


class OanixError(AgentixError):
    """The root of all errors raised by OANIX."""


class NamespaceError(OanixError):
    """A namespace cannot be built: the message names the mount and the reason."""


class ModuleError(OanixError):
    """The bytes are not a WebAssembly module that this kernel runs."""


class UnknownImportError(ModuleError):
    """A module imports something that is not a function of WASI preview 1."""


class EngineError(OanixError):
    """The installed wasmtime is not one that OANIX runs with: the message names those that are."""


class ReplayError(OanixError):
    """A replayed run made a call that its recording does not have at that place."""


class JobError(OanixError):
    """A job cannot be submitted, is unknown, or is past the change that was asked for."""


class FsError(OanixError):
    """A file operation failed.

    Args:
        message: What failed, with the name of the file where it is known.
        code: The error number; the class's own where it is left out.
    """

    code = Code.IO

    def __init__(self, message: str = "", code: Code | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.code.name}: {message}" if message else self.code.name


class NoSuchFileError(FsError):
    """No file of that name exists."""

    code = Code.NOENT


class AlreadyExistsError(FsError):
    """A file of that name exists already."""

    code = Code.EXIST


class NotDirectoryError(FsError):
    """A directory is needed and something else was found."""

    code = Code.NOTDIR


class NotAFileError(FsError):
    """A file is needed and a directory was found."""

    code = Code.ISDIR


class PermissionDeniedError(FsError):
    """The service does not offer this operation on this file."""

    code = Code.ACCES


class ReadOnlyError(FsError):
    """The file is mounted read-only."""

    code = Code.ROFS


class NotCapableError(FsError):
    """The path leads out of what the program may see, or a right was dropped."""

    code = Code.NOTCAPABLE


class NoSpaceError(FsError):
    """The service is full."""

    code = Code.NOSPC


class QuotaError(FsError):
    """The mount's quota is used up."""

    code = Code.DQUOT


CLASSES = {
    kind.code: kind
    for kind in (
        NoSuchFileError,
        AlreadyExistsError,
        NotDirectoryError,
        NotAFileError,
        PermissionDeniedError,
        ReadOnlyError,
        NotCapableError,
        NoSpaceError,
        QuotaError,
    )
}

FROM_ERRNO = {
    getattr(errno, "E" + code.name): code
    for code in Code
    if code not in (Code.SUCCESS, Code.NOTCAPABLE)
}
"""The host's error numbers; EXDEV from openat2 means that the path left the mount."""


def fs_error(code: Code, message: str = "") -> FsError:
    """Make the error of the class that belongs to a code."""
    kind = CLASSES.get(code)
    return FsError(message, code) if kind is None else kind(message)


def from_os_error(error: OSError, name: str = "") -> FsError:
    """Translate an error of the host; the host's own paths stay out of the message."""
    code = FROM_ERRNO.get(error.errno or 0, Code.IO)
    return fs_error(code, name)
