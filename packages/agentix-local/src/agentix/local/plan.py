"""The plan of a sandbox: all that the launcher needs to know, worked out beforehand."""

from typing import TypedDict

__all__ = ["Plan"]


class Plan(TypedDict):
    """What the owner writes to the launcher's standard input; plain values only."""

    owner: int
    """The pid of the process whose end is the end of the sandbox."""
    isolated: bool
    """Whether the sandbox has namespaces and a root of its own."""
    private_network: bool
    """Whether the sandbox has a network of its own, with nothing but `lo`."""
    hostname: str
    """The host name inside."""
    control: str
    """The directory on the host that holds the control socket."""
    image: str
    """The directory that the task image is."""
    writable: bool
    """Whether the root takes changes, in memory."""
    mounts: list[tuple[str, str]]
    """The bundles: the name below /mnt and the directory on the host."""
    host_paths: list[str]
    """Paths of the host that are bound at the same place, read-only."""
    cgroups: list[str]
    """The cgroup directories that the sandbox joins."""
    directory: str
    """The working directory of the runtime."""
    command: list[str]
    """The program to run, by its absolute path, and its arguments."""
    environment: dict[str, str]
    """The environment of the runtime."""
