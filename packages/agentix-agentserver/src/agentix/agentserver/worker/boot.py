"""The boot of a zygote: a script that runs before anything is on its path.

`python -I -S boot.py DESCRIPTOR PUMP` reads a plan from the control socket, and hands over to
the zygote.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

CONTROL = 3
"""The descriptor of the control socket in the zygote."""


def main() -> None:
    """Reads the plan, sets the path, and becomes the zygote."""
    descriptor, pump = map(int, sys.argv[1:])
    if descriptor != CONTROL:
        os.dup2(descriptor, CONTROL)
        os.close(descriptor)
    control = socket.socket(fileno=CONTROL)
    plan = marshal.loads(control.recv(1024 * 1024))  # noqa: S302 - the pump wrote it
    sys.path[:] = plan["path"]

    from agentix.agentserver.worker import zygote

    zygote.main(control, plan, pump)


if __name__ == "__main__":
    main()
