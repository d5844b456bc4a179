"""The plan of a sandbox: all that the launcher needs to know, worked out beforehand."""

from typing import TypedDict

__all__ = ["Plan"]


class Plan(TypedDict):
    """What the owner writes to the launcher's standard input; plain values only."""

    isolated: bool
    """Whether the sandbox has namespaces and a root of its own."""
    private_network: bool
    """Whether the sandbox has a network of its own, with nothing but `lo`."""
    hostname: str
    """The host name inside."""
    socket: str
    """The runtime's listening socket on the host."""
    control: str
    """The sandbox's directory on the host, which it does not see unless it is not isolated."""
    hidden: str
    """The path of all control directories in the task image; empty where it has none."""
    listener: int
    """The descriptor of the listening socket."""
    token_file: str
    """Where the sandbox finds its token, by its path there."""
    token: str
    """The token."""
    image: str
    """The directory that the task image is."""
    writable: bool
    """Whether the root takes changes, in memory."""
    mounts: list[tuple[str, str]]
    """The bundles: the name below /mnt and the directory on the host."""
    host_paths: list[str]
    """Paths of the host that are bound at the same place, read-only."""
    lasting_memory: int
    """Bytes that files and System V objects may take, which no end of a process frees."""
    cgroups: list[str]
    """The cgroup directories that the sandbox joins."""
    directory: str
    """The working directory of the runtime."""
    command: list[str]
    """The program to run, by its absolute path, and its arguments."""
    environment: dict[str, str]
    """The environment of the runtime."""
