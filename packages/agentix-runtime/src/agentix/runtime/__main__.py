"""The command `agentix-server`: one runtime, from its environment to its last connection."""

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from agentix.errors import UsageError
from agentix.linux.process import forbid_inspection, raise_descriptor_limit
from agentix.runtime.app import create_app
from agentix.runtime.listener import listen, url_of
from agentix.runtime.server import serve_until
from agentix.runtime.settings import Settings
from agentix.wire import READY_PREFIX

__all__ = ["main"]

logger = logging.getLogger("agentix.runtime")

HANDED_IN = ("AGENTIX_TOKEN_FILE", "AGENTIX_BIND_FD", "AGENTIX_BIND_HANDOFF")
"""Variables about what the runtime takes for itself: nothing is there any more afterwards."""

TOKEN_BYTES = 32
"""Random bytes of a token."""


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    try:
        forbid_inspection()
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        # A result that is not of its declared type is an error, not a line on stderr.
        warnings.filterwarnings(
            "error", message="Pydantic serializer warnings", category=UserWarning
        )
        token_file = _token_file()
        token = None if token_file is None else secrets.token_urlsafe(TOKEN_BYTES)
        settings = Settings.from_environ(os.environ, token)
        # What namespaces start inherits the rest, which tells an organism where its runtime is.
        for name in HANDED_IN:
            os.environ.pop(name, None)
        asyncio.run(_run(settings, token_file))
    except (UsageError, OSError) as error:
        sys.exit(f"agentix-server: {error}")


def _token_file() -> Path | None:
    if len(sys.argv) == 1:
        return None
    from agentix.runtime.arguments import parse_token_file  # sandboxes start without

    return parse_token_file(sys.argv[1:])


async def _run(settings: Settings, token_file: Path | None) -> NoReturn:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = listen(settings)
    url = url_of(listener)
    app = create_app(
        settings,
        on_ready=lambda: print(f"{READY_PREFIX}{url}", flush=True),
        most_descriptors=raise_descriptor_limit(),
    )
    _settle_access(settings, token_file, listener)
    gc.freeze()
    gc.enable()  # the program that starts a runtime turns it off, since importing makes no garbage
    await serve_until(stop, app, listener)
    # Threads of plain functions that never return would keep the interpreter from ending.
    logging.shutdown()
    os._exit(0)


def _settle_access(settings: Settings, token_file: Path | None, listener: socket.socket) -> None:
    """Tell the caller the token that was made, or everybody that there is none."""
    if token_file is not None:
        from agentix.runtime.arguments import write_token

        assert settings.token is not None
        write_token(token_file, settings.token)
    if settings.token is None and listener.family != socket.AF_UNIX:
        logger.warning(
            "without a token, every user of this machine can call this runtime:"
            " agentix-server --token-file FILE makes one"
        )


if __name__ == "__main__":
    main()
