"""Ordinary messages, which are canonical as they come: read the short way, they say the same."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentix.agentserver.xml.envelope import open_any, open_envelope, open_ordinary
from agentix.agentserver.xml.parser import MessageLimits
from tests.agentserver.xml_samples import ADD, LIMITS, META, THREAD, message
from tests.agentserver.xml_strategies import element, limits, outcome, tags, texts

NAMES = [
    "ext",
    THREAD,
    "a:b@c/d+e",
    "a b",
    " a",
    "",
    "\n",
    "a&amp;",
    "&#98;",
    "\u00e4",
    'a"=',
    "a>",
]
SNIPPETS = [
    *[" ", "\n", "\r", "\t", "text", ">", "/", "&", "&amp;", "&#98;", "]]>", "\ufeff", "\x00", "="],
    *["<!-- -->", "<?p?>", "<![CDATA[a]]>", "<a/>", "<a></a>", "<a>", "</a>", '<a xmlns=""></a>'],
    *[
        ' a="1"',
        ' xmlns=""',
        ' xmlns="urn:p"',
        "<!DOCTYPE a>",
        "</message>",
        "<to>a</to>",
        ":",
        "'",
    ],
]

inner = st.one_of(
    st.sampled_from(["", "1", "\n ", "\u00e4 '\"=", "<a></a>", "<a><b>2</b></a>"]),
    texts,
    st.builds(element, tags, st.lists(texts, max_size=2)),
)
payloads = st.builds(
    element,
    st.sampled_from(['a xmlns=""', 'calculator.add_1-x xmlns=""', 'a xmlns="urn:p"']),
    st.lists(inner, max_size=4),
)
names = st.integers(0, 9).flatmap(lambda it: st.sampled_from(NAMES[:3] if it else NAMES))
all_limits = st.integers(0, 3).flatmap(lambda it: st.just(LIMITS) if it else limits)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Write an ordinary message, and put something into it at any place."""
    to = f"<to>{draw(names)}</to>" if draw(st.booleans()) else ""
    meta = f"<from>{draw(names)}</from>{to}<thread>{draw(names)}</thread>"
    written = message(draw(payloads), meta).decode()
    for snippet in draw(st.lists(st.sampled_from(SNIPPETS), max_size=2)):
        places = [place for place, sign in enumerate(written) if sign in "<>"]
        place = draw(st.one_of(st.sampled_from(places), st.integers(0, len(written))))
        place += draw(st.integers(0, 1))
        written = written[:place] + snippet + written[place:]
    return written.encode()


@settings(max_examples=1_000, deadline=None)
@given(messages(), all_limits)
def test_the_short_way_reads_what_the_long_way_reads(data: bytes, limits: MessageLimits) -> None:
    short = outcome(lambda: open_ordinary(data, limits))
    assert short in (None, outcome(lambda: open_any(data, limits)))


@pytest.mark.parametrize(
    "data",
    [
        message(ADD),
        message(ADD, f"<from>ext</from><to>calculator.add</to><thread>{THREAD}</thread>"),
        message('<note xmlns=""><text>\u00e4 "\U0001f600"\n\t=\'</text><more></more></note>'),
        message(f'<list xmlns="">{"<item></item>" * 55}</list>'),
    ],
)
def test_an_ordinary_message_is_read_the_short_way(data: bytes) -> None:
    envelope = open_ordinary(data, LIMITS)
    assert envelope is not None
    assert envelope.canonical is data
    assert open_envelope(data, LIMITS).canonical == open_any(data, LIMITS).canonical == data


@pytest.mark.parametrize(
    "data",
    [
        message(ADD) + b"\n",
        message(ADD.replace("<a>", "<a >")),
        message(ADD.replace("<a>7</a>", "<a/>")),
        message(ADD.replace("7", "&gt;")),
        message(ADD.replace("7", ">")),
        message(ADD.replace("7", "\r")),
        message(ADD + "\n"),
        message(ADD.replace(' xmlns=""', ' a="1" xmlns=""')),
        message(ADD.replace(' xmlns=""', ' xmlns="urn:p"')),
        message(ADD, f"{META}<seen xmlns='urn:audit'></seen>"),
        message(ADD, META.replace("ext", "e t")),
        message(f'<list xmlns="">{"<item></item>" * 60}</list>'),
        message('<gr\u00f6\u00dfe xmlns=""></gr\u00f6\u00dfe>'),
        message('<xml:a xmlns=""></xml:a>'),
    ],
)
def test_any_other_message_is_read_the_long_way(data: bytes) -> None:
    assert open_ordinary(data, LIMITS) is None
    assert outcome(lambda: open_envelope(data, LIMITS)) == outcome(lambda: open_any(data, LIMITS))


@pytest.mark.parametrize(
    "payload",
    [
        ADD + ADD,
        f"{ADD}<b></b>",
        f"{ADD}text",
        "text",
        f"{ADD}</message><message>",
        f"{ADD}</a><a>",
    ],
)
def test_what_the_pattern_leaves_open_is_looked_at(payload: str) -> None:
    assert open_ordinary(message(payload), LIMITS) is None


@pytest.mark.parametrize("piece", ["<a>", "</a>", "<a></a>", "a", "a<", "<", "\u00e4"])
def test_a_message_of_one_mebibyte_is_looked_at_within_four(piece: str) -> None:
    length = (LIMITS.size - 300) // len(piece.encode())
    data = message(f'<a xmlns="">{piece * length}</a>')
    tracemalloc.start()
    try:
        open_ordinary(data, LIMITS)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * LIMITS.size
