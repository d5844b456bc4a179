"""The boot of a forkserver: a script that runs before anything is on its path.

`python -I -S boot.py DESCRIPTOR PUMP` reads a plan from the control socket, and hands over to the
forkserver.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import marshal
import os
import pkgutil
import socket
import sys

CONTROL = 3
"""The descriptor of the control socket in the forkserver."""


def main() -> None:
    """Read the plan, sets the path, and becomes the forkserver."""
    descriptor, pump = map(int, sys.argv[1:])
    if descriptor != CONTROL:
        os.dup2(descriptor, CONTROL)
        os.close(descriptor)
    os.environ.clear()
    control = socket.socket(fileno=CONTROL)
    plan = marshal.loads(control.recv(1024 * 1024))  # noqa: S302 - the pump wrote it
    sys.path[:] = plan["path"]
    place_package()

    from agentix.agentserver.worker import forkserver

    forkserver.main(control, plan, pump)


def place_package() -> None:
    """Put `agentix` in place without running it, until someone asks for a name of it.

    Its names need pydantic, which would be in the memory that every fork copies the map of.
    """
    spec = importlib.machinery.PathFinder.find_spec("agentix")
    if spec is None or spec.loader is None:
        raise ImportError("agentix is not on the path of the pump")
    package = importlib.util.module_from_spec(spec)
    package.__path__ = pkgutil.extend_path(package.__path__, "agentix")
    loader = spec.loader

    def load(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = load
    sys.modules["agentix"] = package


if __name__ == "__main__":
    main()
