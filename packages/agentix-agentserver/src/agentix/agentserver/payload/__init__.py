"""Payloads: dataclasses as XML, from their description to schema, codec, example and prompt.

`kinds`, `describe` and `construct` need no lxml, so that workers can do without it; `PayloadCodec`
is loaded on first use for the same reason.
"""

import importlib
from typing import TYPE_CHECKING

from agentix.agentserver.payload.construct import constructor, to_plain
from agentix.agentserver.payload.describe import describe_record
from agentix.agentserver.payload.types import Plain, RecordType, from_data, to_data

if TYPE_CHECKING:
    from agentix.agentserver.payload.codec import PayloadCodec
else:

    def __getattr__(name):
        """Load the codec, and lxml with it, on first use."""
        if name != "PayloadCodec":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = importlib.import_module("agentix.agentserver.payload.codec").PayloadCodec
        globals()[name] = value
        return value


__all__ = [
    "PayloadCodec",
    "Plain",
    "RecordType",
    "constructor",
    "describe_record",
    "from_data",
    "to_data",
    "to_plain",
]
