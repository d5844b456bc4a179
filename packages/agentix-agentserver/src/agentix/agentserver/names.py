"""Names: XML namespaces, primitives, listeners, root tags, threads and principals.

Neither this module nor `payload.types` loads lxml, because workers import both."""

import os
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from agentix.agentserver.errors import RegistrationError

__all__ = [
    "CORE_NAMESPACE",
    "ENVELOPE_NAMESPACE",
    "LOCAL",
    "META_NAMESPACE",
    "PRIVILEGED_NAMESPACE",
    "RESERVED",
    "Primitive",
    "Principal",
    "check_listener_name",
    "collapse",
    "is_ncname",
    "is_thread_id",
    "listener_namespace",
    "new_thread_id",
    "primitive",
    "root_tag",
]


ENVELOPE_NAMESPACE: Final = "https://xml-pipeline.org/ns/envelope/v1"
CORE_NAMESPACE: Final = "https://xml-pipeline.org/ns/core/v1"
META_NAMESPACE: Final = "https://xml-pipeline.org/ns/meta/v1"
PRIVILEGED_NAMESPACE: Final = "https://xml-pipeline.org/privileged-msg"


class Primitive(Enum):
    """The elements by which a handler speaks to the pump, with or without the core namespace."""

    TODO_UNTIL = "todo-until"
    """Comes back to its emitter."""
    RETURN = "return"
    """Goes to the parent and ends what is below the emitter."""
    HALT = "halt"
    """Goes to the parent and ends the emitter too."""


PRIMITIVES: Final = {
    tag: kind for kind in Primitive for tag in (kind.value, f"{{{CORE_NAMESPACE}}}{kind.value}")
}


def primitive(tag: str) -> Primitive | None:
    """Return the primitive that a tag in Clark notation names; None for any other tag."""
    return PRIMITIVES.get(tag)


RESERVED = ("core", "system", "dummy")
"""Names that are the pump's own, and so the first segment of no listener's name."""

LONGEST_NAME = 200
"""Characters of a listener's or a class's name, so that a name fits into a file name and a log."""

START = (
    "A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c-\u200d"
    "\u2070-\u218f\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
NCNAME = re.compile(f"[{START}][{START}\\-.0-9\u00b7\u0300-\u036f\u203f-\u2040]*")
"""Namespaces in XML 1.0, production 4."""

THREAD_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""RFC 9562: a version 4 UUID in its canonical, lower-case form."""


def is_ncname(text: str) -> bool:
    """Return whether a text is an XML name without a colon, of a length that is allowed."""
    return len(text) <= LONGEST_NAME and NCNAME.fullmatch(text) is not None


WHITE_SPACE = re.compile("[ \t\r\n]+")
"""What XML takes for white space; Python takes more."""


def collapse(text: str) -> str:
    """Take the white space of XML off both ends of a text, and make it one space within."""
    return WHITE_SPACE.sub(" ", text).strip(" ")


def check_listener_name(name: str) -> None:
    """Check that a listener may have a name: segments joined by dots, each an XML name.

    Raises:
        RegistrationError: It may not; the message names it and says why.
    """
    segments = name.split(".")
    if len(name) > LONGEST_NAME or not all(is_ncname(segment) for segment in segments):
        raise RegistrationError(
            f"{name[:LONGEST_NAME]!r} is no listener name: it takes XML names joined by dots, such "
            f"as 'calculator.add', and at most {LONGEST_NAME} characters"
        )
    if segments[0].lower() in RESERVED:
        raise RegistrationError(
            f"{name!r} is no listener name: {', '.join(RESERVED)} are reserved for the pump"
        )


def root_tag(listener: str, class_name: str) -> str:
    """Derive the root tag by which payloads find their listener.

    Args:
        listener: The registered name, such as `calculator.add`.
        class_name: The name of the payload class, such as `AddPayload`.

    Returns:
        Both in lower case, joined by a dot: `calculator.add.addpayload`.

    Raises:
        RegistrationError: The listener may not have that name, or the two make no XML name.
    """
    check_listener_name(listener)
    root = f"{listener}.{class_name}".lower()
    if "." in class_name or not all(is_ncname(segment) for segment in root.split(".")):
        raise RegistrationError(f"{listener!r} and {class_name!r} make no root tag: {root!r}")
    return root


def listener_namespace(listener: str) -> str:
    """Return the XML namespace that is a listener's own, accepted beside no namespace at all."""
    return f"https://xml-pipeline.org/ns/listener/{listener.lower()}/v1"


def is_thread_id(text: str) -> bool:
    """Return whether a text is a thread's id: a canonical, lower-case UUID of version 4."""
    return THREAD_ID.fullmatch(text) is not None


FRESH: list[str] = []
"""Ids of threads that nobody has yet, since one call for randomness costs as much as many ids."""

os.register_at_fork(after_in_child=FRESH.clear)

FRESH_AT_ONCE = 32
"""How many ids are made when there are none left."""

VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit of the variant that RFC 9562 has for each random digit."""


def new_thread_id() -> str:
    """Make a thread's id: a UUID of version 4, from the randomness of the system."""
    try:
        return FRESH.pop()
    except IndexError:
        digits = os.urandom(16 * FRESH_AT_ONCE).hex()
        FRESH.extend(spelled(digits[place : place + 32]) for place in range(0, len(digits), 32))
        return FRESH.pop()


def spelled(digits: str) -> str:
    """Spell 32 random digits as a UUID of version 4, of which two are not random."""
    variant = VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(frozen=True, slots=True)
class Principal:
    """An external sender. A gateway makes it from what it verified, never from a message.

    Example:
        ```python
        from agentix.agentserver import Principal

        reader = Principal("reader", roots=frozenset({"library.find.findpayload"}))
        assert not reader.may_send("library.burn.burnpayload")
        ```
    """

    name: str
    """The name that its messages must carry in `<from>`."""
    roots: frozenset[str] | None = None
    """The root tags that it may send; `None` for all."""
    admin: bool = False
    """Whether meta queries that are kept for `admin` are answered."""
    remote: bool = False
    """Whether it is another organism."""

    @staticmethod
    def of(principal: "Principal | str") -> "Principal":
        """Return a principal by its name, one who may send everything and is no admin."""
        return _named(principal) if isinstance(principal, str) else principal

    def may_send(self, root: str) -> bool:
        """Return whether it may send messages of a root tag."""
        return self.roots is None or root in self.roots


@lru_cache(maxsize=256)
def _named(name: str) -> Principal:
    return Principal(name)


LOCAL = Principal("local", admin=True)
"""The program that holds the organism as a library."""
