"""The fork server and frames, each alone: what they do with what they are not meant to get."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.agentserver.errors import FrameError, KernelError
from agentix.agentserver.worker.forkserver import ForkServer
from agentix.agentserver.worker.handlers import IsolationReport, Mitigation, WorkerSettings
from agentix.agentserver.worker.isolation import Jail, readable_paths
from agentix.agentserver.worker.protocol import (
    BORN,
    ENDED,
    STATE,
    AnswerReader,
    CallOutcome,
    ForkServerConfig,
    pack,
    pack_answer,
    unpack,
)

WAKERS = (100, 101)
"""Descriptors of a loop; nothing here comes to use them."""


def make_plan(path: list[str], scratch: Path) -> ForkServerConfig:
    limits = WorkerSettings()
    return ForkServerConfig(
        path=path,
        preload=[],
        readable=[],
        hidden=[],
        memory=limits.memory,
        cpu=limits.cpu,
        processes=limits.processes,
        open_files=limits.open_files,
        file_size=limits.file_size,
        scratch=str(scratch),
    )


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_a_kernel_that_gives_no_process_ends_one_worker(
    control: tuple[socket.socket, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ForkServer) -> int:
        raise KernelError("unshare(CLONE_NEWPID): ENOSPC, No space left on device")

    monkeypatch.setattr(ForkServer, "_new_process", refuse)
    pump, theirs = control
    server = ForkServer(theirs, make_plan([], tmp_path), Jail(), WAKERS)
    channel, far = socket.socketpair()
    output, written = os.pipe()
    with channel:
        server._fork(7, far.detach(), written)
        assert channel.recv(1) == b""
    assert STATE.unpack(pump.recv(100)) == (BORN, 7, -1)
    assert STATE.unpack(pump.recv(100)) == (ENDED, 7, 256)
    assert os.read(output, 1000).startswith(
        b"no process for a worker: unshare(CLONE_NEWPID): ENOSPC"
    )
    os.close(output)


def test_readable_paths_are_no_parts_of_others_and_never_everything(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner")
    path = ["/", str(tmp_path), str(tmp_path / "inner"), str(tmp_path / "missing")]
    found = readable_paths(make_plan(path, tmp_path))
    assert str(tmp_path) in found
    assert "/" not in found
    assert not [entry for entry in found if entry.startswith(f"{tmp_path}/")]


def test_answers_are_put_together_wherever_they_break() -> None:
    answers = [
        (1, CallOutcome.VALUE, b"one"),
        (2, CallOutcome.RAISED, b""),
        (2**63, CallOutcome.VALUE, b"x" * 99),
    ]
    for size in (1, 2, 13, 14, 50, 200):
        reader, found = AnswerReader(limit=99), []
        for answer in answers:
            data = pack_answer(*answer)
            found += [
                reader.feed(data[start : start + size]) for start in range(0, len(data), size)
            ]
        assert [answer for answer in found if answer is not None] == answers


def test_an_answer_to_a_call_that_is_yet_to_come_is_refused() -> None:
    early = pack_answer(1, CallOutcome.VALUE, b"one") + pack_answer(2, CallOutcome.VALUE, b"two")
    with pytest.raises(FrameError, match="it wrote 16 bytes more than its answer to call 1"):
        AnswerReader(limit=99).feed(early)
    reader = AnswerReader(limit=99)
    assert reader.feed(early[:10]) is None
    with pytest.raises(FrameError, match="it wrote 16 bytes more than its answer to call 1"):
        reader.feed(early[10:])


def test_an_answer_over_the_limit_is_refused_by_its_header_alone() -> None:
    header = pack_answer(1, CallOutcome.VALUE, b"x" * 100)[:13]
    with pytest.raises(FrameError, match="an answer of 100 bytes; 99 are the most"):
        AnswerReader(limit=99).feed(header)
    with pytest.raises(FrameError, match="an answer of 100 bytes"):
        AnswerReader(limit=99).feed(pack_answer(1, CallOutcome.VALUE, b"x" * 100))


def test_plain_values_survive_and_others_are_refused() -> None:
    plain = {"a": [1, -(2**200), 2**64, 1.5, None, True, "ü\0", b"\xff"], "b": {}}
    assert unpack(pack(plain)) == plain
    with pytest.raises(TypeError, match="a complex is not a plain value"):
        pack(1j)
    for broken in (b"", b"\xc1", b"\x92\x01", b"\xc7\x01\x05x", pack([1]) + b"\x00"):
        with pytest.raises(ValueError):
            unpack(broken)


def test_a_report_names_what_is_missing() -> None:
    applied, missing = Mitigation("limits", True), Mitigation("Landlock", False, "ENOSYS")
    report = IsolationReport("thread", (applied, missing))
    assert report.missing == (missing,)
    assert report.lines() == [
        "isolation: thread",
        "limits: applied",
        "Landlock: NOT APPLIED (ENOSYS)",
    ]


def test_a_pump_that_leaves_without_listening_ends_the_zygote(
    control: tuple[socket.socket, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(Exception):
        """In place of the end of this process."""

    def end(self: ForkServer) -> None:
        raise EndedError

    monkeypatch.setattr(ForkServer, "_end", end)
    pump, theirs = control
    server = ForkServer(theirs, make_plan([], tmp_path), Jail(), WAKERS)
    theirs.send(b"not read")
    pump.close()
    for _ in range(2):
        with pytest.raises(EndedError):
            server._obey()
    with pytest.raises(EndedError):
        server._tell(ENDED, 1, 0)
