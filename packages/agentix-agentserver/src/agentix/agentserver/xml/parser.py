"""The parser: bytes that may be anything to elements, within limits, after a safe repair."""

import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from html.entities import html5
from typing import Final

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind

__all__ = [
    "MessageLimits",
    "Repaired",
    "check_declaration",
    "parse_strict",
    "parse_unlimited",
    "precheck",
    "precheck_text",
    "repair",
]


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """What a message may be made of; all are counted before anything that is not linear in them."""

    size: int = 1 << 20
    """Bytes of a message, or of what a handler returns."""
    depth: int = 64
    """Elements within one another."""
    elements: int = 10_000
    """Elements in all."""
    attributes: int = 16
    """Attributes of one element."""
    namespaces: int = 16
    """Namespace prefixes known at one element."""
    few_tags: int = field(init=False)
    """So many `<` can be beyond no limit, whatever they are."""
    few_values: int = field(init=False)
    """So many `=` can be beyond no limit, whatever they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "few_tags", min(self.depth, self.elements))
        object.__setattr__(self, "few_values", min(self.attributes, self.namespaces))


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


def precheck(data: bytes, size: int) -> bytes:
    """Let through what can be a document: small enough, UTF-8, and without a document type.

    Args:
        data: What arrived.
        size: The most bytes that it may have.

    Returns:
        The same bytes without a byte order mark.

    Raises:
        Malformed: They cannot be a document.
    """
    precheck_text(data, size)
    data = data.removeprefix(BYTE_ORDER_MARK)
    if PLAIN_START.match(data) is None:
        check_prolog(data)
    return data


def precheck_text(data: bytes, size: int) -> str:
    """Let through what is small enough and UTF-8.

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
    """Check an XML declaration: version 1.0, and no other encoding than UTF-8.

    Raises:
        Malformed: It names another, or is not written as a declaration.
    """
    if DECLARATION.fullmatch(declaration) is None:
        raise Malformed(MalformedKind.PROLOG, f"the declaration {declaration[:80]!r}")


def check_prolog(data: bytes) -> None:
    """Check what comes before the first element: a declaration, comments, instructions."""
    if DECLARED.match(data) is not None:
        check_declaration(data[: data.find(b"?>") + 2])
    end = end_of_prolog(data)
    rest = data[end : end + 40]
    if b"<!DOCTYPE" in data[:end] or rest[:9].upper() == b"<!DOCTYPE":
        raise Malformed(MalformedKind.DOCTYPE, "in the prolog")
    if rest[:2] in (b"<!", b"<?"):
        raise Malformed(MalformedKind.PROLOG, repr(rest))


def end_of_prolog(data: bytes) -> int:
    """Return the place of the first byte that is of no comment, instruction or white space.

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


EQUALS = ord("=")
SHORTEST_TAG = 4
"""Bytes of the shortest element, `<a/>`."""

NO_START_TAGS = (b"</", b"< ", b"<=", b"<<")
"""What begins an end tag, or no tag at all, in text that is yet to be repaired."""

SECTION = re.compile(rb"<!--|<!\[CDATA\[|<\?")
SECTION_ENDS = {b"<!--": b"-->", b"<![CDATA[": b"]]>", b"<?": b"?>"}

SCHEMA_INSTANCE = "{http://www.w3.org/2001/XMLSchema-instance}"


class Parsers(threading.local):
    """The parser of each thread; a shared one would be locked."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Make the parser, or take a new one for one that stopped within a document."""
        self.strict = etree.XMLParser(
            encoding="utf-8",
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            dtd_validation=False,
            attribute_defaults=False,
            huge_tree=False,
            recover=False,
            remove_comments=True,
            remove_pis=True,
            collect_ids=False,
        )


PARSERS = Parsers()


