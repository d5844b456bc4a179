"""Canonical XML: one form for what means the same (Exclusive XML Canonicalization 1.0)."""

import pytest
from lxml import etree

from agentix.agentserver.xml.envelope import canonical
from agentix.agentserver.xml.parser import parse_strict
from tests.agentserver.xml_samples import LIMITS


@pytest.mark.parametrize(
    ("document", "written"),
    [
        pytest.param("<?xml version='1.0'?>\n\n<a/>\n", "<a></a>", id="declaration"),
        pytest.param("<!-- x --><?p x?><a><!-- y --><?p y?></a>", "<a></a>", id="comments"),
        pytest.param("<a   b = '1'\n c='2'  ></a  >", '<a b="1" c="2"></a>', id="white space"),
        pytest.param("<a> \n\t<b> x </b> </a>", "<a> \n\t<b> x </b> </a>", id="text kept"),
        pytest.param("<a>\r\nx\ry\n</a>", "<a>\nx\ny\n</a>", id="line ends"),
        pytest.param("<a>&#13;&#10;</a>", "<a>&#xD;\n</a>", id="carriage return"),
        pytest.param("<a><![CDATA[<&]]>]]&gt;</a>", "<a>&lt;&amp;]]&gt;</a>", id="sections"),
        pytest.param("<a>&quot;&apos;&#x3e;></a>", "<a>\"'&gt;&gt;</a>", id="references"),
        pytest.param("<a>&#228;\u00e4\U0001f600</a>", "<a>\u00e4\u00e4\U0001f600</a>", id="UTF-8"),
        pytest.param(
            "<a b='&lt;&gt;&amp;&quot;&apos;'/>", '<a b="&lt;>&amp;&quot;\'"></a>', id="attributes"
        ),
        pytest.param(
            "<a b='&#9;&#10;&#13; \t\n'/>", '<a b="&#x9;&#xA;&#xD;   "></a>', id="attribute space"
        ),
        pytest.param("<a c='1' b='2' A='3'/>", '<a A="3" b="2" c="1"></a>', id="order"),
        pytest.param(
            "<a xmlns:z='urn:1' xmlns:y='urn:2' y:b='1' z:c='2' a='3' y:a='4'/>",
            '<a xmlns:y="urn:2" xmlns:z="urn:1" a="3" z:c="2" y:a="4" y:b="1"></a>',
            id="order by namespace",
        ),
        pytest.param(
            "<a xmlns='urn:d' xmlns:p='urn:p' xmlns:q='urn:q'><p:b/><p:b/></a>",
            '<a xmlns="urn:d"><p:b xmlns:p="urn:p"></p:b><p:b xmlns:p="urn:p"></p:b></a>',
            id="namespaces where used",
        ),
        pytest.param(
            "<a xmlns='urn:d'><b xmlns=''><c xmlns=''/></b><d xmlns='urn:d'/></a>",
            '<a xmlns="urn:d"><b xmlns=""><c></c></b><d></d></a>',
            id="superfluous declarations",
        ),
        pytest.param("<a xmlns=''/>", "<a></a>", id="empty default"),
        pytest.param(
            "<p:a xmlns:p='urn:p'><p:a xmlns:p='urn:q'/><p:a/></p:a>",
            '<p:a xmlns:p="urn:p"><p:a xmlns:p="urn:q"></p:a><p:a></p:a></p:a>',
            id="prefix bound anew",
        ),
        pytest.param("<a xml:lang='en'><b/></a>", '<a xml:lang="en"><b></b></a>', id="xml:lang"),
        pytest.param("<a>1<!--x-->2<?p?>3</a>", "<a>123</a>", id="no gaps"),
    ],
)
def test_what_means_the_same_is_written_the_same(document: str, written: str) -> None:
    root = parse_strict(document.encode(), LIMITS)
    assert canonical(root) == written.encode()
    assert canonical(parse_strict(canonical(root), LIMITS)) == written.encode()


def test_a_part_brings_nothing_of_its_surroundings() -> None:
    document = (
        b'<a xmlns="urn:d" xmlns:p="urn:p" xml:lang="en">before<p:b c="1"><d/></p:b>after</a>'
    )
    part = parse_strict(document, LIMITS)[0]
    assert canonical(part) == b'<p:b xmlns:p="urn:p" c="1"><d xmlns="urn:d"></d></p:b>'


def test_a_comment_that_some_tree_has_is_left_out() -> None:
    assert canonical(etree.fromstring("<a><!-- x -->1</a>")) == b"<a>1</a>"
