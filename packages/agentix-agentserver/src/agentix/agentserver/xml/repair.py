"""Repair: makes well-formed what almost is, without losing a character, and says what it did.

Stray ampersands, less-than signs and ends of sections are escaped, HTML's entities become
characters, XML declarations go, and elements that were left open are closed: `<br>` and its like in
HTML where they stand, others around what follows. Text is never dropped. An end tag that ends
nothing is refused, since what follows it would be somebody else's, and so is an element that is
left open around a call, which would not be called.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from html.entities import html5
from typing import Final

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.xml.gate import check_declaration
from agentix.agentserver.xml.limits import Limits

__all__ = ["Repaired", "repair"]

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


def repair(text: str, limits: Limits) -> Repaired:
    """Repairs a text that a strict parser refused.

    Raises:
        Malformed: It can not be repaired without a guess about its meaning.
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
        """Copies up to the next token and deals with it; gives False at the end."""
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
        """Deals with what begins with a less-than sign."""
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
        """Counts something that was done."""
        self.notes[what] += 1

    def copy_text(self, end: int) -> None:
        """Copies the text up to a place; what would end a section is no part of a text."""
        text = self.text[self.place : end]
        if "]]>" in text:
            self.notes["escaped the end of a section"] += text.count("]]>")
            text = text.replace("]]>", "]]&gt;")
        self.pieces.append(self.mended(text) if "&" in text else text)

    def copy_section(self, start: int, mark: str) -> None:
        """Copies a comment, a CDATA section or an instruction; a declaration is left out."""
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
        """Copies a start tag, and mends what its attributes hold."""
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
        """Tells whether a start tag is all of its element, as in HTML: no end tag follows."""
        if name.lower() not in VOID:
            return False
        if name not in self.last_ends:
            ends = re.finditer(rf"</{name}\s*+>", self.text)
            self.last_ends[name] = max((each.start() for each in ends), default=-1)
        return self.last_ends[name] < self.place

    def end(self, name: str) -> None:
        """Closes elements up to one of a name."""
        if name not in self.opened:
            raise Malformed(MalformedKind.SYNTAX, f"</{name:.60}> ends nothing")
        while self.opened[-1] != name:
            self.close_down_to(len(self.opened) - 1)
        self.opened.pop()
        if not self.opened:
            self.swallowed = ""

    def check_swallowed(self) -> None:
        """Refuses to close what was never ended around a call, such as `List<int>` in prose."""
        if self.opened and self.swallowed:
            text = f"<{self.opened[0]:.60}> is not ended, and <{self.swallowed:.60}> is in it"
            raise Malformed(MalformedKind.SYNTAX, text)

    def end_cut(self, tag: str) -> None:
        """Completes an end tag at the end of the text, where it can only be one."""
        if not self.opened[-1].startswith(tag[2:].rstrip()):
            raise Malformed(MalformedKind.SYNTAX, f"{tag:.60} ends nothing")
        self.pieces.append(f"</{self.opened.pop()}>")

    def close_down_to(self, depth: int) -> None:
        """Closes open elements until no more than so many are open."""
        while len(self.opened) > depth:
            name = self.opened.pop()
            self.note(f"closed <{name:.60}>")
            self.pieces.append(f"</{name}>")

    def mended(self, text: str) -> str:
        """Gives a text without stray signs, and without HTML's entities."""
        return REFERENCE.sub(self.mended_sign, text)

    def mended_sign(self, found: re.Match[str]) -> str:
        """Gives what stands for a reference, an ampersand or a less-than sign."""
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
