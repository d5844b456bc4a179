"""The gate: what is refused from the bytes alone, before any parser sees them."""

import re

from agentix.agentserver.errors import Malformed, MalformedKind

__all__ = ["admit", "check_declaration"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PLAIN_START = re.compile(rb"[ \t\r\n]*<[A-Za-z_]")
PROLOG = re.compile(rb"(?:[ \t\r\n]++|<!--.*?-->|<\?.*?\?>)*+", re.DOTALL)
"""What may come before the first element; possessive, so that each byte is looked at once."""

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
    data = admit_text(data, size)
    if PLAIN_START.match(data) is None:
        check_prolog(data)
    return data


def admit_text(data: bytes, size: int) -> bytes:
    """Lets through what is small enough and UTF-8; a byte order mark is taken off."""
    if len(data) > size:
        raise Malformed(MalformedKind.TOO_LARGE, f"{len(data)} bytes; {size} are the most")
    try:
        data.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Malformed(MalformedKind.ENCODING, str(error)) from error
    return data.removeprefix(BYTE_ORDER_MARK)


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
    prolog = PROLOG.match(data)
    assert prolog is not None, "nothing is a prolog too"
    rest = data[prolog.end() : prolog.end() + 40]
    if b"<!DOCTYPE" in prolog[0] or rest[:9].upper() == b"<!DOCTYPE":
        raise Malformed(MalformedKind.DOCTYPE, "in the prolog")
    if rest[:2] in (b"<!", b"<?"):
        raise Malformed(MalformedKind.PROLOG, repr(rest))
