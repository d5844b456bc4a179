"""`agentix-namespace build --push`, to a real registry on this machine."""

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentix.namespace_sdk.command import main
from tests.sdk.counter import write_counter

CONFIGURATION = """\
version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:0"}}
{authentication}
"""

HTPASSWD = "auth: {{htpasswd: {{realm: test, path: {path}}}}}"

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


@pytest.fixture
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    """Starts Debian's docker-registry; with a login where the test's parameter is the login."""
    program = shutil.which("docker-registry")
    if program is None:
        assert os.environ.get("AGENTIX_REQUIRE_DOCKER") != "1", "docker-registry is not installed"
        pytest.skip("docker-registry is not installed")
    authentication = ""
    if hasattr(request, "param"):
        (tmp_path / "htpasswd").write_text(f"{request.param}\n")
        authentication = HTPASSWD.format(path=tmp_path / "htpasswd")
    settings = CONFIGURATION.format(root=tmp_path / "registry", authentication=authentication)
    (tmp_path / "registry.yml").write_text(settings)
    command = [program, "serve", str(tmp_path / "registry.yml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        found = (re.search(r"listening on (127\.0\.0\.1:\d+)", line) for line in lines)
        port = next(match[1] for match in found if match)
        yield Registry(port, tmp_path / "registry")
        process.terminate()
        process.communicate()


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
    assert "failed with status 401" in capfd.readouterr().err
    kept = {"auths": {registry.host: {"auth": base64.b64encode(b"user:password").decode()}}}
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps(kept))
    assert main(arguments) == 0
    assert registry.get("team/counter/manifests/1", "user:password")["schemaVersion"] == 2


def test_absent_registry_is_told(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(source), "--tag", "127.0.0.1:9/counter:1", "--push"]) == 1
    assert "the registry 127.0.0.1:9 can not be reached" in capfd.readouterr().err
