"""<huh>: a canned text and the beginning of what failed, and nothing else."""

import base64

import pytest

from agentix.agentserver.xml.envelope import CannedText, canonical, huh, is_huh, read_emission
from tests.agentserver.xml_samples import CORE, LIMITS

FAILED = b"<calculator.add.addpayload><a>x</a><b>1</b></calculator.add.addpayload>"
B1 = (
    "PGNhbGN1bGF0b3IuYWRkLmFkZHBheWxvYWQ+PGE+eDwvYT48Yj4xPC9iPjwvY2FsY3Vs"
    "YXRvci5hZGQuYWRkcGF5bG9hZD4="
)


def test_a26_a_huh_has_exactly_these_bytes() -> None:
    assert (
        canonical(huh(CannedText.INVALID_PAYLOAD, FAILED))
        == (
            f'<huh xmlns="{CORE}"><error>Invalid payload structure</error>'
            f"<original-attempt>{B1}</original-attempt></huh>"
        ).encode()
    )


@pytest.mark.parametrize("size", [0, 1, 1_023, 1_024, 1_025, 1_000_000])
def test_a30_the_attempt_is_its_first_1024_bytes(size: int) -> None:
    attempt = bytes(range(256)) * (size // 256 + 1)
    element = huh(CannedText.MALFORMED, attempt[:size])
    encoded = element.findtext(f"{{{CORE}}}original-attempt")
    assert base64.b64decode(encoded or "", validate=True) == attempt[: min(size, 1_024)]


def test_a12_the_guard_text_is_the_documented_one() -> None:
    text = CannedText.NO_BYTES.value
    assert text == "Handler failed to return valid bytes \u2014 likely missing return or wrong type"
    assert len(text.encode()) == 76
    assert b"bytes \xe2\x80\x94 likely" in canonical(huh(CannedText.NO_BYTES, b""))


def test_the_canned_texts_are_all_there_is_to_say() -> None:
    assert {text.value for text in CannedText} - {CannedText.NO_BYTES.value} == {
        "Invalid payload structure",
        "Malformed message",
        "Handler failed",
        "Limit exceeded",
    }


def test_only_an_element_of_the_core_namespace_is_a_huh() -> None:
    assert is_huh(huh(CannedText.MALFORMED, b""))
    (forged,) = read_emission(b"<huh/>", LIMITS).payloads
    assert not is_huh(forged)
