"""Namespaces that a test writes: a small one that is right, and what makes it wrong."""

import json
from pathlib import Path
from typing import Any

PACKAGE = Path("agentix_namespaces/greeter")
MANIFEST: dict[str, Any] = {
    "abi": 1,
    "name": "greeter",
    "version": "1.0.0",
    "package": "agentix_namespaces.greeter",
}
STUBS = 'def greet(name: str) -> str:\n    raise NotImplementedError("call it remotely")\n'
IMPLS = 'def greet(name: str) -> str:\n    return f"Hello, {name}!"\n'
REGISTER = """\
from agentix.dispatch import Dispatcher
from . import _impl, greet
def register():
    dispatcher = Dispatcher()
    dispatcher.bind(greet, _impl.greet)
    return dispatcher
"""


def write_namespace(
    directory: Path,
    *,
    stubs: str = STUBS,
    impls: str = IMPLS,
    register: str = REGISTER,
    **manifest: Any,
) -> Path:
    """Write the source tree of a namespace, and return its directory."""
    package = directory / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(stubs)
    (package / "_impl.py").write_text(impls)
    (package / "_register.py").write_text(register)
    (package / "py.typed").touch()
    (directory / "manifest.json").write_text(json.dumps(MANIFEST | manifest))
    return directory
