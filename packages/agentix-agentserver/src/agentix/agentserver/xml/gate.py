"""The gate: what is refused from the bytes alone, before any parser sees them."""

import re

from agentix.agentserver.errors import Malformed, MalformedKind

__all__ = ["admit", "check_declaration"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WHITE_SPACE = b" \t\r\n"
PLAIN_START = re.compile(rb"[ \t\r\n]*<[A-Za-z_]")
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
    """Checks what comes before the first element: comments and instructions only."""
    place = 0
    while True:
        place = skip_white_space(data, place)
        if data.startswith(b"<!--", place):
            end = closing(data, b"-->", place + 4)
        elif data.startswith(b"<?", place):
            end = closing(data, b"?>", place + 2)
            if data[place + 2 : place + 5].lower() == b"xml" and data[place + 5] in b" \t\r\n?":
                check_declaration(data[place:end])
        else:
            break
        if b"<!DOCTYPE" in data[place:end]:
            raise Malformed(MalformedKind.DOCTYPE, "in the prolog")
        place = end
    if data[place : place + 9].upper() == b"<!DOCTYPE":
        raise Malformed(MalformedKind.DOCTYPE)
    if data.startswith(b"<!", place):
        raise Malformed(MalformedKind.PROLOG, repr(data[place : place + 40]))


def skip_white_space(data: bytes, place: int) -> int:
    """Gives the place of the first byte from a place on that is no white space."""
    while data[place : place + 1] and data[place] in WHITE_SPACE:
        place += 1
    return place


def closing(data: bytes, mark: bytes, place: int) -> int:
    """Gives the place after a closing mark."""
    found = data.find(mark, place)
    if found < 0:
        raise Malformed(MalformedKind.PROLOG, f"{mark!r} is missing")
    return found + len(mark)