def parse_strict(data: bytes, limits: MessageLimits) -> Element:
    """Parse a well-formed document whose bytes passed the gate.

    Comments and processing instructions are not in the tree, so text has no gaps.

    Raises:
        Malformed: It is not well-formed, or beyond the limits.
    """
    if len(data) > SHORTEST_TAG * limits.elements:
        check_tags(data, limits)
    root = parse_unlimited(data)
    # Each element takes a `<`, each attribute and each declaration of a namespace a `=`.
    values = data.count(b"=") if EQUALS in data else 0
    tags = data.count(b"<") if len(data) > SHORTEST_TAG * limits.few_tags else 0
    if values > limits.few_values or tags > limits.few_tags:
        count(root, limits)
    if values and b"xmlns:" in data:
        strip_schema_instance(root)
    return root


def check_tags(data: bytes, limits: MessageLimits) -> None:
    """Refuse by its bytes alone what has too many elements, for parsing those costs the most.

    Raises:
        Malformed: If it is well-formed, it is beyond the limits.
    """
    if data.count(b"<!") + data.count(b"<?") > limits.elements:
        raise Malformed(MalformedKind.LIMIT, f"more than {limits.elements} comments and the like")
    data = without_sections(data)
    tags = data.count(b"<") - sum(map(data.count, NO_START_TAGS))
    if tags > limits.elements:
        raise Malformed(MalformedKind.LIMIT, f"more than {limits.elements} start tags")


def without_sections(data: bytes) -> bytes:
    """Take out comments, instructions and CDATA, in which a `<` begins no tag."""
    parts: list[bytes] = []
    position = 0
    while (start := SECTION.search(data, position)) is not None:
        end = data.find(SECTION_ENDS[start[0]], start.end())
        if end < 0:
            break
        parts.append(data[position : start.start()])
        position = end
    return b"".join([*parts, data[position:]])


def parse_unlimited(data: bytes) -> Element:
    """Parse a well-formed document of which something else says that it is within limits.

    libxml2 reads what is fed to it as it is, while of a document that it is given whole it checks
    at each of the last elements whether there is more.

    Raises:
        Malformed: It is not well-formed.
    """
    parser = PARSERS.strict
    try:
        parser.feed(data)
        return parser.close()
    except etree.XMLSyntaxError as error:
        raise Malformed(MalformedKind.SYNTAX, str(error)) from error
    except BaseException:  # interrupted, so that what is fed next would go on from here
        PARSERS.renew()
        raise


def count(root: Element, limits: MessageLimits) -> None:
    """Count what a tree is made of, a level at a time.

    Neither `.attrib` values nor C14N come before this: both are quadratic in the attributes.

    Raises:
        Malformed: It is beyond a limit.
    """
    elements = 1
    level = [root]
    for _ in range(limits.depth):
        elements += sum(map(len, level))
        if elements > limits.elements:
            raise Malformed(MalformedKind.LIMIT, f"more than {limits.elements} elements")
        for element in level:
            count_attributes(element, limits)
        level = [child for element in level for child in element]
        if not level:
            return
    raise Malformed(MalformedKind.LIMIT, f"more than {limits.depth} levels")


def count_attributes(element: Element, limits: MessageLimits) -> None:
    """Count the attributes of an element, and the namespaces that are known at it."""
    if len(element.attrib) > limits.attributes:
        raise Malformed(MalformedKind.LIMIT, f"more than {limits.attributes} attributes")
    if len(element.nsmap) > limits.namespaces:
        raise Malformed(MalformedKind.LIMIT, f"more than {limits.namespaces} namespaces")


def strip_schema_instance(root: Element) -> None:
    """Take away `xsi:type`, `xsi:nil` and the like, by which a message would steer its schema."""
    for element in root.iter():
        for name in [*element.attrib]:
            if str(name).startswith(SCHEMA_INSTANCE):
                del element.attrib[name]


NAME: Final = r"[A-Za-z_:\u0080-\U0010ffff][\w:.\-\u00b7\u0080-\U0010ffff]*+"
ATTRIBUTE: Final = rf"""\s++{NAME}\s*+=\s*+(?:"[^"]*+"|'[^']*+')"""
ATTRIBUTES: Final = 64
"""How many attributes a tag may have to be read as one, far more than any limit allows."""

