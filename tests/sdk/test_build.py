"""`agentix-namespace build`: what comes out, twice the same, and what is refused."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom

from agentix.namespace_sdk.build.pipeline import Progress
from agentix.namespace_sdk.command import main
from nix.closures import Builder
from tests.sdk.conftest import Command, Finished, run
from tests.sdk.counter import (
    MANIFEST,
    REPOSITORY,
    call_in_sandbox,
    copy_namespace,
    write_counter,
    write_wheel,
)

TAG = "agentix-test/counter:1.0.0"
DAY = 24 * 3600
"""Seconds."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_counter(tmp_path / "counter")


@pytest.fixture
def build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Return `agentix-namespace build` with a cache of its own, in this process for its speed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str | Path) -> Finished:
        words = ["build", *map(str, arguments)]
        exit_code = main(words)
        return Finished(words, exit_code, *capfd.readouterr())

    return command


def imported(source: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the stubs of a source tree."""
    monkeypatch.syspath_prepend(str(source))
    return __import__(f"agentix_namespaces.{name}", fromlist=["stubs"])


def configuration(archive: Path) -> Any:
    with tarfile.open(archive) as opened:
        manifest = json.load(opened.extractfile("manifest.json") or io.BytesIO())
        return json.load(opened.extractfile(manifest[0]["Config"]) or io.BytesIO())


async def test_bundle_can_be_called_without_docker(
    agentix_namespace: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = agentix_namespace("build", source, "--output", "bundles", directory=tmp_path)
    bundle = tmp_path / "bundles/agentix-test/counter/1.0.0"
    assert (done.returncode, done.stdout) == (0, f"{TAG} {bundle}\n"), done.stderr
    assert done.stderr.splitlines() == [
        "builder: plain (the namespace is pure Python)",
        "building counter",
        "writing the bundle",
    ]
    assert sorted(path.name for path in bundle.iterdir()) == [
        "entry",
        "lock.json",
        "sbom.cdx.json",
        "store",
    ]
    counter = imported(source, "counter", monkeypatch)
    assert await call_in_sandbox(tmp_path / "bundles", TAG, counter.count, text="a b c") == 3


def test_two_builds_give_one_image(build: Command, source: Path, tmp_path: Path) -> None:
    first = build(source, "--output", "first.tar")
    again = shutil.copytree(source, tmp_path / "again")
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(path.stat().st_mode & 0o700)
    (again / "agentix_namespaces/counter/__pycache__").mkdir()
    (again / "agentix_namespaces/counter/__pycache__/left.pyc").touch()
    (again / "README.md").write_text("not of the image")
    second = build(again, "--output", "second.tar", "--cache", "elsewhere")
    assert first.stdout.split()[1] == second.stdout.split()[1]
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    (again / "agentix_namespaces/counter/_impl.py").write_text("changed = True\n")
    third = build(again, "--output", "third.tar", "--cache", "elsewhere")
    assert third.stdout.split()[1] != first.stdout.split()[1]


def test_link_is_built_as_it_is(build: Command, source: Path, tmp_path: Path) -> None:
    """What is behind a link does not go in, so that it cannot change the image."""
    behind = tmp_path / "behind"
    (source / "agentix_namespaces/counter/link").symlink_to(behind)
    images = set()
    for number, text in enumerate(["one", "two"]):
        behind.write_text(text)
        images.add(
            build(source, "--output", "a.tar", "--cache", f"cache{number}").stdout.split()[1]
        )
    assert len(images) == 1
    assert build(source, "--output", "bundles").returncode == 0
    lock = json.loads((tmp_path / "bundles/agentix-test/counter/1.0.0/lock.json").read_text())
    named = lock["sources"]["agentix_namespaces/counter/link"]
    assert named == hashlib.sha256(str(behind).encode()).hexdigest()


def test_unchanged_build_writes_nothing(build: Command, source: Path, tmp_path: Path) -> None:
    def state() -> dict[Path, int]:
        made = [*(tmp_path / "cache").rglob("*"), *(tmp_path / "bundles").rglob("*")]
        files = (path for path in made if path.is_file() and path.name != "lock")
        return {path: path.stat().st_mtime_ns for path in files}

    for arguments in (["--output", "bundles"], ["--output", "image.tar"]):
        assert build(source, *arguments).returncode == 0
    before = state()
    assert {path.suffix for path in before} >= {".json", ".py", ".tar"}
    for arguments in (["--output", "bundles"], ["--output", "image.tar"]):
        assert build(source, *arguments).returncode == 0
    assert state() == before


def test_cache_forgets_what_no_build_uses(build: Command, source: Path, tmp_path: Path) -> None:
    """Twenty days pass between any two builds, and things are kept for thirty."""
    cache = tmp_path / "cache/agentix"

    def built(name: str) -> set[Path]:
        """Return what is in the cache, after a build, and let the days pass."""
        done = build(source, "--output", "image.tar", "--tag", f"agentix-test/{name}:1")
        assert done.returncode == 0, done.stderr
        found = [*cache.glob("images/agentix-test/*/*"), *cache.glob("sboms/*")]
        found += cache.glob("plain/nix/store/*")
        for path in [*cache.rglob("*")]:
            status = path.stat()
            os.utime(path, (status.st_atime - 20 * DAY, status.st_mtime - 20 * DAY))
        return set(found)

    add_wheel(source)
    first = built("first")
    assert built("first") == first
    (source / "agentix_namespaces/counter/_impl.py").write_text("changed = True\n")
    both = built("second")
    assert first < both
    left = built("second")
    (wheel,) = cache.glob("plain/nix/store/*-shouter-1.2.3")
    assert left == both - first | {wheel}
    left_behind = cache / "plain/.making-killed"
    left_behind.mkdir()
    os.utime(left_behind, (1, 1))
    built("second")
    assert not left_behind.exists()


def test_image_says_what_went_in(build: Command, source: Path, tmp_path: Path) -> None:
    add_wheel(source)
    done = build(source, "--output", "image.tar", "--platform", "linux/arm64")
    assert done.returncode == 0, done.stderr
    described = configuration(tmp_path / "image.tar")
    assert (described["os"], described["architecture"]) == ("linux", "arm64")
    assert described["config"]["Volumes"] == {"/nix": {}}
    labels = described["config"]["Labels"]
    assert labels["org.agentix.closure"] == "1"
    lock = json.loads(labels["org.agentix.lock"])
    assert lock["platform"] == "linux/arm64"
    assert lock["wheels"][0]["name"] == "shouter"
    assert len(lock["sources"]["agentix_namespaces/counter/_impl.py"]) == 64
    bom = Bom.from_json(json.loads(labels["org.agentix.sbom"]))  # type: ignore[attr-defined]
    assert bom.metadata.component.name == "counter"
    (component,) = bom.components
    assert str(component.purl) == "pkg:pypi/shouter@1.2.3"
    assert [found.id for found in component.licenses] == ["MIT"]
    files = layer_files(tmp_path / "image.tar")
    assert layer_modes(tmp_path / "image.tar") == {0o444, 0o555}
    assert files["nix/lock.json"].decode() == labels["org.agentix.lock"]
    assert files["nix/sbom.cdx.json"].decode() == labels["org.agentix.sbom"]


def layer_modes(archive: Path) -> set[int]:
    """Return the modes of what lies in store paths: nobody may write there."""
    return {
        member.mode
        for member in layer_members(archive)
        if len(Path(member.name).parts) > 2 and not member.issym()
    }


def layer_members(archive: Path) -> list[tarfile.TarInfo]:
    """Return the members of all layers."""
    found: list[tarfile.TarInfo] = []
    with tarfile.open(archive) as opened:
        manifest = json.load(opened.extractfile("manifest.json") or io.BytesIO())
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=opened.extractfile(name)) as layer:
                found += layer.getmembers()
    return found


def layer_files(archive: Path) -> dict[str, bytes]:
    """Return the files of all layers."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as opened:
        manifest = json.load(opened.extractfile("manifest.json") or io.BytesIO())
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=opened.extractfile(name)) as layer:
                for member in layer.getmembers():
                    file = layer.extractfile(member) if member.isreg() else None
                    if file is not None:
                        found[member.name] = file.read()
    return found


