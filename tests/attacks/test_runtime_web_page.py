"""A web page that a developer has open tries to use a runtime on the same machine.

A browser shows the page; the same attacks come by bare requests too, which is what older browsers
and rebound names would send.
"""

import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REQUIRE_DOCKER
from tests.runtime.serving import (
    DEADLINE,
    PROBE_PACKAGE,
    Server,
    call_body,
    get,
    post,
    serving,
)

BROWSER = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

PAGE = """<!doctype html>
<title>trying</title>
<iframe name="answer"></iframe>
<form id="upload" action="{runtime}/upload" method="post" enctype="multipart/form-data"
      target="answer">
  <input name="path" value="by-form"><input name="mode" value="755">
  <textarea name="file">content</textarea>
</form>
<form id="text" action="{runtime}/exec" method="post" enctype="text/plain" target="answer">
  <input name='{{"command": "touch by-text-form #' value='"}}'>
</form>
<script>
const runtime = "{runtime}", json = {{"Content-Type": "application/json"}};
const command = name => JSON.stringify({{command: "touch " + name}});
async function attempt(name, path, options) {{
  try {{
    const answer = await fetch(runtime + path, options);
    return [name, answer.type === "opaque" ? "opaque" : await answer.text()];
  }} catch (error) {{
    return [name, "blocked"];
  }}
}}
function file() {{
  const form = new FormData();
  form.append("path", "by-fetched-form");
  form.append("file", new Blob(["content"]), "name");
  return form;
}}
function submitted(id) {{
  return new Promise(resolve => {{
    document.getElementsByName("answer")[0].onload = () => resolve([id + " form", "sent"]);
    document.getElementById(id).submit();
  }});
}}
async function attack() {{
  const post = {{method: "POST", mode: "no-cors"}};
  const told = [
    await attempt("text", "/exec", {{...post, body: command("by-text")}}),
    await attempt("json", "/exec", {{method: "POST", headers: json, body: command("by-json")}}),
    await attempt("upload", "/upload", {{...post, body: file()}}),
    await attempt("read", "/namespaces", {{}}),
    await attempt("download", "/download?path=secret", {{}}),
    await submitted("upload"),
    await submitted("text"),
  ];
  await fetch("/told", {{method: "POST", body: JSON.stringify(Object.fromEntries(told))}});
}}
attack();
</script>
"""
"""The field of the second form is sent as `name=value`, which is a JSON object."""


@pytest.fixture(scope="module")
def browser() -> str:
    """The path of Chromium; the test is skipped by name where there is none."""
    found = shutil.which("chromium")
    if found is None:
        reason = "no chromium is installed"
        if os.environ.get(REQUIRE_DOCKER) == "1":
            pytest.fail(f"{REQUIRE_DOCKER}=1, and {reason}")
        pytest.skip(reason)
    return found