TOKEN: Final = re.compile(
    rf"""(?P<comment><!--)
    |(?P<cdata><!\[CDATA\[)
    |(?P<instruction><\?(?={NAME}))
    |(?P<declare><!(?i:DOCTYPE|ENTITY|ELEMENT|ATTLIST|NOTATION))
    |(?P<end></(?P<ended>{NAME})\s*+>)
    |(?P<start><(?P<started>{NAME})(?:{ATTRIBUTE}){{0,{ATTRIBUTES}}}\s*+(?P<empty>/?+)>)
    |(?P<cut><(?:/(?:{NAME})?\s*+)?\Z)
    |(?P<broken></{NAME}|<{NAME}(?=[\s/>]|\Z))
    |(?P<less><)""",
    re.VERBOSE,
)
"""What begins with a less-than sign; possessive, so that each character is looked at once."""

CLOSING: Final = {"comment": "-->", "cdata": "]]>", "instruction": "?>"}
REFERENCE: Final = re.compile(
    r"""&(?:(?P<kept>\#[0-9]++|\#x[0-9A-Fa-f]++|amp|lt|gt|quot|apos)
    |(?P<name>[A-Za-z][A-Za-z0-9]*+));|[&<]""",
    re.VERBOSE,
)
"""A reference to a character, or a sign that is none."""

ESCAPES: Final = str.maketrans({sign: f"&#{ord(sign)};" for sign in "&<>\"'\t\n"})
"""How characters that HTML has names for are written, in texts and in attributes."""

VOID: Final = frozenset({"br", "hr", "img", "wbr"})
"""HTML's elements without content or end tag, but for those that are as likely a payload's field,
such as `<source>` or `<link>`."""