def add_wheel(source: Path, *, requirement: str | None = None) -> Path:
    """Let the counter's impl use a wheel."""
    modules = {
        "shouter/__init__.py": "from shouted import shout\n",
        "shouter-1.2.3.data/purelib/shouted.py": "def shout(text): return text.upper()\n",
        "shouter-1.2.3.data/scripts/shout": "#!python\n",
    }
    wheel = write_wheel(source / "wheels", "shouter", modules)
    given = requirement or "wheels/shouter-1.2.3-py3-none-any.whl"
    (source / "pyproject.toml").write_text(f'[tool.agentix-namespace]\nwheels = ["{given}"]\n')
    impl = source / "agentix_namespaces/counter/_impl.py"
    text = impl.read_text().replace("raise ValueError(reason)", "raise ValueError(shout(reason))")
    impl.write_text(f"{text}\n\nfrom shouter import shout\n")
    return wheel


async def test_impl_imports_a_wheel_that_pip_found(
    build: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = add_wheel(source, requirement="shouter==1.2.3")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    done = build(source, "--output", "bundles")
    assert done.returncode == 0, done.stderr
    wheel.unlink()  # pip downloads once
    assert build(source, "--output", "bundles").returncode == 0
    counter = imported(source, "counter", monkeypatch)
    with pytest.raises(Exception, match="ValueError: LOUD"):
        await call_in_sandbox(tmp_path / "bundles", TAG, counter.fail, reason="loud")
    names = {path.name[33:] for path in (tmp_path / "bundles").glob("*/*/*/store/*")}
    assert names == {"agentix-namespace-counter", "shouter-1.2.3"}


@pytest.mark.parametrize(
    ("wheels", "reason"),
    [
        (["shouter"], "'shouter' is neither name==version nor the path of a wheel"),
        (["missing-1-py3-none-any.whl"], "missing-1-py3-none-any.whl is no wheel"),
        (["native-1.2.3-cp311-cp311-linux_x86_64.whl"], "is no wheel of pure Python"),
        (["pydantic-1.2.3-py3-none-any.whl"], "brings pydantic, which the runtime has itself"),
        (["one-1.2.3-py3-none-any.whl", "two-1.2.3-py3-none-any.whl"], "so does another wheel"),
        (["climber-1.2.3-py3-none-any.whl"], "holds ../../climbed.py, which leads out"),
    ],
)
def test_unusable_wheel_is_refused(
    build: Command, source: Path, tmp_path: Path, wheels: list[str], reason: str
) -> None:
    write_wheel(source, "native", {"native.py": ""}, tag="cp311-cp311-linux_x86_64")
    write_wheel(source, "pydantic", {"pydantic/__init__.py": ""})
    write_wheel(source, "one", {"same.py": ""})
    write_wheel(source, "two", {"same.py": ""})
    write_wheel(source, "climber", {"../../climbed.py": ""})
    (source / "pyproject.toml").write_text(f"[tool.agentix-namespace]\nwheels = {wheels}\n")
    done = build(source, "--output", "bundles")
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert not (tmp_path / "bundles").exists()
    left = [path for path in (tmp_path / "cache").rglob("*") if "making" in path.name]
    assert left == []


def spoil_manifest(source: Path) -> None:
    (source / "manifest.json").write_text(json.dumps(MANIFEST | {"abi": 2}))


def add_native_program(source: Path) -> None:
    (source / "bin").mkdir()
    (source / "bin/native").write_bytes(b"\x7fELF")


def add_nix_packages(source: Path) -> None:
    (source / "default.nix").write_text("{ pkgs }: import <x> {\n  packages = [ pkgs.git ];\n}\n")


@pytest.mark.parametrize(
    ("spoil", "arguments", "reason"),
    [
        (spoil_manifest, [], "abi: Input should be 1"),
        (shutil.rmtree, [], "is no directory: give that of a namespace"),
        (lambda source: None, ["--tag", "No Reference"], "'No Reference' is no image reference"),
        (lambda source: None, ["--platform", "windows/amd64"], "is no platform such as"),
        (lambda source: None, ["--output", "image.tar.gz"], "image.tar.gz: archives are not"),
        (lambda source: None, ["--builder", "nix"], "has no default.nix, which Nix builds from"),
        (add_native_program, ["--builder", "plain"], "bin/native is a native program"),
        (add_nix_packages, ["--builder", "plain"], "default.nix adds packages of Nix"),
        (add_nix_packages, [], "install Nix with nixpkgs, or Docker, to build"),
    ],
)
def test_what_cannot_be_built_is_told_in_a_line(
    build: Command,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Any,
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    spoil(source)
    done = build(source, "--output", "bundles", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[-1]
    assert not (tmp_path / "bundles").exists()


def test_without_an_engine_an_image_has_nowhere_to_go(
    build: Command, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = build(source)
    assert done.returncode == 2
    assert "no Docker engine answers: give --output DIRECTORY, or --push" in done.stderr


def test_script_is_built_plainly_with_a_word_about_its_interpreter(
    build: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    source = copy_namespace("mock-agent", tmp_path / "mock-agent")
    done = build(source, "--output", "bundles")
    assert done.returncode == 0
    note = "bin/mock-agent-cli runs where the task image has its interpreter: /bin/sh"
    assert "builder: plain (Nix with nixpkgs is not here)" in done.stderr.splitlines()
    assert note in done.stderr.splitlines()
    lock = json.loads((tmp_path / "bundles/agentix/mock-agent/0.1.0/lock.json").read_text())
    assert lock["programs"] == {"mock-agent-cli": "/bin/sh"}


@pytest.fixture
def loaded(docker_engine: str) -> Iterator[str]:
    """Yield a tag that the engine does not keep."""
    tag = f"agentix-test/built-{os.getpid()}:1"
    yield tag
    subprocess.run(["docker", "rmi", "--force", tag], capture_output=True, check=True)


def test_image_is_loaded_into_docker(
    build: Command, source: Path, tmp_path: Path, loaded: str
) -> None:
    done = build(source, "--tag", loaded)
    assert done.returncode == 0, done.stderr
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", loaded]
    assert done.stdout.split() == [loaded, run(command, tmp_path).stdout.strip()]
    assert "loading the image into Docker" in done.stderr
    again = build(source, "--tag", loaded)
    assert again.stdout == done.stdout
    assert "loading the image into Docker" not in again.stderr
    (source / "agentix_namespaces/counter/_impl.py").write_text("changed = True\n")
    changed = build(source, "--tag", loaded)
    assert changed.stdout != done.stdout
    assert changed.stdout.split() == [loaded, run(command, tmp_path).stdout.strip()]
    subprocess.run(["docker", "rmi", done.stdout.split()[1]], capture_output=True, check=True)


@pytest.fixture
def nix_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plain Nix find the offline package set in the place of nixpkgs."""
    if shutil.which("nix-build") is None:
        assert os.environ.get("AGENTIX_REQUIRE_DOCKER") != "1", "nix-build is not installed"
        pytest.skip("nix-build is not installed")
    cache = REPOSITORY / ".cache"
    ready = run([sys.executable, "-m", "nix.images", "closures", "mock-agent"], REPOSITORY)
    assert ready.returncode == 0, ready.stderr
    monkeypatch.setenv("AGENTIX_OFFLINE_CACHE", str(cache / "offline"))
    monkeypatch.setenv("AGENTIX_OFFLINE_LOCK", str(Builder(cache).lock))
    monkeypatch.setenv("NIX_CONF_DIR", str(REPOSITORY / "nix/offline"))
    monkeypatch.setenv("NIX_PATH", f"nixpkgs={REPOSITORY}/nix/offline:agentix={REPOSITORY}/nix")


@pytest.mark.usefixtures("nix_environment")
def test_nix_builds_what_has_programs(build: Command, tmp_path: Path) -> None:
    source = copy_namespace("mock-agent", tmp_path / "mock-agent")
    expression = (source / "default.nix").read_text()
    anywhere = expression.replace("../../nix/namespace.nix", "<agentix/namespace.nix>")
    (source / "default.nix").write_text(anywhere)
    done = build(source, "--output", "bundles")
    assert done.returncode == 0, done.stderr
    assert "builder: nix (programs in bin get interpreters of their own)" in done.stderr
    bundle = tmp_path / "bundles/agentix/mock-agent/0.1.0"
    lock = json.loads((bundle / "lock.json").read_text())
    assert lock["builder"] == "nix"
    assert {path.name for path in (bundle / "store").iterdir()} == {lock["entry"], *lock["store"]}
    program = (bundle / "entry/bin/mock-agent-cli").read_text()
    assert program.splitlines()[0].startswith("#!/nix/store/")
    names = {
        item["name"] for item in json.loads((bundle / "sbom.cdx.json").read_text())["components"]
    }
    assert "static-shell" in names
    images = [build(source, "--output", name).stdout.split()[1] for name in ("a.tar", "b.tar")]
    assert images[0] == images[1]


NIX_STAND_IN = """#!/bin/sh
# Stands for Nix, which no registry gives here: lays the source out and names it.
set -e
case "$0" in
*nix-build)
    entry=/nix/store/00000000000000000000000000000000-agentix-namespace-counter
    mkdir -p $entry/python
    cp -R agentix_namespaces $entry/python/
    cp manifest.json $entry/
    echo $entry
    ;;
*nix-store) echo "$3" ;;
esac
"""


@pytest.fixture
def nix_image(docker_engine: str, tmp_path: Path) -> Iterator[str]:
    """Yield an image of busybox and a stand-in for Nix: the real one needs a registry."""
    tag = f"agentix-test/nix-{os.getpid()}:1"
    context = tmp_path / "nix-image"
    (context / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, context / "bin/busybox")
    for name in ("nix-build", "nix-store"):
        (context / "bin" / name).write_text(NIX_STAND_IN)
        (context / "bin" / name).chmod(0o755)
    for name in ("sh", "mkdir", "cp", "echo", "printf"):
        (context / "bin" / name).symlink_to("busybox")
    # The label keeps the engine from giving the image of another run, with its containers.
    dockerfile = f"FROM scratch\nLABEL org.agentix.test={tag}\nCOPY bin /bin\n"
    (context / "Dockerfile").write_text(dockerfile)
    made = run(["docker", "build", "--quiet", "--tag", tag, str(context)], tmp_path)
    assert made.returncode == 0, made.stderr
    yield tag
    left = run(["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={tag}"], tmp_path)
    built = ["docker", "images", "--quiet", "--filter", f"label=org.agentix.builder={tag}"]
    images = run(built, tmp_path).stdout.split()
    subprocess.run(["docker", "rmi", "--force", *images, tag], capture_output=True, check=True)
    assert left.stdout == "", "a build left a container"


def test_docker_builds_with_nix_inside(
    build: Command, source: Path, tmp_path: Path, nix_image: str
) -> None:
    """All but Nix itself is real: the builder, the container, and what is copied out of it."""
    (source / "default.nix").write_text("{ }: { }\n")
    arguments = ["--builder", "docker", "--nix-image", nix_image]
    done = build(source, *arguments, "--output", "bundles")
    assert done.returncode == 0, done.stderr
    bundle = tmp_path / "bundles/agentix-test/counter/1.0.0"
    assert json.loads((bundle / "entry/manifest.json").read_text()) == MANIFEST
    assert json.loads((bundle / "lock.json").read_text())["builder"] == "docker"
    images = [build(source, *arguments, "--output", name) for name in ("a.tar", "b.tar")]
    assert images[0].stdout.split()[1] == images[1].stdout.split()[1]


def test_failure_of_a_builder_is_told(build: Command, source: Path, nix_image: str) -> None:
    (source / "default.nix").write_text("{ }: { }\n")
    (source / ".dockerignore").write_text("manifest.json\n")
    done = build(source, "--builder", "docker", "--nix-image", nix_image, "--output", "bundles")
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr.splitlines()[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_replaces_its_line_on_a_terminal() -> None:
    terminal = Terminal()
    with Progress(terminal).step("building"):
        assert terminal.getvalue() == "building ..."
    assert terminal.getvalue() == "building ...\r\x1b[2Kbuilding (0.0 s)\n"


def test_declared_image_is_read_without_importing(build: Command, source: Path) -> None:
    package = source / "agentix_namespaces/counter/__init__.py"
    package.write_text('__image__ = "other/place:2"\nraise SystemExit("imported")\n')
    done = build(source, "--output", "image.tar")
    assert done.stdout.startswith("other/place:2 sha256:")
