"""Stubs: every type survives the way to JSON and back, and what does not fit is named."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict, Unpack

from agentix.errors import ArgumentsError, SerializationError, StubError
from agentix.stub import Arguments, Codec, Stub, stub_of
from tests.core import future_stubs

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Options(TypedDict, total=False):
    depth: int
    name: str


@dataclass(frozen=True)
class Leaf:
    data: bytes
    ratio: float = 0.0


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


class Model(BaseModel):
    model_config = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )

    name: str
    leaves: list[Leaf] = []
    when: datetime | None = None


text = st.text(st.characters(exclude_categories=["Cs"]))
leaves = st.builds(Leaf, st.binary(), st.floats(allow_nan=False))
moments = st.datetimes(timezones=st.just(UTC))
models = st.builds(Model, name=text, leaves=st.lists(leaves, max_size=3), when=st.none() | moments)

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False)),
    (str, text),
    (bytes, st.binary()),
    (datetime, moments),
    (date, st.dates()),
    (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (UUID, st.uuids()),
    (Path, text.filter(lambda value: "\0" not in value).map(Path)),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (int | str | None, st.none() | st.integers() | text),
    (list[bytes], st.lists(st.binary(), max_size=4)),
    (dict[str, list[float]], st.dictionaries(text, st.lists(st.floats(allow_nan=False)))),
    (tuple[int, bytes], st.tuples(st.integers(), st.binary())),
    (set[int], st.sets(st.integers())),
    (frozenset[str], st.frozensets(text)),
    (Options, st.fixed_dictionaries({}, optional={"depth": st.integers(), "name": text})),
    (Leaf, leaves),
    (Box[bytes], st.builds(Box, st.binary())),
    (Box[list[Leaf]], st.builds(Box, st.lists(leaves, max_size=3))),
    (Model, models),
    (list[Model | Leaf], st.lists(models | leaves, max_size=3)),
]


@pytest.mark.parametrize(("annotation", "values"), TYPES, ids=lambda item: str(item)[:30])
@given(data=st.data())
def test_value_of_every_type_survives(
    data: st.DataObject, annotation: Any, values: st.SearchStrategy[Any]
) -> None:
    codec: Codec[Any] = Codec(annotation)
    value = data.draw(values)
    encoded = codec.encode(value)
    assert codec.encode_item(value) == encoded
    decoded = codec.decode(encoded)
    assert decoded == value
    assert type(decoded) is type(value)


class TextModel(BaseModel):
    data: bytes


def test_model_without_a_policy_refuses_bytes_that_are_no_text() -> None:
    codec: Codec[TextModel] = Codec(TextModel)
    assert codec.decode(codec.encode(TextModel(data=b"text"))) == TextModel(data=b"text")
    with pytest.raises(SerializationError, match="invalid utf-8"):
        codec.encode(TextModel(data=b"\xff"))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(float("inf"), b"Infinity"), (float("-inf"), b"-Infinity"), (float("nan"), b"NaN")],
)
def test_floats_that_json_lacks_are_words(value: float, encoded: bytes) -> None:
    codec: Codec[float] = Codec(float)
    assert codec.encode(value) == encoded
    assert repr(codec.decode(encoded)) == repr(value)


def test_bytes_are_url_safe_base64() -> None:
    assert Codec[bytes](bytes).encode(b"\xfb\xff") == b'"-_8="'


def test_mapping_becomes_the_declared_dataclass() -> None:
    codec: Codec[Any] = Codec(Leaf)
    assert codec.decode(codec.encode({"data": b"\xff"})) == Leaf(b"\xff")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, "five"), (Leaf, 5), (str, "\ud800"), (Leaf, Leaf("text"))],  # type: ignore[arg-type]
)
def test_value_of_another_type_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(SerializationError):
        Codec[Any](annotation).encode(value)


def every_kind(a: int, /, b: bytes, *rest: float, c: str = "c", **more: Leaf) -> None:
    raise NotImplementedError


def collecting(a: int = 1, /, **more: int) -> None:
    raise NotImplementedError


def named_options(**options: Unpack[Options]) -> None:
    raise NotImplementedError


def plain(message: str, times: int = 2) -> str:
    raise NotImplementedError


def sent(stub: Stub, *args: Any, **kwargs: Any) -> Arguments:
    """Sends arguments the whole way."""
    encoded = stub.encode_arguments(args, kwargs)
    return stub.decode_arguments(json.loads(encoded.args), json.loads(encoded.kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs", "seen"),
    [
        ((1, b"\xff"), {}, Arguments((1, b"\xff"), {"c": "c"})),
        ((1,), {"b": b""}, Arguments((1, b""), {"c": "c"})),
        (
            (1, b"", 2.5, float("inf")),
            {"c": "x"},
            Arguments((1, b"", 2.5, float("inf")), {"c": "x"}),
        ),
        ((1, b""), {"z": Leaf(b"\0")}, Arguments((1, b""), {"c": "c", "z": Leaf(b"\0")})),
    ],
)
def test_every_kind_of_parameter_arrives(
    args: tuple[Any, ...], kwargs: dict[str, Any], seen: Arguments
) -> None:
    assert sent(stub_of(every_kind), *args, **kwargs) == seen


def test_unpacked_options_arrive() -> None:
    assert sent(stub_of(named_options), depth=3) == Arguments((), {"depth": 3})


def test_defaults_of_the_stub_fill_what_is_not_given() -> None:
    assert sent(stub_of(plain), "x") == Arguments(("x", 2), {})


def test_arguments_go_by_name_where_they_can() -> None:
    encoded = stub_of(plain).encode_arguments(("x",), {"times": 3})
    assert (encoded.args, encoded.kwargs) == (b"[]", b'{"message":"x","times":3}')


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((), {}, "missing a required argument: 'message'"),
        (("x", 2, 3), {}, "too many positional arguments"),
        (("x",), {"other": 1}, "got an unexpected keyword argument 'other'"),
        ((5,), {}, "argument 'message': Input should be a valid string"),
        (
            ("x", "many"),
            {},
            "argument 'times': Input should be a valid integer, unable to parse string as an"
            " integer",
        ),
    ],
)
def test_wrong_arguments_are_named_on_either_end(
    args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    stub = stub_of(plain)
    with pytest.raises(ArgumentsError) as sending:
        stub.encode_arguments(args, kwargs)
    assert str(sending.value) == f"{__name__}.plain: {reason}"
    with pytest.raises(ArgumentsError) as receiving:
        stub.decode_arguments(args, kwargs)
    assert str(receiving.value) == reason


def test_name_of_a_positional_parameter_is_not_collected() -> None:
    reason = "'a' parameter is positional only, but was passed as a keyword"
    with pytest.raises(ArgumentsError) as sending:
        stub_of(collecting).encode_arguments((), {"a": 2})
    assert str(sending.value) == f"{__name__}.collecting: {reason}"
    with pytest.raises(ArgumentsError) as receiving:
        stub_of(collecting).decode_arguments([], {"a": 2})
    assert str(receiving.value) == reason


def test_every_wrong_argument_is_named_in_the_sandbox() -> None:
    with pytest.raises(ArgumentsError, match=r"argument 'message': .*; argument 'times': "):
        stub_of(plain).decode_arguments([5, "x"], {})


def test_postponed_annotations_are_resolved() -> None:
    stub = stub_of(future_stubs.move)
    point = future_stubs.Point(1, future_stubs.Point(2))
    assert sent(stub, point, by=3) == Arguments((point,), {"by": 3})
    assert stub.result.decode(stub.result.encode([point])) == [point]
    assert (stub.package, stub.method, stub.streams) == (future_stubs.__name__, "move", False)


@pytest.mark.parametrize(
    ("function", "streams"),
    [
        (future_stubs.later, False),
        (future_stubs.items, True),
        (future_stubs.generator, True),
        (future_stubs.iterable, True),
    ],
)
def test_return_annotation_says_whether_a_stub_streams(
    function: Callable[..., Any], streams: bool
) -> None:
    stub = stub_of(function)
    assert stub.streams is streams
    assert stub.result.decode(b'{"x":1}') == future_stubs.Point(1)


class Opaque:
    """Nothing that pydantic knows."""


def opaque_parameter(first: int, second: Opaque) -> None:
    raise NotImplementedError


def opaque_result() -> Opaque:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "place"),
    [(opaque_parameter, "parameter 'second'"), (opaque_result, "the return type")],
)
def test_annotation_that_pydantic_can_not_handle_is_named(
    function: Callable[..., Any], place: str
) -> None:
    name = f"{__name__}.{function.__name__}"
    with pytest.raises(StubError, match=rf"^{name}: {place} is <class '.*Opaque'>, which pydantic"):
        stub_of(function)


def test_annotation_that_can_not_be_resolved_is_named() -> None:
    with pytest.raises(StubError, match=r"an annotation can not be resolved: .*Nowhere"):
        stub_of(future_stubs.unresolvable)


def test_only_a_function_of_a_module_is_a_stub() -> None:
    def inner() -> None:
        raise NotImplementedError

    for other in (inner, lambda: None, functools.partial(plain, "x"), Opaque, "".join):
        with pytest.raises(StubError, match="is not a function of a module"):
            stub_of(other)
