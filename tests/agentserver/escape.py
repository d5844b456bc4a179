"""The escape suite: every way out of a worker that we know, tried on a pump with something to get.

As a module, `python -m tests.agentserver.escape PLAN`, it is a pump with fewer rights than the one
that starts it: it becomes an ordinary user, or has calls of the syscalls refused to it, then tries
all of the suite and prints a report and what came of each attack, as JSON.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentix.agentserver.errors import HandlerFailed
from agentix.agentserver.worker import isolation, syscalls
from agentix.agentserver.worker.handlers import HandlerSource
from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.workers import GUESTS, call, settings

NOBODY = 65534

NAMESPACES = {
    "unshare": syscalls.CALLS["unshare"],
    "setns": syscalls.CALLS["setns"],
    "mount": syscalls.CALLS["mount"],
    "open_tree": syscalls.CALLS["open_tree"],
}
"""What container engines refuse."""

LANDLOCK = {"landlock_create_ruleset": (444, 444)}


@dataclass
class Found:
    """What a run of the suite finds."""

    missing: list[str] = field(default_factory=list)
    """The measures that could not be applied."""
    lines: list[str] = field(default_factory=list)
    """The report."""
    answers: dict[str, str] = field(default_factory=dict)
    """What came of each attack."""
    connections: int = 0
    """How many connections were made to the pump's sockets."""
    pump: str = "dead"
    """The pump answered a call after everything."""


@dataclass
class Bait:
    """What the pump has that a worker wants."""

    directory: Path
    """A directory that workers may read, with a key that they may not."""
    private: Path
    """A file elsewhere."""
    port: int
    """A TCP port that the pump listens at."""
    abstract: str
    """An abstract Unix socket that it listens at."""
    datagrams: str
    """An abstract Unix socket that takes datagrams."""
    sockets: list[socket.socket]

    def connections(self) -> int:
        """Count what has come in."""
        count = 0
        for listener in self.sockets:
            with contextlib.suppress(BlockingIOError):
                if listener.type is socket.SOCK_DGRAM:
                    listener.recv(10)
                else:
                    listener.accept()[0].close()
                count += 1
        return count


@contextlib.contextmanager
def laid_bait() -> Iterator[Bait]:
    """Lay bait."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="readable-")))
        directory.chmod(0o755)
        elsewhere = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elsewhere-")))
        elsewhere.chmod(0o755)
        for path in (directory / "open", directory / "key", elsewhere / "private"):
            path.write_text("0123456789")
            path.chmod(0o644)
        names = [f"@agentix-test-{secrets.token_hex(8)}" for _ in range(2)]
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stream = stack.enter_context(socket.socket(socket.AF_UNIX))
        stream.bind(names[0].replace("@", "\0"))
        stream.listen()
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(names[1].replace("@", "\0"))
        by_path = stack.enter_context(socket.socket(socket.AF_UNIX))
        by_path.bind(str(directory / "socket"))
        by_path.listen()
        (directory / "socket").chmod(0o777)
        listeners: list[socket.socket] = [tcp, stream, datagrams, by_path]
        for listener in listeners:
            listener.setblocking(False)
        private = elsewhere / "private"
        yield Bait(directory, private, tcp.getsockname()[1], names[0], names[1], listeners)


def attacks(bait: Bait, victim: str) -> list[tuple[str, str, str]]:
    """Return every attack: a name for it, the handler's name for it, its target."""
    pump = str(os.getpid())
    return [
        ("frames", "frames", ""),
        ("other texts", "texts", victim),
        ("descriptors", "descriptors", ""),
        ("environment", "environment", ""),
        ("identity", "identity", ""),
        ("read what is readable", "read", str(bait.directory / "open")),
        ("read a hidden file", "read", str(bait.directory / "key")),
        ("read another file", "read", str(bait.private)),
        ("read passwords", "read", "/etc/passwd"),
        ("read the pump's memory", "read", f"/proc/{pump}/mem"),
        ("read the pump's environment", "read", f"/proc/{pump}/environ"),
        ("read the pump's descriptors", "list_directory", f"/proc/{pump}/fd"),
        ("read processes", "list_directory", "/proc"),
        ("scratch is empty", "list_directory", "."),
        ("write scratch", "write", "file"),
        ("write a path of the system", "write", "/usr/lib/agentix"),
        ("write beside handlers", "write", f"{GUESTS}/agentix"),
        ("write another file", "write", str(bait.private)),
        ("write a temporary file", "write", f"/tmp/agentix-{pump}"),
        ("write a large file", "large_file", str(2**30)),
        ("connect", "connect", f"127.0.0.1:{bait.port}"),
        ("connect by system calls", "raw_connect", str(bait.port)),
        ("connect to an abstract socket", "connect_unix", bait.abstract),
        ("connect to a socket by path", "connect_unix", str(bait.directory / "socket")),
        ("send a datagram", "datagram", bait.datagrams),
        ("signal the pump", "send_signal", pump),
        ("signal the pump's parent", "send_signal", str(os.getppid())),
        ("signal everyone", "signal_everyone", ""),
        ("kill the group", "kill_group", ""),
        ("trace the pump", "trace", pump),
        ("read memory by system call", "read_memory", pump),
        ("run a program", "run_program", "/bin/true"),
        ("run the dynamic loader", "run_program", "/lib64/ld-linux-x86-64.so.2"),
        ("more rights", "become_root", ""),
        ("fork bomb", "fork_bomb", ""),
        ("leave a child", "leave_child", ""),
        ("answer an unknown call", "answer_raw", "77,0,<result/>"),
        ("answer a coming call", "answer_raw", "2,0,<result/>"),
        ("answer with an unknown outcome", "answer_raw", "1,200,<result/>"),
        ("announce 4 GB", "answer_long", "4000000000"),
        ("answer noise", "answer_noise", ""),
        ("close the socket", "close_socket", ""),
    ]


