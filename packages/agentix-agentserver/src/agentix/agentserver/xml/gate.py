"""The gate: what is refused from the bytes alone, before any parser sees them."""

import re

from agentix.agentserver.errors import Malformed, MalformedKind

__all__ = ["admit", "admit_text", "check_declaration"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PLAIN_START = re.compile(rb"[ \t\r\n]*<[A-Za-z_]")
PIECE = re.compile(rb"[ \t\r\n]+|<!--.*?-->|<\?.*?\?>", re.DOTALL)
"""One piece of what may come before the first element."""

PIECES = 256
"""How many such pieces there may be; nobody needs more than a few."""

DECLARED = re.compile(rb"<\?xml[ \t\r\n?]")
DECLARATION = re.compile(
    rb"""<\?xml\s+version\s*=\s*(?:"1\.0"|'1\.0')"""
    rb"""(?:\s+encoding\s*=\s*(?:"utf-?8"|'utf-?8'))?"""
    rb"""(?:\s+standalone\s*=\s*(?:"(?:yes|no)"|'(?:yes|no)'))?\s*\?>""",
    re.IGNORECASE,
)


def admit(data: bytes, size: int) -> bytes:
    """Lets through what can be a document: small enough, UTF-8, and without a document type.

    Args:
        data: What arrived.
        size: The most bytes that it may have.

    Returns:
        The same bytes without a byte order mark.

    Raises:
        Malformed: They can not be a document.
    """
    admit_text(data, size)
    data = data.removeprefix(BYTE_ORDER_MARK)
    if PLAIN_START.match(data) is None:
        check_prolog(data)
    return data


def admit_text(data: bytes, size: int) -> str:
    """Lets through what is small enough and UTF-8.

    Returns:
        The text, with a byte order mark where there is one.

    Raises:
        Malformed: There are too many bytes, or they are no text.
    """
    if len(data) > size:
        raise Malformed(MalformedKind.TOO_LARGE, f"{len(data)} bytes; {size} are the most")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Malformed(MalformedKind.ENCODING, str(error)) from error


def check_declaration(declaration: bytes) -> None:
    """Checks an XML declaration: version 1.0, and no other encoding than UTF-8.

    Raises:
        Malformed: It names another, or is not written as a declaration.
    """
    if DECLARATION.fullmatch(declaration) is None:
        raise Malformed(MalformedKind.PROLOG, f"the declaration {declaration[:80]!r}")


def check_prolog(data: bytes) -> None:
    """Checks what comes before the first element: a declaration, comments, instructions."""
    if DECLARED.match(data) is not None:
        check_declaration(data[: data.find(b"?>") + 2])
    end = end_of_prolog(data)
    rest = data[end : end + 40]
    if b"<!DOCTYPE" in data[:end] or rest[:9].upper() == b"<!DOCTYPE":
        raise Malformed(MalformedKind.DOCTYPE, "in the prolog")
    if rest[:2] in (b"<!", b"<?"):
        raise Malformed(MalformedKind.PROLOG, repr(rest))


def end_of_prolog(data: bytes) -> int:
    """Gives the place of the first byte that is of no comment, instruction or white space.

    Raises:
        Malformed: There are too many of them.
    """
    end = 0
    for _ in range(PIECES):
        piece = PIECE.match(data, end)
        if piece is None:
            return end
        end = piece.end()
    raise Malformed(MalformedKind.PROLOG, f"more than {PIECES} comments and instructions")
