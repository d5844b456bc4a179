"""The organism of the specification's acceptance behaviours, and others like it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentix.agentserver import Event, Organism, OrganismSpec

FIXTURE = Path(__file__).parent / "fixture"

Start = Callable[..., Awaitable[Organism]]


def document(**changes: Any) -> dict[str, Any]:
    """Return the fixture's organism.yaml, with other values of some keys."""
    document: dict[str, Any] = yaml.safe_load((FIXTURE / "organism.yaml").read_text())
    return document | changes


def listener(name: str, **changes: Any) -> dict[str, Any]:
    """Return a listener of `fixture_handlers` that does what its payload says."""
    return {
        "name": name,
        "payload_class": "fixture_handlers.DoPayload",
        "handler": "fixture_handlers.do",
        "description": f"{name} does as it is told.",
        **changes,
    }


def organism_of(
    directory: Path, more: Sequence[Mapping[str, Any]] = (), **changes: Any
) -> Organism:
    """Make an organism of the fixture's handlers, which keeps its files in a directory.

    Args:
        directory: Where schemas and the journal go.
        more: Further listeners than the fixture's.
        changes: Other values of keys of organism.yaml.
    """
    given = document(import_paths=[str(FIXTURE)], **changes)
    given["listeners"] += more
    return Organism(OrganismSpec.model_validate(given), directory)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start organisms, by default in the process of the test, and end them."""
    async with AsyncExitStack() as resources:

        async def start(
            *listeners: Mapping[str, Any], directory: Path = tmp_path, **changes: Any
        ) -> Organism:
            changes = {"isolation": "inprocess", **changes}
            organism = organism_of(directory, listeners, **changes)
            return await resources.enter_async_context(organism)

        yield start


@pytest.fixture(params=["inprocess", "thread"])
async def organism(request: pytest.FixtureRequest, start: Start) -> Organism:
    """The fixture's organism, started, without isolation and with it."""
    return await start(isolation=request.param)


async def until(
    events: AsyncIterator[Event], kind: str, count: int = 1, **values: object
) -> AsyncIterator[Event]:
    """Return events up to the nth of a kind, and with the values that are given."""
    async for event in events:
        yield event
        found = event.kind == kind
        count -= found and all(getattr(event, name) == value for name, value in values.items())
        if not count:
            return


async def events(organism: Organism, *kinds: str) -> list[Event]:
    """Return the events so far, of some kinds."""
    last = organism.status()["last_seq"]
    found = []
    async with aclosing(organism.listen()) as listening:
        async for event in listening:
            found += [event] if event.kind in kinds else []
            if event.seq >= last:
                break
    return found


async def security(organism: Organism) -> list[Event]:
    """Return the security events so far."""
    return await events(organism, "security")
