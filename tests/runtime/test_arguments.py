"""The arguments of `agentix-server`: a token that is made, help, and what is not understood."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.serving import DEADLINE, Server, call_body, post, serving


def answer_of(server: Server, token: str) -> Any:
    request = post("/_remote", call_body("echo", 1), f"Authorization: Bearer {token}")
    return json.loads(server.exchange(request).partition(b"\r\n\r\n")[2])


def test_token_is_made_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "made"
    with serving(tmp_path / "server", arguments=("--token-file", str(file))) as server:
        token = file.read_text().strip()
        assert file.stat().st_mode & 0o7777 == 0o600
        assert answer_of(server, token) == {"ok": True, "value": 1}
        assert answer_of(server, "guessed") == {"error": "the bearer token is wrong"}
        assert "WARNING" not in server.log
        assert token not in server.log
    assert len(token) == 43  # 32 bytes in base64


def test_each_token_is_another(tmp_path: Path) -> None:
    tokens = set()
    for name in "ab":
        file = tmp_path / name
        with serving(tmp_path / f"server-{name}", arguments=("--token-file", str(file))):
            tokens.add(file.read_text())
    assert len(tokens) == 2


def test_token_allows_an_open_address(tmp_path: Path) -> None:
    arguments = ("--token-file", str(tmp_path / "made"))
    environ = {"AGENTIX_BIND_HOST": "0.0.0.0"}
    with serving(tmp_path / "server", environ, arguments=arguments) as server:
        assert server.url.startswith("http://0.0.0.0:")


def run_briefly(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agentix.runtime", *arguments],
        env=os.environ | {"AGENTIX_BIND_PORT": "0", "AGENTIX_MOUNT_ROOT": "/absent"} | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def test_existing_file_is_refused_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "made"
    file.write_text("of another runtime")
    ended = run_briefly("--token-file", str(file))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"agentix-server: --token-file {file}: File exists\n"
    assert file.read_text() == "of another runtime"


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert run_briefly("--token-file", f"{tmp_path}/link").returncode == 1
    assert not (tmp_path / "elsewhere").exists()


def test_file_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    ended = run_briefly("--token-file", f"{tmp_path}/absent/token")
    assert (ended.returncode, ended.stdout) == (1, "")
    reason = f"--token-file {tmp_path}/absent/token: No such file or directory"
    assert ended.stderr == f"agentix-server: {reason}\n"


def test_two_tokens_are_refused(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("secret")
    ended = run_briefly("--token-file", f"{tmp_path}/made", AGENTIX_TOKEN_FILE=f"{tmp_path}/given")
    assert (ended.returncode, ended.stdout) == (1, "")
    reason = "--token-file and AGENTIX_TOKEN_FILE exclude each other"
    assert ended.stderr == f"agentix-server: {reason}\n"
    assert not (tmp_path / "made").exists()


def test_runtime_that_cannot_serve_leaves_no_token(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_briefly("--token-file", f"{tmp_path}/made", AGENTIX_BIND_PORT=port)
    assert ended.returncode == 1
    assert not (tmp_path / "made").exists()


def test_help_names_the_arguments() -> None:
    ended = run_briefly("--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: agentix-server [-h] [--token-file FILE]\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--port", "1"), "unrecognized arguments: --port 1"),
        (("serve",), "unrecognized arguments: serve"),
        (("--token", "x"), "unrecognized arguments: --token x"),
        (("--token-file",), "argument --token-file: expected one argument"),
    ],
)
def test_unknown_arguments_are_one_line(arguments: tuple[str, ...], reason: str) -> None:
    ended = run_briefly(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"agentix-server: {reason}\n"


def test_sandboxes_start_without_a_parser() -> None:
    program = "import sys, agentix.runtime.__main__; print('argparse' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert seen.stdout == b"False\n"
