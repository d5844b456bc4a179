"""Handlers that try to get out of their worker, and say how far they got."""

import asyncio
import ctypes
import errno
import gc
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

from agentix.agentserver.payload.types import HandlerMetadata, xmlify

stored = "nothing"
"""What a thread leaves for others to find."""

LIBC = ctypes.CDLL(None, use_errno=True)


@xmlify
class Attack:
    """What to try, and on what."""

    name: str = ""
    target: str = ""


async def attack(payload: Attack, metadata: HandlerMetadata) -> bytes:
    """Try one attack; answer what came of it."""
    try:
        return str(ATTACKS[payload.name](payload.target)).encode()
    except OSError as error:
        return f"refused: {errno.errorcode.get(error.errno or 0)}".encode()


def store(target: str) -> str:
    global stored
    found, stored = stored, target
    return found


def frames(target: str) -> list[str]:
    """The code of every frame below this one."""
    found, frame = [], sys._getframe()
    while frame is not None:
        found.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return found


def texts(target: str) -> list[str]:
    """Every text in memory that mentions the target, however it is held."""
    found = [text for text in _all_texts() if target in text]
    return [text[:80] for text in found if text != target]


def _all_texts() -> list[str]:
    found = []
    for thing in gc.get_objects():
        for held in gc.get_referents(thing):
            if isinstance(held, str):
                found.append(held)
            elif isinstance(held, bytes):
                found.append(held.decode(errors="replace"))
    return found


def raw_memory(target: str) -> int:
    """How often bytes stand in the memory of this process, read where the kernel maps it.

    They are asked for backwards, and memory is read backwards, so that the search brings none.
    """
    backwards = target.encode()
    return sum(ctypes.string_at(start, 256 * 1024)[::-1].count(backwards) for start in _arenas())


def _arenas() -> list[int]:
    addresses = sorted({id(thing) & ~(256 * 1024 - 1) for thing in gc.get_objects()})
    readable = []
    for address in addresses:
        probe, reader = os.pipe()[::-1]
        pages = range(address, address + 256 * 1024, resource.getpagesize())
        if all(LIBC.write(probe, ctypes.c_void_p(page), 1) == 1 for page in pages):
            readable.append(address)
        os.close(probe)
        os.close(reader)
    return readable


def modules(target: str) -> list[str]:
    return sorted(name for name in sys.modules if name.split(".")[0] == target)


def descriptors(target: str) -> list[str]:
    """Every open descriptor, and what it is."""
    kinds = {0o010000: "pipe", 0o020000: "device", 0o140000: "socket", 0: "anonymous"}
    found = []
    for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        try:
            mode = os.fstat(number).st_mode & 0o170000
        except OSError:
            continue
        found.append(f"{number}:{kinds.get(mode, oct(mode))}")
    return found


def environment(target: str) -> list[str]:
    block = ctypes.POINTER(ctypes.c_char_p).in_dll(LIBC, "environ")
    return [*os.environ, *(["C"] if block and block[0] else [])]


def read(target: str) -> int:
    with open(target, "rb") as file:
        return len(file.read(10))


def list_directory(target: str) -> list[str]:
    return sorted(os.listdir(target))


def write(target: str) -> str:
    with open(target, "w") as file:
        file.write("x")
    return "written"


def fill_scratch(target: str) -> str:
    """Write files until the scratch directory takes no more."""
    total = 0
    try:
        for number in range(1000):
            with open(f"file{number}", "wb") as file:
                total += file.write(bytes(1024 * 1024))
    except OSError as error:
        return f"{total // 1024**2} MiB, then {errno.errorcode[error.errno or 0]}"
    return f"{total // 1024**2} MiB"


def large_file(target: str) -> str:
    with open("large", "wb") as file:
        file.truncate(int(target))
    return "written"


def connect(target: str) -> str:
    host, _, port = target.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5):
        return "connected"


