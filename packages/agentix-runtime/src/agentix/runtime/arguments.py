"""The arguments of `agentix-server`, which has settings for all else."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from agentix.errors import UsageError

__all__ = ["parse_token_file", "write_token"]

DESCRIPTION = """\
Serve the namespaces below AGENTIX_MOUNT_ROOT. The settings are variables AGENTIX_*: see
"Settings of agentix-server" in the namespace protocol.
"""


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """End the program with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def parse_token_file(arguments: Sequence[str]) -> Path | None:
    """Return the file for a new token, where the arguments ask for one.

    Raises:
        SystemExit: They ask for help, or are not understood.
    """
    parser = OneLineParser("agentix-server", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="make a token that calls must carry, and write it to a new file of this user",
    )
    file: Path | None = parser.parse_args(arguments).token_file
    return file


def write_token(file: Path, token: str) -> None:
    """Write a token to a new file that only this user reads.

    Raises:
        UsageError: There is such a file already, or it cannot be made.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"--token-file {file}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(f"{token}\n")
