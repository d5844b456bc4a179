"""Listeners of one module whose descriptions tell which import they are of, and two that break."""

from __future__ import annotations

import os
import time
from typing import Literal

from agentix.agentserver.payload.types import HandlerMetadata, xmlify

TOKEN = os.urandom(8).hex()
poisoned = False


def poison() -> type:
    global poisoned
    poisoned = True
    return str


@xmlify
class Told:
    """Tells the import."""

    token: os._exit(5) if poisoned else Literal[TOKEN]  # type: ignore[valid-type]


@xmlify
class Poisonous:
    """Leaves something for those who come after it."""

    field: poison()  # type: ignore[valid-type]


@xmlify
class Exiting:
    """Ends the process that asks for its fields."""

    field: os._exit(4)  # type: ignore[valid-type]


@xmlify
class Hanging:
    """Keeps the process that asks for its fields."""

    field: time.sleep(3600)  # type: ignore[valid-type]


async def handle(payload: Told, metadata: HandlerMetadata) -> bytes:
    return b"<x/>"
