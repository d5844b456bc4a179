"""`agentix-namespace check` of images and bundles: real ones, and such as are broken on purpose."""

import dataclasses
import io
import json
import secrets
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiodocker
import pytest

from agentix.local.bundle import make_namespace_bundle
from agentix.namespace_sdk.check import check
from agentix.namespace_sdk.check.closure import interpreter_of
from agentix.namespace_sdk.check.image import ImageCheck, has_started
from agentix.namespace_sdk.command import main
from tests.runtime.serving import wait_until
from tests.sdk.conftest import run
from tests.sdk.namespaces import IMPLS, MANIFEST, PACKAGE, REGISTER, STUBS

NAMESPACES = Path(__file__).resolve().parents[2] / "namespaces"
ENTRY = "0" * 32 + "-agentix-namespace-greeter"
SHELL = "1" * 32 + "-static-shell"
LOST = "/nix/store/" + "2" * 32 + "-lost"


@dataclass(frozen=True)
class File:
    """A file, a directory or a link of a closure."""

    content: bytes = b""
    mode: int = 0o444
    link: str | None = None
    directory: bool = False


@dataclass(frozen=True)
class Layout:
    """What an image is made of: the files below `/nix`, and whether it declares the volume."""

    files: Mapping[str, File]
    volume: bool = True

    def with_files(self, files: Mapping[str, File]) -> "Layout":
        return dataclasses.replace(self, files={**self.files, **files})

    def without(self, name: str) -> "Layout":
        kept = {path: file for path, file in self.files.items() if path != name}
        return dataclasses.replace(self, files=kept)


def busybox() -> bytes:
    program = shutil.which("busybox")
    assert program is not None, "busybox is not installed; install busybox-static"
    return Path(program).read_bytes()


def sound() -> Layout:
    """Return a closure as it should be: a namespace with a program, and the shell it runs on."""
    package = f"store/{ENTRY}/python/{PACKAGE}"
    program = f"#!/nix/store/{SHELL}/bin/sh\necho usage\n".encode()
    return Layout(
        {
            "entry": File(link=f"store/{ENTRY}"),
            f"store/{ENTRY}/manifest.json": File(json.dumps(MANIFEST).encode()),
            f"{package}/__init__.py": File(STUBS.encode()),
            f"{package}/_impl.py": File(IMPLS.encode()),
            f"{package}/_register.py": File(REGISTER.encode()),
            f"{package}/py.typed": File(),
            f"store/{ENTRY}/bin/greeter": File(program, 0o555),
            f"store/{SHELL}/bin/sh": File(busybox(), 0o555),
        }
    )


def write(layout: Layout, directory: Path) -> Path:
    """Write a layout as a bundle."""
    for name, file in layout.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.link is not None:
            path.symlink_to(file.link)
        elif file.directory:
            path.mkdir()
            path.chmod(file.mode)
        else:
            path.write_bytes(file.content)
            path.chmod(file.mode)
    return directory


@contextmanager
def image_of(layout: Layout) -> Iterator[str]:
    """Yield an image of a layout, for the length of a block."""
    tag = f"agentix-test/checked:{secrets.token_hex(8)}"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, file in layout.files.items():
            member = tarfile.TarInfo(f"nix/{name}")
            member.mode = file.mode
            if file.link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, file.link
            elif file.directory:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(file.content)
            tar.addfile(member, io.BytesIO(file.content))
    changes = ["--change", "VOLUME /nix"] if layout.volume else []
    docker("import", *changes, "-", tag, stdin=archive.getvalue())
    try:
        yield tag
    finally:
        docker("image", "rm", tag)


def docker(*arguments: str, stdin: bytes | None = None) -> str:
    finished = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, check=True)
    return finished.stdout.decode().strip()


def left_in_engine() -> tuple[list[str], list[str]]:
    """Return the containers and images of checks that the engine still has."""
    containers = docker("ps", "--all", "--format", "{{.Names}}").split()
    images = docker("images", "--format", "{{.Repository}}").split()
    return (
        [name for name in containers if name.startswith("agentix-check-")],
        [name for name in images if name.startswith("agentix-check")],
    )


Change = Callable[[Layout], Layout]


@dataclass(frozen=True)
class Case:
    """A way to break an image, and what is told of it."""

    change: Change
    code: str
    file: str
    message: str
    in_bundle: bool = True
    """Whether a bundle can be broken so, too."""


def add(name: str, file: File) -> Change:
    return lambda layout: layout.with_files({name: file})