EVIL = HandlerSource("evil", "hostile_handlers.attack", ("hostile_handlers.Attack",))


async def attack(workers: WorkerPool, name: str, target: str = "", thread: str = "thread") -> str:
    """Try one attack; answer what the handler says, or how its call failed."""
    try:
        plain = {"name": name, "target": target}
        return (await call(workers, EVIL, thread, plain, 20)).decode()
    except HandlerFailed as failed:
        return f"{failed.kind}: {failed.detail}"


async def run_suite() -> Found:
    """Try everything."""
    with laid_bait() as bait:
        hidden = (str(bait.directory / "key"),)
        readable = (str(bait.directory),)
        async with WorkerPool(settings(readable=readable, hidden=hidden)) as workers:
            report = workers.report()
            found = Found([measure.name for measure in report.missing], report.lines())
            victim = secrets.token_hex(16)
            await attack(workers, "store", victim, "the victim's")
            for title, name, target in attacks(bait, victim):
                found.answers[title] = await attack(workers, name, target, title)
            found.connections = bait.connections()
            if await attack(workers, "store", "", "the victim's") == victim:
                found.pump = "alive"
    return found


def confine(plan: dict[str, Any]) -> None:
    """Return up rights, and start this module again without them."""
    if plan.pop("ordinary", False) and os.geteuid() == 0:
        _open_ways()
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    refused = plan.pop("refuse", [])
    if refused:
        syscalls.call("prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        known = NAMESPACES | LANDLOCK
        syscalls.install(syscalls.build([], [known[name] for name in refused]))
    os.execv(sys.executable, [sys.executable, "-m", "tests.agentserver.escape", "{}"])


def _open_ways() -> None:
    """Let everyone pass to what Python needs, in mounts of this process only.

    Interpreters and checkouts are often below a home that nobody else may enter.
    """
    needed = {*sys.path, sys.base_prefix, sys.prefix, str(GUESTS)}
    closed = {way for path in needed for way in Path(path).parents if _is_closed(way)}
    syscalls.call("unshare", syscalls.CLONE_NEWNS)
    syscalls.call("mount", None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE, None)
    for way in sorted(closed, key=lambda way: len(way.parts))[:1]:
        below = {Path(path) for path in needed if way in Path(path).parents and Path(path).exists()}
        tops = [path for path in below if not below.intersection(path.parents)]
        trees = [(str(path), isolation.open_tree(str(path), isolation.READ_ONLY)) for path in tops]
        isolation.mount_tmpfs(str(way), "mode=0755", 0)
        for path, tree in trees:
            isolation.attach(tree, path, is_directory=True)


def _is_closed(way: Path) -> bool:
    return way.exists() and not way.stat().st_mode & 0o001


def main() -> None:
    """Confine itself as it is told, or run the suite and print what it found."""
    plan = json.loads(sys.argv[1])
    if plan:
        confine(plan)
    print(json.dumps(asdict(asyncio.run(run_suite()))))


if __name__ == "__main__":
    main()
