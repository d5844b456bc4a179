"""The weight of JSON: what is counted, wherever a text is cut."""

import tracemalloc

import pytest
from pydantic_core import from_json

from agentix.client.weight import BLOCK, most, weight

COMMA, COLON, BRACKET, BRACE = 80, 48, 64, 360


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("1", 0),
        ("[]", BRACKET),
        ("[1,2,3]", BRACKET + 2 * COMMA),
        ('{"a":1}', BRACE + COLON + 3),
        ('"abc"', 5),
        ('"[[{{,,::"', 10),
        (r'"\"[,"', 5),
        (r'"\\",[', 3 + BRACKET + COMMA),
        (r'"\\\"[,"', 6),
        (r'"\n\n"', 4),
        (r'"\u0041"', 2 * 3),
        (r'"\\u0041"', 2 * 8),
        ('"é"', 2 * 3),
        ('"漢"', 2 * 3),
        ('"😀"', 4 * 3),
        (r'"\ud83d\ude00"', 4 * 4),
        (r'"\uD83D\uDE00"', 4 * 4),
    ],
)
def test_weight_counts_what_is_outside_of_strings_and_the_width_of_those(
    text: str, expected: int
) -> None:
    assert weight(text.encode()) == expected
    assert weight(bytearray(text.encode())) == expected
    assert most(text.encode()) >= expected


@pytest.mark.parametrize("text", [r'"\"[,"', r'"\\",[', r'"\u0041[",', '"漢[",', '{"a,":[1]},'])
@pytest.mark.parametrize("offset", range(12))
def test_weight_does_not_depend_on_where_a_text_is_cut(text: str, offset: int) -> None:
    ahead = b" " * (BLOCK - offset)
    assert weight(ahead + text.encode()) == weight(text.encode())


@pytest.mark.parametrize(
    "piece",
    ["[]", "{}", "1", "1234567", "0.5", '""', '"ab"', '{"a":1}', '[[],{"é":"漢"}]', '"😀x"'],
)
def test_weight_is_at_least_what_the_values_take(piece: str) -> None:
    text = f"[{','.join([piece] * 10_000)}]".encode()
    tracemalloc.start()
    try:
        value = from_json(text)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(value) == 10_000
    assert taken <= weight(text)
