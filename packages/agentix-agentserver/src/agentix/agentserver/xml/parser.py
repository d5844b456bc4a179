"""The parser: strict, one a thread, and what it reads is counted before it is used."""

import re
import threading

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.xml.limits import Limits

__all__ = ["parse_strict", "parse_unlimited"]

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
        """Makes the parser, or takes a new one for one that stopped within a document."""
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


def parse_strict(data: bytes, limits: Limits) -> Element:
    """Parses a well-formed document whose bytes passed the gate.

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


def check_tags(data: bytes, limits: Limits) -> None:
    """Refuses by its bytes alone what has too many elements, for parsing those costs the most.

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
    """Takes out comments, instructions and CDATA, in which a `<` begins no tag."""
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
    """Parses a well-formed document of which something else says that it is within limits.

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


def count(root: Element, limits: Limits) -> None:
    """Counts what a tree is made of, a level at a time.

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


def count_attributes(element: Element, limits: Limits) -> None:
    """Counts the attributes of an element, and the namespaces that are known at it."""
    if len(element.attrib) > limits.attributes:
        raise Malformed(MalformedKind.LIMIT, f"more than {limits.attributes} attributes")
    if len(element.nsmap) > limits.namespaces:
        raise Malformed(MalformedKind.LIMIT, f"more than {limits.namespaces} namespaces")


def strip_schema_instance(root: Element) -> None:
    """Takes away `xsi:type`, `xsi:nil` and the like, by which a message would steer its schema."""
    for element in root.iter():
        for name in [*element.attrib]:
            if str(name).startswith(SCHEMA_INSTANCE):
                del element.attrib[name]
