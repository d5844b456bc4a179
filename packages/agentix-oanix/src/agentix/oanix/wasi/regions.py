"""Which memory each function of WASI preview 1 reads and writes, so that a call can be recorded."""

from collections.abc import Mapping, Sequence

from agentix.oanix.errors import FsError
from agentix.oanix.wasi import abi
from agentix.oanix.wasi.process import WasiProcess

__all__ = ["Region", "inputs", "outputs"]

Region = tuple[int, int]
"""An address and a number of bytes."""

PATHS: Mapping[str, Sequence[tuple[int, int]]] = {
    "path_create_directory": [(1, 2)],
    "path_filestat_get": [(2, 3)],
    "path_filestat_set_times": [(2, 3)],
    "path_link": [(2, 3), (5, 6)],
    "path_open": [(2, 3)],
    "path_readlink": [(1, 2)],
    "path_remove_directory": [(1, 2)],
    "path_rename": [(1, 2), (4, 5)],
    "path_symlink": [(0, 1), (3, 4)],
    "path_unlink_file": [(1, 2)],
}
"""The parameters that are the address and the length of a path."""

RESULTS: Mapping[str, Sequence[tuple[int, int]]] = {
    "args_sizes_get": [(0, 4), (1, 4)],
    "clock_res_get": [(1, 8)],
    "clock_time_get": [(2, 8)],
    "environ_sizes_get": [(0, 4), (1, 4)],
    "fd_fdstat_get": [(1, 24)],
    "fd_filestat_get": [(1, 64)],
    "fd_pread": [(4, 4)],
    "fd_prestat_get": [(1, 8)],
    "fd_pwrite": [(4, 4)],
    "fd_read": [(3, 4)],
    "fd_readdir": [(4, 4)],
    "fd_seek": [(3, 8)],
    "fd_tell": [(1, 8)],
    "fd_write": [(3, 4)],
    "path_filestat_get": [(4, 64)],
    "path_open": [(8, 4)],
    "path_readlink": [(5, 4)],
    "poll_oneoff": [(3, 4)],
}
"""The parameters that are the address of a result, and its bytes."""


def inputs(process: WasiProcess, name: str, arguments: Sequence[int]) -> bytes:
    """Return what a call reads from memory; nothing where it reads beyond it."""
    try:
        if name in ("fd_write", "fd_pwrite"):
            return b"".join(process.vectors(arguments[1], arguments[2]))
        if name == "poll_oneoff":
            return bytes(process.span(arguments[0], 48 * arguments[2]))
        pairs = PATHS.get(name, ())
        return b"\0".join(bytes(process.span(arguments[a], arguments[b])) for a, b in pairs)
    except FsError:
        return b""


def outputs(process: WasiProcess, name: str, arguments: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return what a call that succeeded has written to memory."""
    regions = [(arguments[place], count) for place, count in RESULTS.get(name, ())]
    regions += _contents(process, name, arguments)
    return [(address, bytes(process.span(address, count))) for address, count in regions if count]


def _contents(process: WasiProcess, name: str, arguments: Sequence[int]) -> list[Region]:
    """Return the regions whose size depends on the call."""
    match name:
        case "args_get":
            return _strings(process.arguments(), arguments)
        case "environ_get":
            return _strings(process.environment(), arguments)
        case "fd_read":
            return _vectors(process, arguments, _u32(process, arguments[3]))
        case "fd_pread":
            return _vectors(process, arguments, _u32(process, arguments[4]))
        case "fd_readdir":
            return [(arguments[1], _u32(process, arguments[4]))]
        case "path_readlink":
            return [(arguments[3], _u32(process, arguments[5]))]
        case "fd_prestat_dir_name":
            return [(arguments[1], len(process.files[arguments[0]].preopen or b""))]
        case "random_get":
            return [(arguments[0], arguments[1])]
        case "poll_oneoff":
            return [(arguments[1], 32 * _u32(process, arguments[3]))]
    return []


def _strings(strings: Sequence[bytes], arguments: Sequence[int]) -> list[Region]:
    total = sum(map(len, strings)) + len(strings)
    return [(arguments[0], 4 * len(strings)), (arguments[1], total)]


def _vectors(process: WasiProcess, arguments: Sequence[int], total: int) -> list[Region]:
    """Return the parts of the vectors that were filled."""
    found = []
    for place in range(arguments[2]):
        vector = process.span(arguments[1] + 8 * place, 8)
        address, length = abi.U32.unpack_from(vector)[0], abi.U32.unpack_from(vector, 4)[0]
        found.append((address, min(length, total)))
        total -= min(length, total)
    return found


def _u32(process: WasiProcess, address: int) -> int:
    return int(abi.U32.unpack_from(process.span(address, 4))[0])