MOST_NOTES: Final = 16
"""How many notes are told one by one, since the names of elements are in them."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """A text after repair."""

    text: str
    """The text; a strict parser still has the last word."""
    notes: tuple[str, ...]
    """What was done, in the order of its first time."""


def repair(text: str, limits: MessageLimits) -> Repaired:
    """Repair a text that a strict parser refused.

    Raises:
        Malformed: It cannot be repaired without a guess about its meaning.
    """
    if text.count("<") + text.count("&") > 2 * limits.elements:
        raise Malformed(MalformedKind.LIMIT, "too much markup to repair")
    work = Work(text, limits.depth)
    while work.step():
        pass
    notes = [f"{note} ({times})" for note, times in work.notes.items()]
    if len(notes) > MOST_NOTES:
        notes[MOST_NOTES:] = [f"and {len(notes) - MOST_NOTES} other repairs"]
    return Repaired("".join(work.pieces), tuple(notes))


@dataclass(slots=True)
class Work:
    """One repair under way."""

    text: str
    """The text as it came."""
    depth: int
    """How many elements may be open."""
    place: int = 0
    """How far the text is done."""
    pieces: list[str] = field(default_factory=list)
    """What was made of it."""
    opened: list[str] = field(default_factory=list)
    """The elements that are open, the innermost last."""
    swallowed: str = ""
    """An element within an open one whose name has a dot, as that of a call has."""
    notes: Counter[str] = field(default_factory=Counter)
    """What was done, and how often."""
    last_ends: dict[str, int] = field(default_factory=dict)
    """Where the last end tag of a name is, of those that were looked for; -1 for none."""

    def step(self) -> bool:
        """Copy up to the next token and deal with it; return False at the end."""
        start = self.text.find("<", self.place)
        if start < 0:
            self.copy_text(len(self.text))
            self.check_swallowed()
            self.close_down_to(0)
            return False
        self.copy_text(start)
        self.markup(start)
        return True

    def markup(self, start: int) -> None:
        """Deal with what begins with a less-than sign."""
        found = TOKEN.match(self.text, start)
        assert found is not None, "a less-than sign is the least that the pattern takes"
        self.place = found.end()
        match found.lastgroup:
            case "comment" | "cdata" | "instruction" as kind:
                self.copy_section(start, CLOSING[kind])
            case "start":
                self.start(found)
            case "end":
                self.end(found["ended"])
                self.pieces.append(found[0])
            case "cut" if self.opened:
                self.note("completed an end tag that was cut off")
                self.end_cut(found[0])
            case "less" | "cut":
                self.note("escaped a stray less-than sign")
                self.pieces.append("&lt;" + found[0][1:])
            case "declare":
                raise Malformed(MalformedKind.DOCTYPE)
            case _:
                raise Malformed(MalformedKind.SYNTAX, repr(self.text[start : start + 60]))

    def note(self, what: str) -> None:
        """Count something that was done."""
        self.notes[what] += 1

    def copy_text(self, end: int) -> None:
        """Copy the text up to a place; what would end a section is no part of a text."""
        text = self.text[self.place : end]
        if "]]>" in text:
            self.notes["escaped the end of a section"] += text.count("]]>")
            text = text.replace("]]>", "]]&gt;")
        self.pieces.append(self.mended(text) if "&" in text else text)

    def copy_section(self, start: int, mark: str) -> None:
        """Copy a comment, a CDATA section or an instruction; a declaration is left out."""
        end = self.text.find(mark, self.place)
        if end < 0:
            raise Malformed(MalformedKind.SYNTAX, f"{mark!r} is missing")
        self.place = end + len(mark)
        section = self.text[start : self.place]
        if re.match(r"<\?xml[\s?]", section, re.IGNORECASE):
            check_declaration(section.encode())
            self.note("dropped an XML declaration")
        else:
            self.pieces.append(section)

    def start(self, found: re.Match[str]) -> None:
        """Copy a start tag, and mends what its attributes hold."""
        tag = found[0]
        if "&" in tag or "<" in tag[1:]:
            tag = "<" + self.mended(tag[1:])
        name = found["started"]
        whole = bool(found["empty"])
        if not whole and self.is_void(name):
            self.note(f"closed <{name}>")
            tag, whole = f"{tag[:-1]}/>", True
        self.pieces.append(tag)
        if self.opened and "." in name:
            self.swallowed = name
        if not whole:
            self.opened.append(name)
            if len(self.opened) > self.depth:
                raise Malformed(MalformedKind.LIMIT, f"more than {self.depth} levels")

    def is_void(self, name: str) -> bool:
        """Return whether a start tag is all of its element, as in HTML: no end tag follows."""
        if name.lower() not in VOID:
            return False
        if name not in self.last_ends:
            ends = re.finditer(rf"</{name}\s*+>", self.text)
            self.last_ends[name] = max((each.start() for each in ends), default=-1)
        return self.last_ends[name] < self.place

    def end(self, name: str) -> None:
        """Close elements up to one of a name."""
        if name not in self.opened:
            raise Malformed(MalformedKind.SYNTAX, f"</{name:.60}> ends nothing")
        while self.opened[-1] != name:
            self.close_down_to(len(self.opened) - 1)
        self.opened.pop()
        if not self.opened:
            self.swallowed = ""

    def check_swallowed(self) -> None:
        """Refuse to close what was never ended around a call, such as `List<int>` in prose."""
        if self.opened and self.swallowed:
            text = f"<{self.opened[0]:.60}> is not ended, and <{self.swallowed:.60}> is in it"
            raise Malformed(MalformedKind.SYNTAX, text)

    def end_cut(self, tag: str) -> None:
        """Complete an end tag at the end of the text, where it can only be one."""
        if not self.opened[-1].startswith(tag[2:].rstrip()):
            raise Malformed(MalformedKind.SYNTAX, f"{tag:.60} ends nothing")
        self.pieces.append(f"</{self.opened.pop()}>")

    def close_down_to(self, depth: int) -> None:
        """Close open elements until no more than so many are open."""
        while len(self.opened) > depth:
            name = self.opened.pop()
            self.note(f"closed <{name:.60}>")
            self.pieces.append(f"</{name}>")

    def mended(self, text: str) -> str:
        """Return a text without stray signs, and without HTML's entities."""
        return REFERENCE.sub(self.mended_sign, text)

    def mended_sign(self, found: re.Match[str]) -> str:
        """Return what stands for a reference, an ampersand or a less-than sign."""
        if found["kept"]:
            return found[0]
        if found[0] == "<":
            self.note("escaped a stray less-than sign")
            return "&lt;"
        character = html5.get(f"{found['name']};") if found["name"] else None
        if character is not None:
            self.note("replaced an HTML entity")
            return character.translate(ESCAPES)
        self.note("escaped a stray ampersand")
        return "&amp;" + found[0][1:]
