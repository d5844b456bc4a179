"""The binary interface of WASI preview 1: signatures, layouts and flags.

Source: wasi_snapshot_preview1.witx of the WASI subgroup, legacy/preview1.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

__all__ = [
    "ALL_RIGHTS",
    "DIRECTORY_RIGHTS",
    "FILE_RIGHTS",
    "MODULE",
    "SIGNATURES",
    "STREAM_RIGHTS",
    "FdFlags",
    "OFlags",
    "Rights",
    "TimeFlags",
]

MODULE: Final = "wasi_snapshot_preview1"
"""The module that programs import the functions from."""

SIGNATURES: Mapping[str, str] = {
    "args_get": "ii",
    "args_sizes_get": "ii",
    "clock_res_get": "ii",
    "clock_time_get": "iIi",
    "environ_get": "ii",
    "environ_sizes_get": "ii",
    "fd_advise": "iIIi",
    "fd_allocate": "iII",
    "fd_close": "i",
    "fd_datasync": "i",
    "fd_fdstat_get": "ii",
    "fd_fdstat_set_flags": "ii",
    "fd_fdstat_set_rights": "iII",
    "fd_filestat_get": "ii",
    "fd_filestat_set_size": "iI",
    "fd_filestat_set_times": "iIIi",
    "fd_pread": "iiiIi",
    "fd_prestat_dir_name": "iii",
    "fd_prestat_get": "ii",
    "fd_pwrite": "iiiIi",
    "fd_read": "iiii",
    "fd_readdir": "iiiIi",
    "fd_renumber": "ii",
    "fd_seek": "iIii",
    "fd_sync": "i",
    "fd_tell": "ii",
    "fd_write": "iiii",
    "path_create_directory": "iii",
    "path_filestat_get": "iiiii",
    "path_filestat_set_times": "iiiiIIi",
    "path_link": "iiiiiii",
    "path_open": "iiiiiIIii",
    "path_readlink": "iiiiii",
    "path_remove_directory": "iii",
    "path_rename": "iiiiii",
    "path_symlink": "iiiii",
    "path_unlink_file": "iii",
    "poll_oneoff": "iiii",
    "proc_exit": "i",
    "proc_raise": "i",
    "random_get": "ii",
    "sched_yield": "",
    "sock_accept": "iii",
    "sock_recv": "iiiiii",
    "sock_send": "iiiii",
    "sock_shutdown": "ii",
}
"""The 46 functions and their parameters, `i` for i32 and `I` for i64, all taken as unsigned.

Each returns an i32 error number, but for `proc_exit`, which returns nothing.
"""


class Rights:
    """What a descriptor may be used for (`rights`)."""

    FD_DATASYNC: Final = 1 << 0
    FD_READ: Final = 1 << 1
    FD_SEEK: Final = 1 << 2
    FD_FDSTAT_SET_FLAGS: Final = 1 << 3
    FD_SYNC: Final = 1 << 4
    FD_TELL: Final = 1 << 5
    FD_WRITE: Final = 1 << 6
    FD_ADVISE: Final = 1 << 7
    FD_ALLOCATE: Final = 1 << 8
    PATH_CREATE_DIRECTORY: Final = 1 << 9
    PATH_CREATE_FILE: Final = 1 << 10
    PATH_LINK_SOURCE: Final = 1 << 11
    PATH_LINK_TARGET: Final = 1 << 12
    PATH_OPEN: Final = 1 << 13
    FD_READDIR: Final = 1 << 14
    PATH_READLINK: Final = 1 << 15
    PATH_RENAME_SOURCE: Final = 1 << 16
    PATH_RENAME_TARGET: Final = 1 << 17
    PATH_FILESTAT_GET: Final = 1 << 18
    PATH_FILESTAT_SET_SIZE: Final = 1 << 19
    PATH_FILESTAT_SET_TIMES: Final = 1 << 20
    FD_FILESTAT_GET: Final = 1 << 21
    FD_FILESTAT_SET_SIZE: Final = 1 << 22
    FD_FILESTAT_SET_TIMES: Final = 1 << 23
    PATH_SYMLINK: Final = 1 << 24
    PATH_REMOVE_DIRECTORY: Final = 1 << 25
    PATH_UNLINK_FILE: Final = 1 << 26
    POLL_FD_READWRITE: Final = 1 << 27
    SOCK_SHUTDOWN: Final = 1 << 28
    SOCK_ACCEPT: Final = 1 << 29


ALL_RIGHTS: Final = (1 << 30) - 1
"""Every right that preview 1 knows; programs also pass others, which are masked away."""

FILE_RIGHTS: Final = (
    Rights.FD_DATASYNC
    | Rights.FD_READ
    | Rights.FD_SEEK
    | Rights.FD_FDSTAT_SET_FLAGS
    | Rights.FD_SYNC
    | Rights.FD_TELL
    | Rights.FD_WRITE
    | Rights.FD_ADVISE
    | Rights.FD_ALLOCATE
    | Rights.FD_FILESTAT_GET
    | Rights.FD_FILESTAT_SET_SIZE
    | Rights.FD_FILESTAT_SET_TIMES
    | Rights.POLL_FD_READWRITE
)
"""The rights that make sense for a file."""

STREAM_RIGHTS: Final = FILE_RIGHTS & ~(Rights.FD_SEEK | Rights.FD_TELL | Rights.FD_ALLOCATE)
"""The rights of a stream; a C library takes one without seek and tell for a terminal."""

DIRECTORY_RIGHTS: Final = ALL_RIGHTS & ~(
    Rights.FD_READ
    | Rights.FD_SEEK
    | Rights.FD_TELL
    | Rights.FD_WRITE
    | Rights.FD_ADVISE
    | Rights.FD_ALLOCATE
    | Rights.FD_FILESTAT_SET_SIZE
    | Rights.POLL_FD_READWRITE
    | Rights.SOCK_SHUTDOWN
    | Rights.SOCK_ACCEPT
)
"""The rights that make sense for a directory."""


class OFlags:
    """How `path_open` opens (`oflags`)."""

    CREAT: Final = 1
    DIRECTORY: Final = 2
    EXCL: Final = 4
    TRUNC: Final = 8


class FdFlags:
    """How a descriptor behaves (`fdflags`)."""

    APPEND: Final = 1
    DSYNC: Final = 2
    NONBLOCK: Final = 4
    RSYNC: Final = 8
    SYNC: Final = 16
    ALL: Final = 31


class TimeFlags:
    """Which times are set (`fstflags`)."""

    ATIM: Final = 1
    ATIM_NOW: Final = 2
    MTIM: Final = 4
    MTIM_NOW: Final = 8
    ALL: Final = 15


U32 = Struct("<I")
U64 = Struct("<Q")
FDSTAT = Struct("<B1xH4xQQ")
"""filetype, flags, base rights, inheriting rights"""
FILESTAT = Struct("<QQB7xQQQQQ")
"""device, inode, filetype, links, size, access, modification and change times"""
PRESTAT = Struct("<B3xI")
"""tag, bytes of the name"""
DIRENT = Struct("<QQIB3x")
"""next cookie, inode, bytes of the name, filetype"""
SUBSCRIPTION = Struct("<QB7xI4xQQH6x")
"""userdata, tag, clock or descriptor, timeout, precision, flags; 48 bytes"""
EVENT = Struct("<QHB5xQH6x")
"""userdata, error, type, bytes, flags; 32 bytes"""
