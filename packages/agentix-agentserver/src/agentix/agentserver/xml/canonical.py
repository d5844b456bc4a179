"""Canonical XML: the one form in which messages are compared, signed, logged and sent."""

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.errors import Malformed, MalformedKind

__all__ = ["canonical"]


def canonical(element: Element) -> bytes:
    """Writes an element by Exclusive XML Canonicalization 1.0, without comments.

    Neither what surrounds the element nor the text after it is part of that.

    Raises:
        Malformed: There is no such form, as for a namespace that is a relative URI.
    """
    try:
        return etree.tostring(element, method="c14n", exclusive=True, with_comments=False)
    except etree.LxmlError as error:
        raise Malformed(MalformedKind.CANONICAL, str(error)) from error