class Site(http.server.ThreadingHTTPServer):
    """A web server of elsewhere, with one page, and what the page tells in the end."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SiteHandler)
        self.page = ""
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.url = f"http://127.0.0.1:{self.server_port}"


class SiteHandler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self._answer(self.server.page)

    def do_POST(self) -> None:
        self.server.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer("")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def open_runtime(tmp_path: Path) -> Iterator[Server]:
    """A runtime without a token, as a developer would start it by hand."""
    with serving(tmp_path / "runtime") as server:
        server.workspace.mkdir(exist_ok=True)
        (server.workspace / "secret").write_text("secret")
        yield server


UNCHECKED = """
import sys
import agentix.runtime.app as app
from agentix.runtime.__main__ import main
sys.argv = sys.argv[:1]
app.OriginCheck = lambda inner: inner
main()
"""
"""A runtime that does not ask where a request comes from."""


@pytest.fixture
def unchecked(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "unchecked", through=(sys.executable, "-c", UNCHECKED)) as server:
        server.workspace.mkdir(exist_ok=True)
        (server.workspace / "secret").write_text("secret")
        yield server


@contextmanager
def opened(browser: str, page: str, profile: Path) -> Iterator[None]:
    """Have a new browser show a page."""
    command = [browser, *BROWSER, f"--user-data-dir={profile}", page]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def attacked(browser: str, site: Site, runtime: str, profile: Path) -> Any:
    """Let a page attack a runtime, and return what it has learned."""
    site.page = PAGE.format(runtime=runtime)
    with opened(browser, site.url, profile):
        return site.told.get(timeout=DEADLINE)


def made(server: Server) -> list[str]:
    """Return what was made in the directories of commands and of uploads."""
    names = [path.name for place in (server.root, server.workspace) for path in place.iterdir()]
    return sorted(name for name in names if name.startswith("by-"))


LEARNED = {
    "text": "opaque",
    "json": "blocked",
    "upload": "opaque",
    "read": "blocked",
    "download": "blocked",
    "upload form": "sent",
    "text form": "sent",
}
"""What a browser lets a page of another origin see, whatever comes of its requests."""


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_page_of_another_origin_changes_nothing(
    browser: str, site: Site, open_runtime: Server, tmp_path: Path, name: str
) -> None:
    runtime = open_runtime.url.replace("127.0.0.1", name)
    assert attacked(browser, site, runtime, tmp_path / "profile") == LEARNED
    assert made(open_runtime) == []


def test_page_would_change_much_if_it_were_not_asked(
    browser: str, site: Site, unchecked: Server, tmp_path: Path
) -> None:
    """The attack works: it is the check that refuses."""
    assert attacked(browser, site, unchecked.url, tmp_path / "profile") == LEARNED
    assert made(unchecked) == ["by-fetched-form", "by-form", "by-text", "by-text-form"]


def rebound(browser: str, server: Server, profile: Path) -> str:
    """Return what a page sees of the runtime once its name has been pointed to this machine."""
    rules = "--host-resolver-rules=MAP rebound.example.org 127.0.0.1"
    page = server.url.replace("127.0.0.1", "rebound.example.org") + "/namespaces"
    command = [browser, *BROWSER, f"--user-data-dir={profile}", rules, "--dump-dom", page]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, check=True
    ).stdout


def test_rebound_name_reads_nothing(
    browser: str, open_runtime: Server, unchecked: Server, tmp_path: Path
) -> None:
    refused = rebound(browser, open_runtime, tmp_path / "first")
    assert "no request for the host 'rebound.example.org:" in refused
    assert PROBE_PACKAGE not in refused
    assert PROBE_PACKAGE in rebound(browser, unchecked, tmp_path / "second")


@pytest.fixture(scope="module", params=["tcp", "unix"])
def tokenless(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("tokenless")
    with serving(root, unix=request.param == "unix") as server:
        yield server


def answer_to(server: Server, request: bytes, host: str | None = None) -> tuple[int, Any]:
    """Send a request, of another host where one is given."""
    if host is not None:
        request = request.replace(b"Host: localhost", f"Host: {host}".encode(), 1)
    head, _, body = server.exchange(request).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


TOUCH = post("/exec", b'{"command": "touch by-request"}')
EVERY_ENDPOINT = [
    TOUCH,
    post("/exec", b'{"command": "touch by-request"}', "Accept: text/event-stream"),
    post("/_remote", call_body("echo", 1)),
    post("/upload", b"", "Content-Type: multipart/form-data; boundary=b"),
    get("/download?path=secret"),
    get("/namespaces"),
    get("/namespaces?schemas=1"),
    get("/health"),
    get("/absent"),
    get("/health").replace(b"GET", b"OPTIONS", 1),
    get("/health").replace(b"GET", b"POST", 1),
    get("/%65xec").replace(b"GET", b"POST", 1),
]
FOREIGN_HOSTS = [
    "example.org",
    "127.0.0.1.example.org",
    "localhost.example.org",
    "notlocalhost",
    "0.0.0.0",
    "0.0.0.0:8000",
    "10.0.0.1",
    "[::2]",
    "[::1",
    "::1]",
    "127.1",
    "2130706433",
    "localhost:80:80",
    "localhost:http",
    "localhost@example.org",
    "example.org:80#localhost",
    "localhost.",
    "",
]


@pytest.mark.parametrize("request_", EVERY_ENDPOINT)
def test_no_endpoint_answers_a_foreign_host(tokenless: Server, request_: bytes) -> None:
    status, body = answer_to(tokenless, request_, "rebound.example.org")
    assert status == 403
    reason = "no request for the host 'rebound.example.org' is answered without a token"
    assert body == {"error": reason}
    assert made(tokenless) == []


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_name_of_another_machine_is_refused(tokenless: Server, host: str) -> None:
    assert answer_to(tokenless, TOUCH, host)[0] == 403
    assert made(tokenless) == []


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8000", "agentix.localhost", "a.b.localhost:1"),
        *("127.0.0.1", "127.0.0.1:8000", "127.8.9.10", "[::1]", "[::1]:8000"),
    ],
)
def test_name_of_this_machine_is_answered(tokenless: Server, host: str) -> None:
    assert answer_to(tokenless, get("/health"), host)[0] == 200
    assert answer_to(tokenless, get("/health", f"Origin: http://{host}"), host)[0] == 200


def test_request_without_a_host_is_refused(tokenless: Server) -> None:
    request = TOUCH.replace(b"Host: localhost\r\n", b"", 1)
    assert answer_to(tokenless, request) == (400, {"error": "this is no request of HTTP/1.1"})
    assert made(tokenless) == []


@pytest.mark.parametrize(
    "field",
    [
        "Origin: https://example.org",
        "Origin: http://localhost:3000",
        "Origin: https://localhost",
        "Origin: http://localhost.example.org",
        "Origin: null",
        "Origin: ",
        "Origin: http://localhost\r\nOrigin: https://example.org",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Site: something new",
    ],
)
@pytest.mark.parametrize("request_", [TOUCH, get("/namespaces"), get("/health")])
def test_request_of_another_origin_is_refused(
    tokenless: Server, request_: bytes, field: str
) -> None:
    request = request_.replace(b"Host:", f"{field}\r\nHost:".encode(), 1)
    assert answer_to(tokenless, request)[0] == 403
    assert made(tokenless) == []


@pytest.mark.parametrize(
    "fields",
    [
        ("Content-Type: text/plain",),
        ("Content-Type: application/x-www-form-urlencoded",),
        ("Content-Type: multipart/form-data; boundary=b",),
        ("Content-Type: application/jsonp",),
        ("Content-Type: text/plain; application/json",),
        ("Content-Type: application/json", "Content-Type: text/plain"),
        ("Content-Type: ",),
    ],
)
@pytest.mark.parametrize("path", ["/exec", "/_remote", "/%65xec"])
def test_body_that_needs_no_consent_of_the_server_is_415(
    tokenless: Server, fields: tuple[str, ...], path: str
) -> None:
    status, body = answer_to(tokenless, post(path, b'{"command": "touch by-request"}', *fields))
    path = path.replace("%65", "e")
    reason = f"the body of POST {path} must be of type application/json"
    assert (status, body) == (415, {"error": reason})
    assert made(tokenless) == []


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;x=y"]
)
def test_json_is_taken_with_parameters(tokenless: Server, kind: str) -> None:
    request = post("/_remote", call_body("echo", 1), f"Content-Type: {kind}")
    assert answer_to(tokenless, request) == (200, {"ok": True, "value": 1})


def test_nothing_of_this_is_asked_with_a_token(tmp_path: Path) -> None:
    with serving(tmp_path, token="secret") as server:
        fields = ("Content-Type: application/x-www-form-urlencoded", "Origin: null")
        body = b'{"command": "echo on"}'
        request = post("/exec", body, *fields, "Authorization: Bearer secret")
        status, result = answer_to(server, request, "any.example.org")
        assert (status, result["stdout"]) == (200, "on\n")
        assert "WARNING" not in server.log


WARNING = (
    "WARNING agentix.runtime: without a token, every user of this machine can call this runtime:"
    " agentix-server --token-file FILE makes one\n"
)


def test_open_runtime_warns_once_of_the_users_of_its_machine(tmp_path: Path) -> None:
    with serving(tmp_path / "tcp") as server:
        answer_to(server, get("/health"))
        assert server.log.count(WARNING) == server.log.count("WARNING") == 1
    with serving(tmp_path / "unix", unix=True) as server:  # a socket of this user alone
        answer_to(server, get("/health"))
        assert "WARNING" not in server.log
