import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentix.runtime.later import load_later
from tests.runtime.serving import serving

SEEN = """
import json, sys
import agentix.runtime.__main__
print(json.dumps(sorted(sys.modules)))
"""

WEBSOCKET = (
    b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
HTTP_2 = (
    b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
)


def test_the_runtime_starts_without_libraries_of_other_protocols() -> None:
    seen = subprocess.run([sys.executable, "-c", SEEN], check=True, capture_output=True)
    loaded = set(json.loads(seen.stdout))
    assert not loaded & {"h2.connection", "priority", "wsproto"}
    assert "hypercorn.protocol.h11" in loaded


@pytest.mark.parametrize(
    ("request_text", "status"), [(WEBSOCKET, b"HTTP/1.1 403"), (HTTP_2, b"HTTP/1.1 101")]
)
def test_other_protocols_are_loaded_when_a_client_asks_for_them(
    tmp_path: Path, request_text: bytes, status: bytes
) -> None:
    with serving(tmp_path) as server:
        with server.connect() as connection:
            connection.sendall(request_text)
            assert connection.recv(65536).startswith(status)
        answer = server.exchange(b"GET /health HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")


def test_a_class_is_made_from_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_shape.py").write_text("class Point(tuple): pass\nORIGIN = Point((0, 0))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_later("late_shape", "Point")
    from late_shape import Point  # type: ignore[import-not-found]

    stand_in = sys.modules["late_shape"]
    point = Point((1, 2))
    assert point == (1, 2)
    assert type(point).__name__ == "Point"
    assert sys.modules["late_shape"] is not stand_in
    assert stand_in.ORIGIN == (0, 0)
    monkeypatch.delitem(sys.modules, "late_shape")
