"""Programs of this machine that builds run: Nix, Docker and pip; and what is there of them."""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from agentix.errors import UsageError
from agentix.namespace_sdk.errors import BuildError

__all__ = [
    "choose_platform",
    "engine_answers",
    "engine_platform",
    "loaded_id",
    "machine_platform",
    "nix_answers",
    "run_program",
]

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What images call the machines that Linux names otherwise."""


def run_program(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program, its messages going to standard error, and return its output.

    Raises:
        BuildError: It is missing or failed.
    """
    try:
        finished = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    if finished.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` failed with exit code {finished.returncode}")
    return finished.stdout


def nix_answers() -> bool:
    """Return whether Nix is here and knows a package set by the name `nixpkgs`."""
    return _output_of("nix-instantiate", "--find-file", "nixpkgs") is not None


def engine_answers() -> bool:
    """Return whether a Docker engine can be used."""
    return _output_of("docker", "version") is not None


def loaded_id(tag: str) -> str | None:
    """Return the id of the image that a tag names in the engine, if there are both."""
    return _output_of("docker", "image", "inspect", "--format", "{{.Id}}", tag)


def _output_of(*command: str) -> str | None:
    """Return what a program prints, its messages dropped; `None` where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    finished = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return finished.stdout.strip() if finished.returncode == 0 else None


def engine_platform() -> str:
    """Return the platform that the engine runs on.

    Raises:
        BuildError: No engine answers.
    """
    server = json.loads(run_program(["docker", "version", "--format", "{{json .Server}}"]))
    return f"{server['Os']}/{server['Arch']}"


def machine_platform() -> str:
    """Return the platform of this machine."""
    machine = platform.machine()
    return f"linux/{ARCHITECTURES.get(machine, machine)}"


def choose_platform(wanted: str | None) -> str:
    """Return the platform to build for; this machine's where none is wanted.

    Raises:
        UsageError: It is none of Linux.
    """
    chosen = machine_platform() if wanted is None else wanted
    system, *architecture = chosen.split("/")
    if system != "linux" or not 1 <= len(architecture) <= 2 or not all(architecture):
        raise UsageError(f"{chosen!r} is no platform such as linux/amd64 or linux/arm64")
    return chosen
