"""The command `agentix-namespace`, which makes, checks, builds and runs namespaces.

Each subcommand is a module with `HELP`, `add_arguments` and `run`. These modules import what is
heavy inside `run`, because every subcommand's arguments are set up at each start.

Exit codes: 0 where all went well, 1 where the work failed or a check found something, 2 where the
command cannot do what was asked, because it was asked wrongly.
"""

import argparse
import sys
from collections.abc import Sequence

from agentix.errors import AgentixError, UsageError
from agentix.namespace_sdk import build, check, dev, new, stubs
from agentix.version import VERSION

__all__ = ["main"]

SUBCOMMANDS = {"new": new, "check": check, "build": build, "stubs": stubs, "dev": dev}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The words after the command's name; those of the process by default.

    Returns:
        The exit code: 0, 1 or 2.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except UsageError as error:
        return _print_error(error, 2)
    except (AgentixError, OSError) as error:
        return _print_error(error, 1)
    except KeyboardInterrupt:
        return 130


def _print_error(error: Exception, exit_code: int) -> int:
    print(f"agentix-namespace: {error}", file=sys.stderr)
    return exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentix-namespace", description="Make, check, build and run namespaces."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in SUBCOMMANDS.items():
        description = (module.__doc__ or "").partition("\n\n")[0]
        subcommand = commands.add_parser(name, help=module.HELP, description=description)
        module.add_arguments(subcommand)
        subcommand.set_defaults(run=module.run)
    return parser
