"""The command `agentix-server`: one runtime, from its environment to its last connection."""

import asyncio
import gc
import logging
import os
import signal
import sys
import warnings
from typing import NoReturn

from agentix.errors import UsageError
from agentix.runtime.app import create_app
from agentix.runtime.listener import listen, url_of
from agentix.runtime.server import serve_until
from agentix.runtime.settings import Settings
from agentix.wire import READY_PREFIX

__all__ = ["main"]

HANDED_IN = ("AGENTIX_TOKEN_FILE", "AGENTIX_BIND_FD", "AGENTIX_BIND_HANDOFF")
"""Variables about what the runtime takes for itself: nothing is there any more afterwards."""


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # A result that is not of its declared type is an error, not a line on stderr.
    warnings.filterwarnings("error", message="Pydantic serializer warnings", category=UserWarning)
    try:
        settings = Settings.from_environ(os.environ)
        # What namespaces start inherits the rest, which tells an organism where its runtime is.
        for name in HANDED_IN:
            os.environ.pop(name, None)
        asyncio.run(_run(settings))
    except (UsageError, OSError) as error:
        sys.exit(f"agentix-server: {error}")


async def _run(settings: Settings) -> NoReturn:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = listen(settings)
    url = url_of(listener)
    app = create_app(settings, on_ready=lambda: print(f"{READY_PREFIX}{url}", flush=True))
    gc.freeze()
    gc.enable()  # the program that starts a runtime turns it off, since importing makes no garbage
    await serve_until(stop, app, listener)
    # Threads of plain functions that never return would keep the interpreter from ending.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
