"""`agentix-namespace build --push`, to a real registry on this machine."""

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentix.namespace_sdk.build.registry import HUB, split_reference
from agentix.namespace_sdk.command import main
from tests.sdk.counter import write_counter
from tests.sdk.tokens import ISSUER, SERVICE, token_server

CONFIGURATION = """\
version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:0"}}
{authentication}
"""

HTPASSWD = "auth: {{htpasswd: {{realm: test, path: {path}}}}}"

TOKENS = (
    "auth: {{token: {{realm: '{realm}', service: {service}, issuer: {issuer}, "
    "rootcertbundle: {certificate}}}}}"
)

LOGIN = "user:$2y$05$6jQ3DkZX1FqGZIFRRT6bNOx0R4xqFTZsXKNcbmPGEO2Wt8MoNZbje"


@dataclass(frozen=True)
class Registry:
    """A registry in a process of its own."""

    host: str
    root: Path

    def get(self, path: str, login: str | None = None) -> Any:
        request = urllib.request.Request(f"http://{self.host}/v2/{path}")
        request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
        if login is not None:
            request.add_header(
                "Authorization", f"Basic {base64.b64encode(login.encode()).decode()}"
            )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


@contextmanager
def started_registry(directory: Path, authentication: str = "") -> Iterator[Registry]:
    """Start Debian's docker-registry, with its files in a directory."""
    program = shutil.which("docker-registry")
    if program is None:
        assert os.environ.get("AGENTIX_REQUIRE_DOCKER") != "1", "docker-registry is not installed"
        pytest.skip("docker-registry is not installed")
    settings = CONFIGURATION.format(root=directory / "registry", authentication=authentication)
    (directory / "registry.yml").write_text(settings)
    command = [program, "serve", str(directory / "registry.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        found = (re.search(r"listening on (127\.0\.0\.1:\d+)", line) for line in lines)
        port = next(match[1] for match in found if match)
        try:
            yield Registry(port, directory / "registry")
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    """Start a registry; with a login where the test's parameter is the login."""
    authentication = ""
    if hasattr(request, "param"):
        (tmp_path / "htpasswd").write_text(f"{request.param}\n")
        authentication = HTPASSWD.format(path=tmp_path / "htpasswd")
    with started_registry(tmp_path, authentication) as registry:
        yield registry


def keep_login(directory: Path, host: str, login: str) -> None:
    """Keep a login where `docker login` does."""
    kept = {"auths": {host: {"auth": base64.b64encode(login.encode()).decode()}}}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(kept))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return write_counter(tmp_path / "counter")


def test_pushed_image_is_what_was_built(
    registry: Registry, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tag = f"{registry.host}/team/counter:1"
    arguments = ["build", str(source), "--tag", tag, "--output", str(tmp_path / "a.tar"), "--push"]
    assert main(arguments) == 0
    saved, pushed = capfd.readouterr().out.splitlines()
    manifest = registry.get("team/counter/manifests/1")
    assert manifest["config"]["digest"] == saved.split()[1]
    configuration = registry.get(f"team/counter/blobs/{manifest['config']['digest']}")
    assert configuration["config"]["Volumes"] == {"/nix": {}}
    assert len(manifest["layers"]) == 2
    assert registry.get(f"team/counter/manifests/{pushed.split()[1]}") == manifest
    assert main(arguments) == 0
    assert capfd.readouterr().out.splitlines() == [saved, pushed]


def test_docker_pulls_what_was_pushed(
    docker_engine: str, registry: Registry, source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tag = f"{registry.host}/team/counter:1"
    assert main(["build", str(source), "--tag", tag, "--push"]) == 0
    try:
        subprocess.run(["docker", "pull", "--quiet", tag], check=True, capture_output=True)
        command = ["docker", "image", "inspect", "--format", "{{.Id}}", tag]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    finally:
        subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)
    assert found == registry.get("team/counter/manifests/1")["config"]["digest"]


@pytest.mark.parametrize("registry", [LOGIN], indirect=True, ids=["user"])
def test_registry_with_a_login(
    registry: Registry, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["build", str(source), "--tag", f"{registry.host}/team/counter:1", "--push"]
    assert main(arguments) == 1
    told = capfd.readouterr().err
    assert "failed with status 401" in told
    assert told.endswith(f"; `docker login {registry.host}` keeps a login for it\n")
    keep_login(tmp_path / "docker", registry.host, "user:password")
    assert main(arguments) == 0
    assert registry.get("team/counter/manifests/1", "user:password")["schemaVersion"] == 2


def test_registry_with_tokens(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The registry sends its clients to a server of the test, whose tokens it believes."""
    with token_server(tmp_path, "user:password") as tokens:
        named = {"realm": tokens.url, "service": SERVICE, "issuer": ISSUER}
        believed = TOKENS.format(**named, certificate=tokens.certificate.cert)
        with started_registry(tmp_path, believed) as registry:
            tag = f"{registry.host}/team/counter:1"
            arguments = ["build", str(source), "--tag", tag, "--push"]
            for login in ("", "user:wrong"):
                keep_login(tmp_path / "docker", registry.host, login)
                assert main(arguments) == 1
                assert f"`docker login {registry.host}`" in capfd.readouterr().err
            assert tokens.asked == []
            keep_login(tmp_path / "docker", registry.host, "user:password")
            assert main(arguments) == 0
            digest = capfd.readouterr().out.split()[-1]
    actions = [set(query["scope"].rpartition(":")[2].split(",")) for query in tokens.asked]
    assert actions == [{"pull"}, {"pull", "push"}]
    assert [sorted(query) for query in tokens.asked] == [["scope", "service"]] * 2
    link = tmp_path / "registry/docker/registry/v2/repositories/team/counter/_manifests/tags/1"
    assert (link / "current/link").read_text() == digest


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("example.org/team/counter:1", ("example.org", "team/counter", "1")),
        ("localhost:5000/counter:1", ("localhost:5000", "counter", "1")),
        ("team/counter:1", (HUB, "team/counter", "1")),
        ("counter:1", (HUB, "library/counter", "1")),
        ("docker.io/team/counter:1", (HUB, "team/counter", "1")),
        ("index.docker.io/counter:1", (HUB, "library/counter", "1")),
    ],
)
def test_reference_names_a_registry(reference: str, parts: tuple[str, str, str]) -> None:
    assert split_reference(reference) == parts


def test_absent_registry_is_told(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(source), "--tag", "127.0.0.1:9/counter:1", "--push"]) == 1
    assert "the registry 127.0.0.1:9 cannot be reached" in capfd.readouterr().err