def connect_unix(target: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(target.replace("@", "\0"))
    return "connected"


def raw_connect(target: str) -> str:
    """Connect without Python's socket module."""
    if (number := LIBC.socket(2, 1, 0)) < 0:
        raise OSError(ctypes.get_errno(), "socket")
    address = struct.pack("=HH4s8x", 2, socket.htons(int(target)), bytes([127, 0, 0, 1]))
    if LIBC.connect(number, address, len(address)) < 0:
        raise OSError(ctypes.get_errno(), "connect")
    return "connected"


def datagram(target: str) -> str:
    """Send from one end of a pair, which needs no new socket, to someone else."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.sendto(b"x", target.replace("@", "\0"))
    return "sent"


def send_signal(target: str) -> str:
    os.kill(int(target), signal.SIGKILL)
    return "sent"


def signal_everyone(target: str) -> list[int]:
    """Find whom it may signal, with the signal that does nothing."""
    others = (pid for pid in range(1, 100_000) if pid != os.getpid())
    return [pid for pid in others if LIBC.kill(pid, 0) == 0]


def kill_group(target: str) -> str:
    """Kill every process of its group; the first process of a namespace survives that itself."""
    os.kill(0, signal.SIGKILL)
    return "sent"


def trace(target: str) -> str:
    if LIBC.ptrace(16, int(target), None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return "attached"


def read_memory(target: str) -> str:
    """Read the memory of another process by process_vm_readv(2)."""
    space = ctypes.create_string_buffer(16)
    vector = struct.pack("=QQ", ctypes.addressof(space), 16)
    if LIBC.process_vm_readv(int(target), vector, 1, vector, 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return "read"


def run_program(target: str) -> str:
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(target, [target])
        except OSError as error:
            os._exit(error.errno or 255)
    return errno.errorcode.get(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "ran")


def become_root(target: str) -> list[str]:
    """Try every way to more rights, and says which worked."""
    ways: dict[str, Callable[[], int]] = {
        "setuid": lambda: LIBC.setuid(0) if os.getuid() else -1,
        "user namespace": lambda: LIBC.unshare(0x10000000),
        "mount": lambda: LIBC.mount(b"tmpfs", b"/", b"tmpfs", 0, None),
        "chroot": lambda: LIBC.chroot(b"/"),
        "namespace of processes": lambda: LIBC.unshare(0x20000000),
        "keyring": lambda: LIBC.syscall(250, 0, -3, 1),
        "shared memory": lambda: LIBC.shmget(1, 4096, 0o1666),
        "io_uring": lambda: LIBC.syscall(425, 1, ctypes.create_string_buffer(120)),
        "bpf": lambda: LIBC.syscall(321, 0, None, 0),
        "outlive the fork server": lambda: LIBC.prctl(1, 0, 0, 0, 0),
        "raise a limit": lambda: _raise_limit(),
    }
    return [name for name, way in ways.items() if way() >= 0]


def _raise_limit() -> int:
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (100_000, 100_000))
    except (OSError, ValueError):
        return -1
    return 0


def identity(target: str) -> str:
    return f"{os.getuid()} {os.getgid()} {os.getgroups()}"


def fork_bomb(target: str) -> str:
    """Fork until it is stopped; the children stay."""
    count = 0
    try:
        while count < 5000:
            if os.fork() == 0:
                time.sleep(3600)
            count += 1
    except OSError as error:
        return f"{count} {errno.errorcode[error.errno or 0]}"
    return f"{count}"


def leave_child(target: str) -> str:
    """Leave a child in a session of its own, with the socket open, which waits long."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
        os._exit(0)
    os.waitpid(child, 0)
    return "left"


def answer_raw(target: str) -> str:
    """Write an answer of its own making to the socket of the pump: call, outcome, content."""
    call, outcome, content = target.split(",", 2)
    os.write(3, struct.pack(">IQB", len(content), int(call), int(outcome)) + content.encode())
    return "said once more"


def answer_long(target: str) -> str:
    """Announce an answer of any length, and send some of it."""
    os.write(3, struct.pack(">IQB", int(target), 1, 0) + b"x" * 1000)
    time.sleep(3600)
    return ""


def answer_noise(target: str) -> str:
    os.write(3, os.urandom(100_000))
    return ""


def close_socket(target: str) -> str:
    os.close(3)
    time.sleep(3600)
    return ""


def stop_loop(target: str) -> str:
    asyncio.get_running_loop().stop()
    return "stopped"


def replace_worker(target: str) -> str:
    """Put its own code in the place of the worker's, which then answers every later call."""
    from agentix.agentserver.worker import child
    from agentix.agentserver.worker.protocol import CallOutcome

    async def attempt(*arguments: object) -> object:
        return (CallOutcome.VALUE, target.encode())

    child.attempt = attempt  # type: ignore[assignment]
    return "replaced"


ATTACKS: dict[str, Callable[[str], object]] = {
    function.__name__: function
    for function in (
        answer_long,
        answer_noise,
        answer_raw,
        become_root,
        close_socket,
        connect,
        connect_unix,
        datagram,
        descriptors,
        environment,
        fill_scratch,
        fork_bomb,
        frames,
        identity,
        kill_group,
        large_file,
        leave_child,
        list_directory,
        modules,
        raw_connect,
        raw_memory,
        read,
        read_memory,
        replace_worker,
        run_program,
        send_signal,
        signal_everyone,
        stop_loop,
        store,
        texts,
        trace,
        write,
    )
}