CASES = {
    "no volume": Case(
        lambda layout: dataclasses.replace(layout, volume=False),
        "AGX501", "{image}", "VOLUME /nix is missing", in_bundle=False,
    ),
    "absolute entry": Case(
        add("entry", File(link=f"/nix/store/{ENTRY}")),
        "AGX502", "{nix}/entry", f"it is an absolute link, to /nix/store/{ENTRY}",
    ),
    "dangling entry": Case(
        add("entry", File(link="store/elsewhere")),
        "AGX502", "{nix}/entry", "it leads to store/elsewhere, which is not there",
    ),
    "no entry": Case(
        lambda layout: layout.without("entry"),
        "AGX502", "{nix}/entry", "there is no directory entry", in_bundle=False,
    ),
    "lost reference": Case(
        add(f"store/{ENTRY}/share/note", File(f"see {LOST}/bin/x".encode())),
        "AGX503", f"{{nix}}/store/{ENTRY}/share/note",
        f"it refers to {LOST}, which is not in the closure",
    ),
    "lost link": Case(
        add(f"store/{ENTRY}/lib", File(link=f"{LOST}/lib")),
        "AGX503", f"{{nix}}/store/{ENTRY}/lib", "which is not in the closure",
    ),
    "link that leads out": Case(
        add(f"store/{ENTRY}/lib", File(link="../../../etc/passwd")),
        "AGX503", f"{{nix}}/store/{ENTRY}/lib",
        "the link leads to ../../../etc/passwd, which is not in the closure",
    ),
    "interpreter of the task image": Case(
        add(f"store/{ENTRY}/bin/broken", File(b"#!/bin/sh\necho\n", 0o555)),
        "AGX504", "{nix}/entry/bin/broken", "",
    ),
    "program nobody may execute": Case(
        add(f"store/{ENTRY}/bin/broken", File(f"#!/nix/store/{SHELL}/bin/sh\n".encode(), 0o444)),
        "AGX504", "{nix}/entry/bin/broken", "",
    ),
    "program that ends as missing": Case(
        add(f"store/{ENTRY}/bin/broken",
            File(f"#!/nix/store/{SHELL}/bin/sh\nno-such-tool\n".encode(), 0o555)),
        "AGX504", "{nix}/entry/bin/broken", "no-such-tool: not found", in_bundle=False,
    ),
    "writable file": Case(
        add(f"store/{ENTRY}/share/data", File(b"data", 0o666)),
        "AGX505", f"{{nix}}/store/{ENTRY}/share/data", "its mode is 666",
    ),
    "writable directory": Case(
        add(f"store/{ENTRY}/tmp", File(mode=0o1777, directory=True)),
        "AGX505", f"{{nix}}/store/{ENTRY}/tmp", "its mode is 1777",
    ),
    "name without a hash": Case(
        add("store/greeter-1.0/file", File(b"text")),
        "AGX506", "{nix}/store/greeter-1.0", "'greeter-1.0' is not <hash>-<name>",
    ),
    "bad package": Case(
        add(f"store/{ENTRY}/python/{PACKAGE}/_impl.py", File(b"raise OSError('why')\n")),
        "AGX401", f"{{nix}}/entry/python/{PACKAGE}/_impl.py", "OSError: why",
    ),
    "bad manifest": Case(
        add(f"store/{ENTRY}/manifest.json", File(b"{}")),
        "AGX103", "{nix}/entry/manifest.json", "abi: the field is missing",
    ),
}  # fmt: skip


IN_IMAGES = (
    "no volume", "absolute entry", "no entry", "lost reference", "interpreter of the task image",
    "program nobody may execute", "program that ends as missing", "writable file",
    "name without a hash", "bad package",
)  # fmt: skip
"""Cases that are also tried in images; the others look at the same files in the same way."""


