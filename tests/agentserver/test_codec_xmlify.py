"""@xmlify: marks a class, wherever it stands, and makes it a dataclass where nothing else does."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from agentix.agentserver.payload import constructor, describe_record
from agentix.agentserver.payload.types import HandlerMetadata, is_xmlified, xmlify


@xmlify
@dataclass
class Above:
    a: int = 0
    items: list[int] = field(default_factory=list)


@dataclass
@xmlify
class Below:
    a: int = 0
    items: list[int] = field(default_factory=list)


@xmlify
class Alone:
    a: int = 0
    items: list[int] = field(default_factory=list)


@dataclass(frozen=True, order=True)
@xmlify
class Frozen:
    a: int = 0
    items: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
@xmlify
class Slotted:
    a: int = 0
    items: list[int] = field(default_factory=list)


@dataclass(frozen=True)
@xmlify
class Hashable:
    a: int = 0


CLASSES: list[Any] = [Above, Below, Alone, Frozen, Slotted]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_marked_class_is_a_dataclass_wherever_the_mark_stands(cls: Any) -> None:
    assert is_xmlified(cls)
    assert [*inspect.signature(cls).parameters] == ["a", "items"]
    assert [field.name for field in dataclasses.fields(cls)] == ["a", "items"]
    assert [field.name for field in describe_record(cls).fields] == ["a", "items"]
    first, second = cls(a=1), cls(a=1, items=[2])
    assert (first.a, first.items, second.items) == (1, [], [2])
    assert first.items is not cls(a=1).items
    assert repr(first) == f"{cls.__name__}(a=1, items=[])"
    assert first == cls(a=1) != second
    assert copy.copy(first) == first
    assert pickle.loads(pickle.dumps(first)) == first
    assert constructor(cls)({"a": 1, "items": [2]}) == second


def test_the_settings_of_a_dataclass_above_count() -> None:
    with pytest.raises(FrozenInstanceError):
        Frozen().a = 1  # type: ignore[misc]
    assert Frozen(1) < Frozen(2)
    assert hash(Hashable(1)) == hash(Hashable(1))
    assert Slotted.__slots__ == ("a", "items")
    with pytest.raises(TypeError, match="positional"):
        Slotted(1)


def test_a_class_alone_keeps_what_its_author_wrote() -> None:
    @xmlify
    class Own:
        a: int

        def __init__(self, a: int) -> None:
            self.a = a + 1

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

    assert Own(1).a == 2
    assert Own(1) == Own(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Own(1))


def test_marked_classes_have_marked_subclasses() -> None:
    @xmlify
    class Child(Alone):
        b: str = ""

    assert [field.name for field in dataclasses.fields(Child)] == ["a", "items", "b"]
    assert Child(1, [2], "x") == Child(a=1, items=[2], b="x")


def test_the_mark_is_not_inherited() -> None:
    class Child(Alone):
        pass

    assert not is_xmlified(Child)
    assert not is_xmlified(HandlerMetadata)


def test_a_default_is_found_on_the_class() -> None:
    @xmlify
    class Plain:
        a: int = field(default=3)
        items: list[int] = field(default_factory=list)

    assert Plain().a == Plain().a == 3
    assert Plain.a == 3
    assert "items" not in Plain.__dict__


def test_a10_metadata_has_exactly_two_fields_and_is_frozen() -> None:
    metadata = HandlerMetadata("550e8400-e29b-41d4-a716-446655440000")
    assert [field.name for field in dataclasses.fields(metadata)] == ["thread_id", "own_name"]
    assert metadata.own_name is None
    with pytest.raises(FrozenInstanceError):
        metadata.own_name = "researcher"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        metadata.thread_id = ""  # type: ignore[misc]
