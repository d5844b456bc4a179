"""The stubs of the namespace in bench/namespaces, which no distribution carries."""

import importlib
import sys
from pathlib import Path

NAMESPACE = Path(__file__).parent / "namespaces" / "bench"
"""The source tree of the namespace."""

if str(NAMESPACE) not in sys.path:
    sys.path.append(str(NAMESPACE))
    importlib.invalidate_caches()

from agentix_namespaces.bench import Token, count, echo, echo_plain, forever, tick  # noqa: E402

__all__ = ["NAMESPACE", "Token", "count", "echo", "echo_plain", "forever", "tick"]