@pytest.mark.parametrize("name", IN_IMAGES)
def test_broken_image_is_told(docker_engine: str, name: str) -> None:
    case = CASES[name]
    with image_of(case.change(sound())) as image:
        found = check(image)
    assert {finding.code for finding in found} <= {case.code, "AGX104"}
    place = case.file.format(image=image, nix="/nix")
    told = [finding.message for finding in found if finding.file == place]
    assert any(case.message in message for message in told), found


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.in_bundle])
def test_broken_bundle_is_told(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    bundle = write(case.change(sound()), tmp_path / "bundle")
    found = check(str(bundle))
    assert {finding.code for finding in found} <= {case.code, "AGX104"}
    place = case.file.format(nix=bundle)
    told = [finding.message for finding in found if finding.file == place]
    assert any(case.message in message for message in told), found


def test_sound_image_has_no_finding_and_leaves_nothing(docker_engine: str) -> None:
    with image_of(sound()) as image:
        assert check(image) == []
    assert left_in_engine() == ([], [])


def test_sound_bundle_has_no_finding(tmp_path: Path) -> None:
    assert check(str(write(sound(), tmp_path / "bundle"))) == []


@pytest.mark.parametrize(
    ("exit_code", "output", "started"),
    [
        (0, "usage", True),
        (1, "unknown option --help", True),
        (2, "", True),
        (1, "standard_init_linux.go:228: exec user process caused: no such file", False),
        (255, "exec /nix/entry/bin/broken: exec format error", False),
        (126, "", False),
        (127, "error while loading shared libraries: libx.so", False),
        (139, "", False),
    ],
)
def test_what_counts_as_started(exit_code: int, output: str, started: bool) -> None:
    assert has_started(exit_code, output) is started


def test_program_that_goes_on_has_started(
    docker_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentix.namespace_sdk.check.image.START_SECONDS", 0.5)
    script = f"#!/nix/store/{SHELL}/bin/sh\nexec sleep 600\n".encode()
    program = File(script, 0o555)
    with image_of(sound().with_files({f"store/{ENTRY}/bin/server": program})) as image:
        assert check(image) == []


def test_terminated_check_leaves_nothing_in_the_engine(docker_engine: str) -> None:
    script = f"#!/nix/store/{SHELL}/bin/sh\nexec sleep 600\n".encode()
    program = File(script, 0o555)
    with image_of(sound().with_files({f"store/{ENTRY}/bin/server": program})) as image:
        command = [sys.executable, "-m", "agentix.namespace_sdk", "check", image]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: len(left_in_engine()[0]) >= 2)  # the holder, and a program
            process.terminate()
            _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (2, f"agentix-namespace: {image}: the check was ended\n")
    assert left_in_engine() == ([], [])


def test_check_removes_what_killed_ones_left_long_ago(docker_engine: str) -> None:
    old, new = "agentix-check-1000-left", f"agentix-check-{int(time.time())}-mine"
    with image_of(sound()) as image:
        docker("tag", image, "agentix-check-bare:1000-left")
        for name in (old, new):
            docker("create", "--name", name, image, "none")
        try:
            assert check(image) == []
            assert left_in_engine() == ([new], [])
        finally:
            docker("rm", "--force", "--volumes", new)


async def test_programs_for_another_processor_are_not_started(docker_engine: str) -> None:
    async with aiodocker.Docker() as docker:
        image_check = ImageCheck(docker, "any")
        own = (await docker.version())["Arch"]
        assert await image_check._runs_here({"Architecture": own})
        assert not await image_check._runs_here({"Architecture": "s390x"})


def test_bundle_for_the_host_has_no_finding(tmp_path: Path) -> None:
    bundle = make_namespace_bundle(NAMESPACES / "mock-agent", tmp_path / "bundle")
    assert check(str(bundle)) == []


def test_image_without_a_store_is_told(docker_engine: str) -> None:
    files = {
        name.replace(f"store/{ENTRY}", "entry"): file
        for name, file in sound().without("entry").files.items()
        if ENTRY in name and "/bin/" not in name
    }
    with image_of(Layout(files)) as image:
        assert [(item.code, item.file) for item in check(image)] == [("AGX506", "/nix/store")]


def test_members_that_lead_out_of_the_archive_are_not_written(tmp_path: Path) -> None:
    from agentix.namespace_sdk.check.image import unpack

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        link = tarfile.TarInfo("nix/out")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        for name in ("nix/out/written", "../written", "nix/../../written"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    archive.seek(0)
    unpack(archive, tmp_path / "unpacked")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["nix", "out", "unpacked"]


def test_missing_image_is_exit_code_2(
    docker_engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "agentix-test/never-made:1"]) == 2
    told = capsys.readouterr().err
    assert told == (
        "agentix-namespace: agentix-test/never-made:1: no such directory, and the Docker engine has"
        " no such image: build or pull it first\n"
    )


def test_engine_that_does_not_answer_is_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentix.namespace_sdk", "check", "some/image:1"]
    refused = run(command, tmp_path, {"DOCKER_HOST": f"unix://{tmp_path}/none"})
    assert refused.returncode == 2
    assert refused.stderr.startswith("agentix-namespace: some/image:1: no such directory, and the")


def test_interpreter_of_a_program(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#! /usr/bin/env python3\n")
    assert interpreter_of(script) == "/usr/bin/env"
    static = tmp_path / "static"
    static.write_bytes(busybox())
    assert interpreter_of(static) is None
    dynamic = Path("/bin/ls").resolve()
    assert str(interpreter_of(dynamic)).startswith("/lib")
    script.write_text("text")
    assert interpreter_of(script) is None
