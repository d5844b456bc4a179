"""What the runtime is told from outside, read once from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from agentix.errors import UsageError
from agentix.wire import DEFAULT_PORT

__all__ = ["Settings"]

MEBIBYTE = 1024 * 1024

MOST_DESCRIPTORS = 2**31 - 1
"""No descriptor has a higher number: it is a C `int`."""


@dataclass(frozen=True)
class Settings:
    """The settings of one runtime."""

    bind_host: str = "127.0.0.1"
    """`AGENTIX_BIND_HOST`: the address to listen on."""
    bind_port: int = DEFAULT_PORT
    """`AGENTIX_BIND_PORT`: the TCP port to listen on; 0 for any free one."""
    bind_unix: Path | None = None
    """`AGENTIX_BIND_UNIX`: a Unix socket to listen on instead."""
    bind_fd: int | None = None
    """`AGENTIX_BIND_FD`: the number of an inherited descriptor that listens already."""
    bind_handoff: Path | None = None
    """`AGENTIX_BIND_HANDOFF`: a Unix socket that hands over one that listens already."""
    mount_root: Path = Path("/mnt")
    """`AGENTIX_MOUNT_ROOT`: the directory whose entries are the mounted namespaces."""
    upload_root: Path = Path("/workspace")
    """`AGENTIX_UPLOAD_ROOT`: the directory that uploads and downloads are confined to."""
    token: str | None = field(default=None, repr=False)
    """The bearer token that calls must carry, from the file `AGENTIX_TOKEN_FILE`."""
    exec_user: str | None = None
    """`AGENTIX_EXEC_USER`: who runs commands, as `name`, `uid` or `uid:gid`."""
    max_output: int = 10 * MEBIBYTE
    """`AGENTIX_MAX_OUTPUT`: bytes that `/exec` keeps of each pipe where a call says nothing."""
    max_body: int = 256 * MEBIBYTE
    """`AGENTIX_MAX_BODY`: the largest JSON body in bytes; uploads are streamed and not limited."""

    def __post_init__(self) -> None:
        elsewhere = [self.bind_unix, self.bind_fd, self.bind_handoff]
        given = sum(place is not None for place in elsewhere)
        if given > 1:
            raise UsageError(
                "AGENTIX_BIND_UNIX, AGENTIX_BIND_FD and AGENTIX_BIND_HANDOFF exclude each other"
            )
        if self.token is None and not given and not _is_loopback(self.bind_host):
            raise UsageError(
                f"refusing to listen on {self.bind_host} without a token: set AGENTIX_TOKEN_FILE,"
                " or bind to 127.0.0.1 or a Unix socket"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], token: str | None = None) -> Self:
        """Read the settings; the token's file is read and unlinked.

        Args:
            environ: The variables.
            token: The token, where it does not come in a file.

        Raises:
            UsageError: A variable has no usable value, the token's file cannot be read, or there
                are two tokens.
        """
        unix, handoff = environ.get("AGENTIX_BIND_UNIX"), environ.get("AGENTIX_BIND_HANDOFF")
        return cls(
            bind_host=environ.get("AGENTIX_BIND_HOST", cls.bind_host),
            bind_port=_integer(environ, "AGENTIX_BIND_PORT", cls.bind_port, most=65535),
            bind_unix=Path(unix) if unix else None,
            bind_fd=_descriptor(environ, "AGENTIX_BIND_FD"),
            bind_handoff=Path(handoff) if handoff else None,
            mount_root=_directory(environ, "AGENTIX_MOUNT_ROOT", cls.mount_root),
            upload_root=_directory(environ, "AGENTIX_UPLOAD_ROOT", cls.upload_root),
            token=_token(environ.get("AGENTIX_TOKEN_FILE"), token),
            exec_user=environ.get("AGENTIX_EXEC_USER") or None,
            max_output=_integer(environ, "AGENTIX_MAX_OUTPUT", cls.max_output),
            max_body=_integer(environ, "AGENTIX_MAX_BODY", cls.max_body),
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _integer(environ: Mapping[str, str], name: str, default: int, most: int | None = None) -> int:
    text = environ.get(name) or str(default)
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if value < 0 or (most is not None and value > most):
        limit = "" if most is None else f" up to {most}"
        raise UsageError(f"{name}={text!r} is not a whole number{limit}")
    return value


def _descriptor(environ: Mapping[str, str], name: str) -> int | None:
    return _integer(environ, name, default=0, most=MOST_DESCRIPTORS) if environ.get(name) else None


def _directory(environ: Mapping[str, str], name: str, default: Path) -> Path:
    path = Path(environ.get(name) or default)
    if not path.is_absolute():
        raise UsageError(f"{name}={str(path)!r} is not an absolute path")
    return path


def _token(file: str | None, made: str | None) -> str | None:
    if not file:
        return made
    if made is not None:
        raise UsageError("--token-file and AGENTIX_TOKEN_FILE exclude each other")
    path = Path(file)
    try:
        token = path.read_text(encoding="ascii").strip()
        path.unlink()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"AGENTIX_TOKEN_FILE={file!r} cannot be taken: {error}") from error
    if not token:
        raise UsageError(f"AGENTIX_TOKEN_FILE={file!r} is empty")
    return token
