"""The command `agentix-agentserver`: runs an organism, checks it, and speaks to it once."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lxml import etree

from agentix.agentserver.credentials import Identity, new_secret
from agentix.agentserver.errors import AgentServerError, CallTimeoutError
from agentix.agentserver.gateway.admin import Shutdown, send_privileged, sign_privileged
from agentix.agentserver.gateway.service import check_gateways, open_gateways
from agentix.agentserver.organism import Organism, wrap
from agentix.agentserver.xml.envelope import canonical
from agentix.errors import AgentixError

__all__ = ["main"]

logger = logging.getLogger(__name__)

REFUSED = 2
"""The exit code where nothing was run: the organism, or the command line, is not right."""

TIMED_OUT = 124
"""The exit code of `send` where no answer came in time."""

GRACE = 30.0
"""Seconds that what is under way may take at a graceful end."""

SENDER = "cli"
HUH = "{https://xml-pipeline.org/ns/core/v1}huh"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    try:
        code = int(asyncio.run(options.act(options)))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has seen enough; the interpreter must not flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (AgentixError, OSError) as error:
        print(f"agentix-agentserver: {error}", file=sys.stderr)
        return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentix-agentserver", description=__doc__)
    parser.add_argument("--verbose", "-v", action="store_true", help="log what happens")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(act=globals()[f"_{name}"])
        return command

    for name, text in (
        ("run", "start an organism and its gateways, until a signal or a command ends it"),
        ("check", "validate an organism without starting it, and show how handlers are held"),
    ):
        add(name, text).add_argument("organism", type=Path, metavar="ORGANISM.yaml")
    describe = add("describe", "print a listener's schema, example and prompt")
    describe.add_argument("name", metavar="NAME")
    _add_organism(describe)
    send = add("send", "start an organism, post one payload, and print the replies one a line")
    send.add_argument("organism", type=Path, metavar="ORGANISM.yaml")
    send.add_argument("payload", metavar="PAYLOAD", help="an element, or - for standard input")
    send.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    graph = add("graph", "print an organism as a drawing")
    _add_organism(graph, positional=True)
    graph.add_argument("--format", default="mermaid", choices=("mermaid", "graphviz", "json"))
    graph.add_argument("--team", metavar="NAME", help="only what this listener or group reaches")
    identity = add("identity", "make a key, and print its public half")
    identity.add_argument("file", type=Path, metavar="FILE")
    add("secret", "print a new secret for the codes of a user")
    privileged = add("privileged", "sign a command and send it out of band")
    privileged.add_argument("address", metavar="HOST:PORT|SOCKET")
    privileged.add_argument("command", metavar="COMMAND", help="such as '<get-status/>'")
    privileged.add_argument("--identity", type=Path, required=True, metavar="FILE")
    return parser


def _add_organism(parser: argparse.ArgumentParser, *, positional: bool = False) -> None:
    default = Path("organism.yaml")
    text = f"the organism's file; {default} where it is left out"
    if positional:
        parser.add_argument("organism", type=Path, nargs="?", default=default, help=text)
    else:
        parser.add_argument("--organism", type=Path, default=default, metavar="FILE", help=text)


async def _run(options: argparse.Namespace) -> int:
    """Serve until a signal or a privileged message ends it."""
    async with Organism.from_yaml(options.organism) as organism:
        async with open_gateways(organism) as service:
            signalled = _signalled()
            where = "".join(f" {address}" for address in service.addresses)
            print(f"agentix-agentserver ready {organism.spec.organism.name}{where}", flush=True)
            both = {signalled, service.ended}
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            shutdown = done.pop().result()
            logger.info("ending: %s", shutdown.reason or shutdown.mode)
        if shutdown.mode == "graceful":
            with suppress(TimeoutError):
                await asyncio.wait_for(organism.wait_idle(), GRACE)
    return 0


def _signalled() -> "asyncio.Future[Shutdown]":
    """Return what is done at the first signal that asks the process to end."""
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[Shutdown] = loop.create_future()

    def stop() -> None:
        if not signalled.done():
            signalled.set_result(Shutdown(reason="a signal"))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return signalled


async def _check(options: argparse.Namespace) -> int:
    """Import every handler in a worker, read keys and users, and start nothing."""
    async with Organism.from_yaml(options.organism).registered() as organism:
        check_gateways(organism)
        for capability in organism.catalog():
            print(f"{capability.name}: <{capability.root_tag}>")
        for line in organism.status()["isolation"]:
            print(line)
    return 0


async def _describe(options: argparse.Namespace) -> int:
    async with Organism.from_yaml(options.organism).registered() as organism:
        try:
            found = organism.describe(options.name)
        except KeyError as error:
            raise _unknown(options.name, organism) from error
    print(found.xsd.decode().rstrip(), found.example, found.prompt.rstrip(), sep="\n\n")
    return 0


def _unknown(name: str, organism: Organism) -> AgentServerError:
    known = ", ".join(each.name for each in organism.catalog())
    return AgentServerError(f"no listener {name!r}: there are {known}")


async def _graph(options: argparse.Namespace) -> int:
    team = options.team
    async with Organism.from_yaml(options.organism).registered() as organism:
        names = [each.name for each in organism.catalog()]
        if team is not None and not any(f"{name}.".startswith(f"{team}.") for name in names):
            raise _unknown(team, organism)
        print(organism.graph(options.format, team).rstrip())
    return 0


async def _send(options: argparse.Namespace) -> int:
    """Print the payload of each reply; a `<huh>` among them makes the exit code 1."""
    given: str = options.payload
    # Bytes as they were typed: what is not UTF-8 is for the pump to refuse.
    payload = sys.stdin.buffer.read() if given == "-" else os.fsencode(given)
    late = None
    async with Organism.from_yaml(options.organism) as organism:
        try:
            replies = await organism.call(
                wrap(payload.removeprefix(BOM_UTF8).strip(), SENDER),
                SENDER,
                timeout=options.timeout,
            )
        except CallTimeoutError as error:
            replies, late = list(error.replies), error
    payloads = [etree.fromstring(reply)[-1] for reply in replies]
    for each in payloads:
        print(canonical(each).decode().replace("\n", "&#10;"))
    if late is not None:
        print(f"agentix-agentserver: {late}", file=sys.stderr)
        return TIMED_OUT
    return 1 if any(each.tag == HUH for each in payloads) else 0


async def _identity(options: argparse.Namespace) -> int:
    print(Identity.generate(options.file).public)
    return 0


async def _secret(_: argparse.Namespace) -> int:
    print(new_secret())
    return 0


async def _privileged(options: argparse.Namespace) -> int:
    """Print the answer to a command."""
    signed = sign_privileged(options.command, Identity.load(options.identity))
    unix = "/" in options.address
    answer = await send_privileged(Path(options.address) if unix else options.address, signed)
    if answer:
        print(answer.rstrip())
    return 0
