"""AgentServer: handlers, a message pump, and the organism that they make.

The names are loaded on first use: a worker imports `xmlify` and `HandlerMetadata` without lxml.
"""

import importlib
from typing import TYPE_CHECKING

from agentix.agentserver.core import Reply
from agentix.agentserver.metadata import HandlerMetadata
from agentix.agentserver.xmlify import xmlify

if TYPE_CHECKING:
    from agentix.agentserver.errors import AgentServerError, RegistrationError
    from agentix.agentserver.events import Event
    from agentix.agentserver.organism import (
        CallTimeoutError,
        Capability,
        Organism,
        OrganismClosedError,
        Receipt,
        ThreadInfo,
        wrap,
    )
    from agentix.agentserver.principal import Principal
    from agentix.agentserver.spec import ListenerSpec, OrganismSpec, SpecError
    from agentix.agentserver.trusted import Request, TrustedListener
else:
    _HOMES = {
        "AgentServerError": "errors",
        "CallTimeoutError": "organism",
        "Capability": "organism",
        "Event": "events",
        "ListenerSpec": "spec",
        "Organism": "organism",
        "OrganismClosedError": "organism",
        "OrganismSpec": "spec",
        "Principal": "principal",
        "Receipt": "organism",
        "RegistrationError": "errors",
        "Request": "trusted",
        "SpecError": "spec",
        "ThreadInfo": "organism",
        "TrustedListener": "trusted",
        "wrap": "organism",
    }

    def __getattr__(name):
        """Loads a name from its module on first use."""
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
    "ListenerSpec",
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
    "TrustedListener",
    "wrap",
    "xmlify",
]
