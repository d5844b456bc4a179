"""What a sandbox's container is made of (architecture: Sandbox layout, Deployment)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentix.deployment import SandboxConfig
from agentix.docker.engine import EngineImage
from agentix.docker.volumes import volume_name
from agentix.errors import UsageError
from agentix.linux.control import SOCKET
from agentix.linux.handoff import INNER_SOCKET
from agentix.wire import DEFAULT_PORT

__all__ = [
    "TASK_CAPABILITIES",
    "ContainerPlan",
    "Control",
    "Network",
    "SandboxImages",
    "TcpControl",
    "UnixControl",
    "container_config",
]

TASK_CAPABILITIES = (
    "CHOWN",  # package managers hand files to their owners
    "DAC_OVERRIDE",  # root reads and writes what others own, as it does on any machine
    "FOWNER",  # chmod and utime on files of others: dpkg, tar
    "FSETID",  # setgid bits survive a chmod: dpkg, shared directories
    "KILL",  # the runtime ends commands that run as another user
    "NET_BIND_SERVICE",  # servers under test listen on ports below 1024
    "SETFCAP",  # packages that carry file capabilities unpack; they gain nothing by them
    "SETGID",  # su, apt's own user, commands as the image's USER
    "SETUID",  # the same
    "SYS_CHROOT",  # chroot: debootstrap, daemons that confine themselves
)
"""The capabilities that a task image needs; all others are dropped, among them Docker's own
defaults AUDIT_WRITE, MKNOD, NET_RAW and SETPCAP."""

TOKEN_PATH = "/nix/.token"  # noqa: S105
"""Where the runtime finds the token: on a tmpfs, and only until it has read it."""

HANDOFF_TARGET = "/run/agentix"
"""Where the directory of the handoff appears in the sandbox, read-only."""

ENTRYPOINT = f"""\
set -e
(
  unset token
  IFS= read -r token
  umask 077
  printf %s "$token" >{TOKEN_PATH}
)
(
  mkdir -p /nix/store
  for d in /mnt/*/store; do
    set -- "$d"/*
    if [ -e "$1" ]; then ln -sfn "$@" /nix/store/; fi
  done
)
exec /mnt/runtime/entry/bin/start </dev/null
"""
"""The architecture's entrypoint; a store without entries leaves no dangling link.

The token comes as the first line of standard input: no disk, argument or environment has it. It
comes once the keeper guards the sandbox; an owner that dies before sends none, and `read` fails.
A variable that the environment has is exported again with its new value: none is set but in a
subshell."""

NIX_SIZE = "16m"
"""The size of the tmpfs for links; a hostile task shall not fill the memory through it."""

DIGITS_IN_MOUNT = 16
"""Digits of the digest in a mount's name: every link of the store carries them."""


Network = Literal["bridge", "host", "none"]


@dataclass(frozen=True)
class UnixControl:
    """The runtime serves on a Unix socket that this process made, and that no sandbox sees."""

    socket: Path
    """The socket on the host."""
    handoff: Path
    """The directory through which the runtime gets it (`agentix.linux.handoff`)."""

    @property
    def environment(self) -> dict[str, str | None]:
        """The runtime's settings; `None` takes a variable of the image away."""
        return {
            "AGENTIX_BIND_HANDOFF": f"{HANDOFF_TARGET}/{SOCKET}",
            "AGENTIX_URL": f"unix:{HANDOFF_TARGET}/{INNER_SOCKET}",
            "AGENTIX_BIND_HOST": None,
            "AGENTIX_BIND_PORT": None,
        }

    @property
    def mounts(self) -> list[dict[str, object]]:
        """The directory's mount; the engine refuses it where it does not see the directory."""
        return [
            {
                "Type": "bind",
                "Source": str(self.handoff),
                "Target": HANDOFF_TARGET,
                "ReadOnly": True,
                "BindOptions": {"Propagation": "rprivate"},
            }
        ]

    @property
    def ports(self) -> dict[str, list[dict[str, str]]]:
        """Nothing is published."""
        return {}


@dataclass(frozen=True)
class TcpControl:
    """The runtime listens on a port."""

    publish_host: str
    """The address on the engine's host at which the port is reached."""
    network: Network
    """Whether the sandbox has a network of its own, so that its port has to be published."""

    @property
    def environment(self) -> dict[str, str | None]:
        """The runtime's settings; `None` takes a variable of the image away."""
        own = self.network == "bridge"
        return {
            "AGENTIX_BIND_HANDOFF": None,
            "AGENTIX_URL": None,
            "AGENTIX_BIND_HOST": "0.0.0.0" if own else self.publish_host,  # noqa: S104
            "AGENTIX_BIND_PORT": str(DEFAULT_PORT if own else 0),
        }

    @property
    def mounts(self) -> list[dict[str, object]]:
        """Nothing of the host is mounted."""
        return []

    @property
    def ports(self) -> dict[str, list[dict[str, str]]]:
        """The published port; the engine picks a free one on the host."""
        if self.network == "host":
            return {}
        return {f"{DEFAULT_PORT}/tcp": [{"HostIp": self.publish_host, "HostPort": "0"}]}


Control = UnixControl | TcpControl


@dataclass(frozen=True)
class SandboxImages:
    """The images of a sandbox, as they are on the engine."""

    task: EngineImage
    """The task image."""
    runtime: EngineImage
    """The runtime image."""
    namespaces: Sequence[EngineImage]
    """The namespace images; one digest may come more than once."""


@dataclass(frozen=True)
class ContainerPlan:
    """All that a sandbox's container is made from."""

    config: SandboxConfig
    """What was asked for."""
    network: str
    """What the engine calls its network."""
    images: SandboxImages
    """What it runs; the volumes of the runtime and the namespaces are filled."""
    control: Control
    """How this process reaches the runtime."""
    memory: int | None
    """The limit of its memory in bytes, the default applied."""
    pids: int | None
    """The limit of its processes and threads, the default applied."""
    labels: dict[str, str]
    """The container's labels."""
    capabilities: Sequence[str]
    """The capabilities that the container keeps."""


def container_config(plan: ContainerPlan) -> dict[str, object]:
    """Return the body of the engine's request that makes the container.

    Raises:
        UsageError: The configuration sets a variable that is the deployment's to set.
    """
    return {
        "Image": f"sha256:{plan.images.task.digest}",
        "Entrypoint": ["/mnt/runtime/entry/bin/sh", "-c", ENTRYPOINT],
        "User": "0:0",
        "Env": _environment(plan),
        "Labels": plan.labels,
        "Healthcheck": {"Test": ["NONE"]},  # the task image's own would run in every sandbox
        "ExposedPorts": {port: {} for port in plan.control.ports},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host_config(plan),
    }


def _environment(plan: ContainerPlan) -> list[str]:
    settings: dict[str, str | None] = {
        **plan.control.environment,
        "AGENTIX_MOUNT_ROOT": "/mnt",
        "AGENTIX_TOKEN_FILE": TOKEN_PATH,
        "AGENTIX_BIND_FD": None,
        "AGENTIX_BIND_UNIX": None,
        "AGENTIX_EXEC_USER": plan.config.user or plan.images.task.user or None,
    }
    taken = sorted(settings.keys() & plan.config.env.keys())
    if taken:
        raise UsageError(f"env sets {', '.join(taken)}: the deployment sets that")
    # A name without `=` removes the variable that the image sets (Engine API: ContainerCreate).
    own = [name if value is None else f"{name}={value}" for name, value in settings.items()]
    return [*(f"{name}={value}" for name, value in plan.config.env.items()), *own]


def _host_config(plan: ContainerPlan) -> dict[str, object]:
    config = plan.config
    return {
        "AutoRemove": True,
        "Init": True,
        "NetworkMode": plan.network,
        "PortBindings": plan.control.ports,
        "Binds": _closure_binds(plan),
        "Mounts": plan.control.mounts,
        "Tmpfs": {"/nix": f"exec,mode=755,size={NIX_SIZE}"},
        "CapDrop": ["ALL"],
        "CapAdd": list(plan.capabilities),
        "SecurityOpt": ["no-new-privileges"],
        "Memory": plan.memory or 0,
        "MemorySwap": plan.memory or 0,  # no swap beyond the memory limit
        "NanoCpus": round((config.cpus or 0) * 1e9),
        "PidsLimit": plan.pids,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}},
    }


def _closure_binds(plan: ContainerPlan) -> list[str]:
    mounts = {"/mnt/runtime": plan.images.runtime}
    for namespace in plan.images.namespaces:
        mounts[f"/mnt/c{namespace.digest[:DIGITS_IN_MOUNT]}"] = namespace
    return [f"{volume_name(image.digest)}:{target}:ro,nocopy" for target, image in mounts.items()]
