"""AgentServer: handlers, a message pump, and the organism that they make.

The names are loaded on first use: a worker imports `xmlify` and `HandlerMetadata` without lxml.
"""

import importlib
from typing import TYPE_CHECKING

from agentix.agentserver.payload.types import HandlerMetadata, Reply, xmlify

if TYPE_CHECKING:
    from agentix.agentserver.catalog import Capability
    from agentix.agentserver.errors import (
        AgentServerError,
        CallTimeoutError,
        NoReplyError,
        OrganismClosedError,
        RegistrationError,
        SpecError,
    )
    from agentix.agentserver.log import Event
    from agentix.agentserver.names import Principal
    from agentix.agentserver.organism import Organism, Receipt, ThreadInfo, wrap
    from agentix.agentserver.registry import InProcessListener, Request
    from agentix.agentserver.spec import ListenerSpec, OrganismSpec
else:
    _HOMES = {
        "AgentServerError": "errors",
        "CallTimeoutError": "errors",
        "Capability": "catalog",
        "Event": "log",
        "InProcessListener": "registry",
        "ListenerSpec": "spec",
        "Organism": "organism",
        "OrganismClosedError": "errors",
        "NoReplyError": "errors",
        "OrganismSpec": "spec",
        "Principal": "names",
        "Receipt": "organism",
        "RegistrationError": "errors",
        "Request": "registry",
        "SpecError": "errors",
        "ThreadInfo": "organism",
        "wrap": "organism",
    }

    def __getattr__(name):
        """Load a name from its module on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "AgentServerError",
    "CallTimeoutError",
    "Capability",
    "Event",
    "HandlerMetadata",
    "InProcessListener",
    "ListenerSpec",
    "NoReplyError",
    "Organism",
    "OrganismClosedError",
    "OrganismSpec",
    "Principal",
    "Receipt",
    "RegistrationError",
    "Reply",
    "Request",
    "SpecError",
    "ThreadInfo",
    "wrap",
    "xmlify",
]
