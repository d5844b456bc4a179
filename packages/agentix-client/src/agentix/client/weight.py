"""The weight of a JSON text: about how much memory its values take once they are decoded.

An empty list is three bytes of text with its comma, and a hundred in memory. The numbers are
those of CPython and pydantic on a 64-bit machine, on the high side.
"""

from collections.abc import Iterator

__all__ = ["most", "weight"]

BLOCK = 256 * 1024
"""Bytes of a text that are looked at together."""

COSTS = {b",": 80, b":": 48, b"[": 64, b"{": 360}
"""Bytes that go with a character outside of strings: with a comma a value and its place in the
parsed tree, with a colon a key, with a bracket an empty list, with a brace a small dict."""

WIDE = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))
"""How the UTF-8 of characters begins that make every character of a string take four bytes."""

CONTINUATIONS = bytes(range(0x80, 0xC0))
"""The bytes of a character in UTF-8 but its first (RFC 3629, 3)."""

WIDE_ESCAPES = (b"\\ud", b"\\uD")


def most(text: bytes | bytearray) -> int:
    """Return a bound on the weight of a text, found in a fraction of the time.

    It counts what is in strings as if it were outside of them too.
    """
    # A search for what is not there is several times as fast as counting it.
    structure = sum(cost * text.count(mark) for mark, cost in COSTS.items() if mark in text)
    return structure + len(text) * _width(text)


def weight(text: bytes | bytearray) -> int:
    """Return about how many bytes the values of a JSON text take in memory."""
    size = characters = 0
    inside = 0
    for block in _blocks(text):
        plain = block.replace(b"\\\\", b"_").replace(b'\\"', b"_")
        if not plain.isascii():
            plain = plain.translate(None, CONTINUATIONS)
        parts = plain.split(b'"')
        structure = b"".join(parts[inside::2])
        size += sum(cost * structure.count(mark) for mark, cost in COSTS.items())
        # An escape is one character, of six bytes where it is by number, else of two.
        characters += len(plain) - len(structure) - 4 * plain.count(b"\\u") - plain.count(b"\\")
        inside = (inside + len(parts) - 1) % 2
    return size + characters * _width(text)


def _blocks(text: bytes | bytearray) -> Iterator[bytes]:
    """Cut a text, but not between a backslash and what it escapes."""
    start = 0
    while block := bytes(text[start : start + BLOCK]):
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block += text[start + BLOCK : start + BLOCK + 1]
        start += len(block)
        yield block


def _width(text: bytes | bytearray) -> int:
    """Return how many bytes a character of a string in the text takes at most (PEP 393)."""
    plain, escaped = text.isascii(), b"\\" in text and b"\\u" in text
    if plain and not escaped:
        return 1
    return 4 if any(mark in text for mark in (*WIDE, *WIDE_ESCAPES)) else 2
