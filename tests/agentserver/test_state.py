"""The states of deliveries, threads and calls: each event in each state, and what is illegal."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from agentix.agentserver.errors import TransitionError
from agentix.agentserver.state import (
    CALL,
    DELIVERY,
    THREAD,
    CallEvent,
    CallState,
    DeliveryEvent,
    DeliveryState,
    Thread,
    ThreadEvent,
    ThreadState,
)

PAGE = Path(__file__).parents[2] / "docs" / "agentserver" / "states.md"

LEGAL = {
    "delivery": """
        queued: it is the next of its thread -> waiting
        queued: its thread is closed -> done
        waiting: a slot is free -> starting
        starting: its start is written -> running
        starting: its start cannot be written -> done
        starting: its thread takes no more of it -> done
        starting: it is beyond a limit -> replying
        running: its handler has returned or failed -> replying
        replying: all that follows is sent -> done
    """,
    "thread": """
        idle: a delivery is for it -> busy
        idle: it is closed -> closed
        busy: a delivery is for it -> busy
        busy: its last delivery is done -> idle
        busy: a limit is reached -> exhausted
        busy: its caller asks anew -> busy
        busy: it is closed -> closed
        exhausted: a delivery is for it -> exhausted
        exhausted: its last delivery is done -> spent
        exhausted: its caller asks anew -> busy
        exhausted: it is closed -> closed
        spent: a delivery is for it -> exhausted
        spent: it is closed -> closed
        closed: a delivery is for it -> closed
        closed: its last delivery is done -> closed
    """,
    "call": """
        open: the message is written -> written
        open: nothing of it is under way -> settled
        open: no more can be written -> failed
        written: nothing of it is under way -> ended
        written: no more can be written -> failed
        settled: the message is written -> ended
        settled: no more can be written -> failed
        failed: the message is written -> failed
        failed: nothing of it is under way -> failed
        failed: no more can be written -> failed
    """,
}
TABLES: dict[str, tuple[Mapping[Any, Mapping[Any, StrEnum]], type[StrEnum], type[StrEnum]]] = {
    "delivery": (DELIVERY, DeliveryState, DeliveryEvent),
    "thread": (THREAD, ThreadState, ThreadEvent),
    "call": (CALL, CallState, CallEvent),
}


def legal(name: str) -> set[str]:
    """Return the lines that say what may happen to one kind of thing."""
    return {line.strip() for line in LEGAL[name].strip().splitlines()}


@pytest.mark.parametrize("name", TABLES)
def test_each_event_in_each_state_is_listed_or_refused(name: str) -> None:
    table, states, events = TABLES[name]
    found = set()
    for state in states:
        for event in events:
            if event in table[state]:
                found.add(f"{state}: {event} -> {table[state][event]}")
                continue
            with pytest.raises(TransitionError, match=f"this cannot happen now: {event}"):
                table[state][event]
    assert found == legal(name)


@pytest.mark.parametrize("name", TABLES)
def test_each_state_but_the_first_is_reached(name: str) -> None:
    table, states, _ = TABLES[name]
    reached = {after for following in table.values() for after in following.values()}
    first = next(iter(states))
    assert reached | {first} == set(states)


def diagram(name: str) -> str:
    """Return the drawing of a table, as the documentation has it."""
    table, states, _ = TABLES[name]
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(states))}"]
    for state, following in table.items():
        lines += [f"    {state} --> {after}: {event}" for event, after in following.items()]
        lines += [] if following else [f"    {state} --> [*]"]
    return "\n".join(lines)


@pytest.mark.parametrize("name", TABLES)
def test_the_drawing_of_the_documentation_is_that_of_the_table(name: str) -> None:
    assert f"```mermaid\n{diagram(name)}\n```" in PAGE.read_text()


def test_a_thread_beyond_a_limit_takes_what_its_caller_asks_anew() -> None:
    thread = Thread("id", "tool", Thread("root", "ext", None))
    thread.move(ThreadEvent.DELIVERY)
    assert thread.check_limits(1, None, is_new_request=True) is None
    excess = thread.check_limits(1, None, is_new_request=False)
    assert excess == "tool: more than 1 messages for one of its caller"
    assert thread.state == "exhausted"
    assert thread.check_limits(1, None, is_new_request=True) is None
    thread.record_tokens(3)
    excess = thread.check_limits(2, 3, is_new_request=False)
    assert excess == "tool: 3 tokens used; 3 are allowed"
    thread.move(ThreadEvent.REST)
    assert thread.state == "spent"


def test_a_closed_thread_is_not_closed_again() -> None:
    thread = Thread("id", "tool", None)
    thread.move(ThreadEvent.CLOSE)
    assert not thread.alive
    with pytest.raises(TransitionError):
        thread.move(ThreadEvent.CLOSE)
