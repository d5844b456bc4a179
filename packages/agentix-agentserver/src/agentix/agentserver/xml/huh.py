"""<huh>: the pump's answer to what it can not deliver; it says little, on purpose."""

import base64
from enum import Enum

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.core import CORE_NAMESPACE

__all__ = ["ATTEMPT_BYTES", "HUH", "CannedText", "huh", "is_huh"]

ATTEMPT_BYTES = 1_024
"""How much of a failed attempt is given back, in bytes before base64."""

HUH = f"{{{CORE_NAMESPACE}}}huh"
"""The tag of a `<huh>`, in Clark notation."""


class CannedText(Enum):
    """All that a `<huh>` may say; what happened in detail is for the log."""

    INVALID_PAYLOAD = "Invalid payload structure"
    """A schema refuses it, or the root is unknown, or is not for this sender: all look the same."""
    NO_BYTES = "Handler failed to return valid bytes \u2014 likely missing return or wrong type"
    """A handler returned something else than bytes."""
    MALFORMED = "Malformed message"
    """It is no envelope, or not XML, or too large."""
    HANDLER_FAILED = "Handler failed"
    """A handler raised, timed out, died, or emitted nothing."""
    LIMIT_EXCEEDED = "Limit exceeded"
    """A budget is used up."""


def huh(error: CannedText, attempt: bytes) -> Element:
    """Makes a `<huh>`.

    Args:
        error: What it says.
        attempt: The bytes that failed; the first 1,024 are given back.
    """
    element = etree.Element(HUH, nsmap={None: CORE_NAMESPACE})
    etree.SubElement(element, f"{{{CORE_NAMESPACE}}}error").text = error.value
    encoded = base64.b64encode(attempt[:ATTEMPT_BYTES]).decode("ascii")
    etree.SubElement(element, f"{{{CORE_NAMESPACE}}}original-attempt").text = encoded
    return element


def is_huh(element: Element) -> bool:
    """Tells whether an element is a `<huh>` of the core namespace."""
    return element.tag == HUH
