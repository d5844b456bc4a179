"""Bounds on what a sandbox sends, and the errors of what is beyond them."""

from dataclasses import dataclass

from agentix.client.weight import most, weight
from agentix.errors import AnswerTooLargeError

__all__ = [
    "MAX_DOWNLOAD",
    "MAX_FILE",
    "MAX_ITEM",
    "MAX_REFUSAL",
    "MAX_RESULT",
    "SMALL_ANSWER",
    "Cap",
    "cap_of",
    "cap_of_output",
    "shortened",
]

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
GIBIBYTE = 1024 * MEBIBYTE

MAX_RESULT = 32 * MEBIBYTE
"""Bytes that a result may have where the client does not say."""

MAX_ITEM = 16 * MEBIBYTE
"""Bytes that one item of a stream may have where the client does not say."""

MAX_FILE = 64 * MEBIBYTE
"""Bytes of a file that are read into memory where the call does not say."""

MAX_DOWNLOAD = 16 * GIBIBYTE
"""Bytes of a file that are written to the disk where the call does not say."""

SMALL_ANSWER = 64 * KIBIBYTE
"""Bytes that the answers of a few short fields may have."""

MAX_REFUSAL = 64 * KIBIBYTE
"""Bytes that are read of a refusal."""

DEFAULT_OUTPUT = 10 * MEBIBYTE
"""Bytes that a runtime keeps of each pipe of a command where it was told nothing else."""

ESCAPED_BYTE = 6
"""Bytes of JSON that a byte of output becomes at most: a control character is `\\u0000`."""

DECODED = 3
"""How many times its limit in bytes an answer may take in memory once it is decoded."""

LIGHT = MEBIBYTE
"""Bytes of text that are decoded without being weighed."""


@dataclass(frozen=True, slots=True)
class Cap:
    """The most that is taken of one kind of answer."""

    what: str
    """The answer, as an error names it."""
    limit: int
    """The most bytes."""
    remedy: str
    """How its limit is raised."""
    decoded: int
    """The most bytes of memory for its decoded values."""

    def check_size(self, size: int | None) -> None:
        """Check the length of an answer, if it says one.

        Raises:
            AnswerTooLargeError: It is beyond the limit.
        """
        if size is not None and size > self.limit:
            raise AnswerTooLargeError(
                f"{self.what} has {size:,} bytes, more than the limit of {self.limit:,}: "
                f"{self.remedy}",
                self.limit,
                size,
            )

    def check_read(self, size: int) -> None:
        """Check what has come so far of an answer that does not end.

        Raises:
            AnswerTooLargeError: It is beyond the limit.
        """
        if size > self.limit:
            raise AnswerTooLargeError(
                f"{self.what} has more bytes than the limit of {self.limit:,}: {self.remedy}",
                self.limit,
            )

    def check_decoded(self, text: bytes | bytearray) -> None:
        """Check how much memory the values of a JSON text take, before it is decoded.

        Raises:
            AnswerTooLargeError: It is beyond what goes with the limit.
        """
        if len(text) <= LIGHT or most(text) <= self.decoded:
            return
        if (size := weight(text)) > self.decoded:
            raise AnswerTooLargeError(
                f"{self.what} has {len(text):,} bytes of JSON that take about {size:,} bytes of "
                f"memory, more than the limit of {self.decoded:,}: {self.remedy}",
                self.decoded,
                size,
            )


def cap_of(what: str, limit: int, remedy: str) -> Cap:
    """Return the cap of an answer that is decoded as JSON, or not at all."""
    return Cap(what, limit, remedy, DECODED * limit)


def cap_of_output(max_output: int | None) -> Cap:
    """Return the cap of what a command printed, which no honest answer goes beyond.

    Args:
        max_output: Bytes that the runtime keeps of each of the two pipes; `None` for its default.
    """
    kept = 2 * (DEFAULT_OUTPUT if max_output is None else max_output)
    return Cap(
        "the output of a command",
        kept * ESCAPED_BYTE + SMALL_ANSWER,
        "pass run a max_output of what is to be kept of each pipe",
        # A byte is at most one character, and that takes four bytes at most (PEP 393).
        4 * kept + LIGHT,
    )


def shortened(text: str, limit: int) -> str:
    """Cut the middle out of a text that is longer than some characters, and say how much."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters cut ...]\n{text[-half:]}"
