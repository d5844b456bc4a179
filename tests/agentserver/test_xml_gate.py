"""The gate: what is refused before any parser sees it."""

import codecs

import pytest
from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind
from agentix.agentserver.xml.parser import PARSERS, parse_strict, precheck
from tests.agentserver.xml_samples import LIMITS

SIZE = 1_000


def refused(data: bytes) -> MalformedKind:
    """Return why bytes are refused."""
    with pytest.raises(Malformed) as raised:
        precheck(data, SIZE)
    return raised.value.kind


@pytest.mark.parametrize(
    "data",
    [
        b"<a/>",
        b" \r\n\t<a/>",
        b"<?xml version='1.0'?><a/>",
        b'<?xml version="1.0" encoding="UTF-8"?>\n<a/>',
        b"<?xml version = '1.0' encoding = 'utf-8' standalone='yes' ?><a/>",
        b"<!-- c --> <?p i?><!----><a/>",
        b"<?xml-stylesheet href='x'?><a/>",
        "<größe/>".encode(),
        "<ä/>".encode(),
        b"<!-- <!doctype html> --><a/>",
    ],
)
def test_documents_pass_unchanged(data: bytes) -> None:
    assert precheck(data, SIZE) == data
    assert parse_strict(data, LIMITS) is not None


def test_a_byte_order_mark_is_taken_off() -> None:
    assert precheck(codecs.BOM_UTF8 + b"<a/>", SIZE) == b"<a/>"


def test_size_is_counted_in_bytes() -> None:
    assert precheck(b"<a/>" + b" " * 996, SIZE)
    assert refused(b"<a/>" + b" " * 997) is MalformedKind.TOO_LARGE


@pytest.mark.parametrize(
    "data",
    [
        "<a/>".encode("utf-16"),
        "<a>ä</a>".encode("latin-1"),
        b"<a>\xc0\xaf</a>",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
    ],
)
def test_other_encodings_are_refused(data: bytes) -> None:
    assert refused(data) is MalformedKind.ENCODING


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_never_hides_a_doctype(encoding: str) -> None:
    data = "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>".encode(encoding)
    with pytest.raises(Malformed):
        parse_strict(precheck(data, SIZE), LIMITS)


@pytest.mark.parametrize(
    "declaration",
    [
        "version='1.1'",
        "version='1.0' encoding='UTF-7'",
        "version='1.0' encoding='UTF-16'",
        "version='1.0' encoding='ISO-8859-1'",
        "version='1.0' encoding='x-utf-8'",
        "encoding='UTF-8'",
        "version='1.0' standalone='maybe'",
        "version='1.0' more='less'",
        "",
    ],
)
def test_declarations_of_anything_else_are_refused(declaration: str) -> None:
    assert refused(f"<?xml {declaration}?><a/>".encode()) is MalformedKind.PROLOG


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE a><a/>",
        b" \n<!DOCTYPE a><a/>",
        b"<?xml version='1.0'?>\n<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
        b"<!-- c --><?p i?><!DOCTYPE a><a/>",
        b"<!doctype html><a/>",
        b"<!-- <!DOCTYPE a> --><a/>",
        b"<?p <!DOCTYPE a>?><a/>",
        codecs.BOM_UTF8 + b"<!DOCTYPE a><a/>",
    ],
)
def test_a_document_type_is_refused(data: bytes) -> None:
    assert refused(data) is MalformedKind.DOCTYPE


@pytest.mark.parametrize(
    "data", [b"<!ENTITY x 'y'><a/>", b"<![CDATA[x]]><a/>", b"<!-- no end", b"<?no end", b"<?xml"]
)
def test_other_prologs_are_refused(data: bytes) -> None:
    assert refused(data) is MalformedKind.PROLOG


def test_a_prolog_of_many_pieces_is_refused() -> None:
    most = b" <?p?>" * 127 + b"<a/>"
    assert precheck(most, 2_000) == most
    with pytest.raises(Malformed, match="more than 256 comments and instructions") as raised:
        precheck(b" <?p?>" * 128 + b"<a/>", 2_000)
    assert raised.value.kind is MalformedKind.PROLOG


class Interrupted(etree.XMLParser):
    """A parser that is interrupted once, between what it is fed and the end of that."""

    interrupted = False

    def close(self) -> Element:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().close()


def test_an_interrupted_parse_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PARSERS, "strict", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        parse_strict(b"<a/>", LIMITS)
    assert parse_strict(b"<b/>", LIMITS).tag == "b"
