"""Payloads, limits and what comes of messages, for tests that compare two ways to one message."""

from collections.abc import Callable

from hypothesis import strategies as st

from agentix.agentserver.errors import Malformed
from agentix.agentserver.xml.envelope import Envelope, canonical
from agentix.agentserver.xml.parser import MessageLimits
from tests.agentserver.xml_samples import CORE, ENVELOPE

SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
TAGS = [
    "a",
    "b",
    "gr\u00f6\u00dfe",
    "xmlns.a",
    'a b="1" a="=&lt;&#13;&#10;"',
    'a b="xmlns:p="',
    'a xml:lang="en"',
    "xml:a",
    'a xmlns=""',
    'a xmlns="urn:p"',
    'a xmlns="a/b"',
    f'a xmlns="{ENVELOPE}"',
    f'meta xmlns="{CORE}"',
    'a xmlns:p="urn:p"',
    'a xmlns:p="urn:p" p:b="1"',
    f'a xmlns:p="{SCHEMA_INSTANCE}" p:type="t" b="1"',
    'p:a xmlns:p="urn:p"',
    f'p:a xmlns:p="{ENVELOPE}"',
    'p:a xmlns:p="urn:p" xmlns="urn:q"',
    'xml:a xmlns="urn:q"',
]
"""What start tags are made of; the simple ones come up more often."""

TEXTS = [
    *["", "1", "=", "xmlns", " xmlns:p=", "&lt;/a&gt;", "&amp;", "]]&gt;", "&quot;'", "&#13;"],
    *["&#9;\t", "&#10;\n", "\r\n", "\x85", "\u2028", "\u00e4", "\U0001f600"],
    *["<![CDATA[<&]]>", "<!-- -->", "<?p?>", "1<!-- -->2<![CDATA[3]]>"],
]

tags = st.one_of(st.sampled_from(TAGS[:4]), st.sampled_from(TAGS))
texts = st.sampled_from(TEXTS)


def element(tag: str, parts: list[str]) -> str:
    """Write an element."""
    return f"<{tag}>{''.join(parts)}</{tag.partition(' ')[0]}>"


elements = st.builds(
    element,
    tags,
    st.lists(
        st.recursive(
            texts,
            lambda parts: st.builds(element, tags, st.lists(parts, max_size=4)),
            max_leaves=8,
        ),
        max_size=4,
    ),
)
limits = st.builds(
    MessageLimits,
    size=st.integers(150, 600),
    depth=st.integers(1, 80),
    elements=st.integers(1, 90),
    attributes=st.integers(0, 20),
    namespaces=st.integers(0, 20),
)


def outcome(make: Callable[[], Envelope | None]) -> tuple[object, ...] | None:
    """Return what comes of a message: all that can be told from it, or why there is none."""
    try:
        made = make()
    except Malformed as error:
        return (error.kind, error.detail)
    if made is None:
        return None
    tree = [(each.tag, each.text, {**each.attrib}) for each in made.payload.iter()]
    tails = [each.tail for each in made.payload.iterdescendants()]
    return (made._replace(payload=None), canonical(made.payload), tree, tails)  # type: ignore[arg-type]
