"""A namespace with a type of every kind, for the stubs that are made of it."""

import json
from pathlib import Path

STUBS = '''"""Keeps animals."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Literal, Optional
from uuid import UUID

from pydantic import BaseModel, Field, RootModel, computed_field
from typing_extensions import NotRequired, TypedDict, Unpack


class Diet(Enum):
    """What an animal eats."""

    MEAT = "meat"
    PLANTS = "plants, \\\\"mostly\\\\""


class Legs(IntEnum):
    NONE = 0
    FOUR = 4


class Tag(TypedDict):
    text: str
    colour: NotRequired[str]


class Options(TypedDict, total=False):
    bold: bool
    size: int


Odd = TypedDict("Odd", {"from": int, "to-where": NotRequired[str]})


class Names(RootModel[list[str]]):
    pass


class Keeper(BaseModel):
    """Who looks after animals.

    Every one of them.
    """

    name: str
    boss: Optional["Keeper"] = None
    shifts: list[date] = Field(default_factory=list, description="When the keeper is there.")
    token: bytes = b"x"


class Cage(BaseModel):
    side: float = Field(gt=0)

    @computed_field
    @property
    def area(self) -> float:
        return self.side**2


@dataclass
class Animal:
    """Lives here."""

    name: str
    born: datetime
    weight: Decimal
    key: UUID
    picture: bytes
    home: Path
    diet: Diet = Diet.PLANTS
    legs: Legs = Legs.FOUR
    keeper: Keeper | None = None
    tags: list[Tag] = field(default_factory=list)
    size: tuple[int, int] = (1, 2)
    friends: set[str] = field(default_factory=set)
    mood: Literal["calm", "wild"] | int = "calm"
    notes: dict[str, list[float]] = field(default_factory=dict)
    sleep: timedelta = timedelta(hours=8)
    extra: Any = None


def greet(animal: Animal, *, loudly: bool = False, diet: Diet = Diet.MEAT) -> Animal:
    """Greets an animal; "hello" it says."""
    raise NotImplementedError


def feed(amount: int, /, *animals: str, at: Path = Path("/food"), **more: int) -> dict[str, int]:
    raise NotImplementedError


def label(text: str, **options: Unpack[Options]) -> Tag:
    raise NotImplementedError


def odd(value: Odd) -> Odd:
    raise NotImplementedError


def measure(cage: Cage) -> Cage:
    raise NotImplementedError


def names(of: Names, until: date = date(2026, 1, 2), spare: tuple[int, ...] = (1,)) -> Names:
    raise NotImplementedError


def watch(keeper: Keeper) -> AsyncIterator[Animal | None]:
    """Gives what comes by."""
    raise NotImplementedError


def rest() -> None:
    raise NotImplementedError
'''

IMPL = """
from . import Animal, Cage, Keeper, Names, Odd, Tag


def greet(animal, *, loudly=False, diet=None):
    animal.name = animal.name.upper() if loudly else animal.name
    animal.diet = diet
    return animal


def feed(amount, /, *animals, at, **more):
    return {**{animal: amount for animal in animals}, **more, str(at): 0}


def label(text, **options):
    return {"text": f"{text} {sorted(options)}"}


def odd(value):
    return value


def measure(cage):
    return cage


def names(of, until, spare):
    return Names([*of.root, until.isoformat(), *map(str, spare)])


async def watch(keeper):
    yield None


def rest():
    pass
"""

REGISTER = """
import inspect

from agentix.dispatch import Dispatcher

from . import _impl, feed, greet, label, measure, names, odd, rest, watch


def register() -> Dispatcher:
    dispatcher = Dispatcher()
    for stub in (greet, feed, label, odd, measure, names, watch, rest):
        impl = getattr(_impl, stub.__name__)
        impl.__signature__ = inspect.signature(stub)
        dispatcher.bind(stub, impl)
    return dispatcher
"""

CALLER = '''"""Calls the zoo by stubs that were made of it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type
from uuid import UUID

from agentix import LocalDeployment, RuntimeClient, SandboxConfig
from agentix_namespaces import zoo


async def calls(client: RuntimeClient) -> None:
    animal = zoo.Animal(
        name="rex",
        born=datetime(2026, 1, 2, tzinfo=timezone.utc),
        weight=Decimal("0.10"),
        key=UUID(int=7),
        picture=b"\\\\xff",
        home=Path("/cage"),
        keeper=zoo.Keeper(name="ada", boss=zoo.Keeper("bob")),
        tags=[{"text": "shy"}],
    )
    greeted = assert_type(await client.remote(zoo.greet, animal, loudly=True), zoo.Animal)
    assert greeted.diet is zoo.Diet.MEAT, greeted
    assert greeted.legs is zoo.Legs.FOUR
    greeted.name, greeted.diet = "rex", zoo.Diet.PLANTS
    assert greeted == animal, greeted
    fed = assert_type(await client.remote(zoo.feed, 3, "a", "b", c=4), dict[str, int])
    assert fed == {"a": 3, "b": 3, "c": 4, "/food": 0}, fed
    odd = assert_type(await client.remote(zoo.odd, {"from": 1, "to-where": "x"}), zoo.Odd)
    assert odd == {"from": 1, "to-where": "x"}, odd
    cage = assert_type(await client.remote(zoo.measure, zoo.CageInput(side=2.0)), zoo.Cage)
    assert cage == zoo.Cage(side=2.0, area=4.0), cage
    told = assert_type(await client.remote(zoo.names, ["a"]), list[str])
    assert told == ["a", "2026-01-02", "1"], told
    told = await client.remote(zoo.names, ["a"], until=date(2026, 3, 4), spare=[])
    assert told == ["a", "2026-03-04"], told
    async for seen in client.remote(zoo.watch, zoo.Keeper("ada")):
        assert_type(seen, zoo.Animal | None)
        assert seen is None
    tag = assert_type(await client.remote(zoo.label, "x", bold=True, size=2), zoo.Tag)
    assert tag == {"text": "x ['bold', 'size']"}, tag
    await client.remote(zoo.rest)
    print("all calls went well")


async def main(runtime: str, bundle: str) -> None:
    config = SandboxConfig(image="/", runtime=runtime, namespaces=[bundle])
    async with (
        LocalDeployment() as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        await calls(client)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
'''


def write_zoo(source: Path) -> Path:
    """Write the namespace, and return its directory."""
    package = source / "agentix_namespaces" / "zoo"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STUBS.replace("\\\\", "\\"))
    (package / "_impl.py").write_text(IMPL)
    (package / "_register.py").write_text(REGISTER)
    manifest = {"abi": 1, "name": "zoo", "version": "1.0.0", "package": "agentix_namespaces.zoo"}
    (source / "manifest.json").write_text(json.dumps(manifest))
    return source
