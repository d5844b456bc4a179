"""Platforms: what images say that they run on."""

import platform

from agentix.errors import UsageError

__all__ = ["choose_platform", "machine_platform"]

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What images call the machines that Linux names otherwise."""


def machine_platform() -> str:
    """Gives the platform of this machine."""
    machine = platform.machine()
    return f"linux/{MACHINES.get(machine, machine)}"


def choose_platform(wanted: str | None) -> str:
    """Gives the platform to build for; this machine's where none is wanted.

    Raises:
        UsageError: It is none of Linux.
    """
    chosen = machine_platform() if wanted is None else wanted
    system, *architecture = chosen.split("/")
    if system != "linux" or not 1 <= len(architecture) <= 2 or not all(architecture):
        raise UsageError(f"{chosen!r} is no platform such as linux/amd64 or linux/arm64")
    return chosen
