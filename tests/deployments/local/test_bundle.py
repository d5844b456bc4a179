"""Bundles without Nix, and how references find them."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.errors import DeploymentError, ManifestError, UsageError
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix.local.reference import find_bundle, find_image

REPOSITORY = Path(__file__).resolve().parents[3]
MANIFEST = {"abi": 1, "name": "one", "version": "1.0.0", "package": "agentix_namespaces.one"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make the source tree of a small namespace with a program."""
    source = tmp_path / "source"
    (source / "agentix_namespaces/one").mkdir(parents=True)
    (source / "agentix_namespaces/one/__init__.py").write_text("ANSWER = 1\n")
    (source / "bin").mkdir()
    (source / "bin/program").write_text("#!/bin/sh\n")
    (source / "bin/program").chmod(0o700)
    (source / "manifest.json").write_text(json.dumps(MANIFEST))
    return source


def content(bundle: Path) -> Iterator[tuple[str, int, bytes]]:
    for path in sorted(bundle.resolve().rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        yield str(path.relative_to(bundle.resolve())), path.stat().st_mode, data


def test_namespace_bundle_has_the_layout_of_the_protocol(source: Path, tmp_path: Path) -> None:
    (source / "agentix_namespaces/one/__pycache__").mkdir()
    (source / "agentix_namespaces/one/__pycache__/stale.pyc").write_bytes(b"")
    bundle = make_namespace_bundle(source, tmp_path / "bundles/one")
    tag = sys.implementation.cache_tag
    files = [name for name, mode, _ in content(bundle) if not mode & 0o040000]
    assert files == [
        "entry/bin/program",
        "entry/manifest.json",
        "entry/python/agentix_namespaces/one/__init__.py",
        f"entry/python/agentix_namespaces/one/__pycache__/__init__.{tag}.pyc",
    ]
    assert os.access(bundle / "entry/bin/program", os.X_OK)


def test_namespace_bundle_is_deterministic(source: Path, tmp_path: Path) -> None:
    one = make_namespace_bundle(source, tmp_path / "a/one")
    for path in source.rglob("*"):
        os.utime(path, (0, 0))
    two = make_namespace_bundle(source, tmp_path / "b/one")
    assert list(content(one)) == list(content(two))
    assert one.resolve().name == two.resolve().name


def test_unchanged_bundle_is_left_alone(source: Path, tmp_path: Path) -> None:
    bundle = make_namespace_bundle(source, tmp_path / "bundles/one")
    before = bundle.resolve(), bundle.resolve().stat()
    make_namespace_bundle(source, tmp_path / "bundles/one")
    assert (bundle.resolve(), bundle.resolve().stat()) == before
    assert len(list((tmp_path / "bundles").iterdir())) == 2


LARGE = 300 * 1024 * 1024
MAKE_AND_MEASURE = """
import sys
from pathlib import Path
from agentix.local.bundle import make_namespace_bundle

make_namespace_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def test_large_file_is_hashed_in_pieces(source: Path, tmp_path: Path) -> None:
    os.truncate(source / "bin/program", LARGE)
    command = [sys.executable, "-c", MAKE_AND_MEASURE, str(source), str(tmp_path / "bundles/one")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) < 100 * 1024, "KiB of memory at most"


def test_digest_is_that_of_names_modes_and_content(source: Path, tmp_path: Path) -> None:
    (source / "agentix_namespaces/one/link").symlink_to("__init__.py")
    bundle = make_namespace_bundle(source, tmp_path / "bundles/one").resolve()
    digest = hashlib.sha256()
    for path in sorted(bundle.rglob("*"), key=lambda path: path.relative_to(bundle).parts):
        name, mode = path.relative_to(bundle), oct(path.stat().st_mode & 0o777)
        text = path.read_bytes() if path.is_file() else b""
        if path.is_symlink():
            mode, text = "link", os.readlink(path).encode()
        digest.update(f"{name}\0{mode}\0{len(text)}\0".encode() + text)
    assert bundle.name == f".one-{digest.hexdigest()[:16]}"


def test_changed_bundle_keeps_the_old_content(source: Path, tmp_path: Path) -> None:
    bundle = make_namespace_bundle(source, tmp_path / "bundles/one")
    old, mount = bundle.resolve(), find_bundle(str(bundle), None).mount
    (source / "agentix_namespaces/one/__init__.py").write_text("ANSWER = 2\n")
    make_namespace_bundle(source, tmp_path / "bundles/one")
    module = "entry/python/agentix_namespaces/one/__init__.py"
    assert (bundle / module).read_text() == "ANSWER = 2\n"
    assert (old / module).read_text() == "ANSWER = 1\n"
    assert find_bundle(str(bundle), None).mount != mount


def test_failed_bundle_leaves_nothing(source: Path, tmp_path: Path) -> None:
    (source / "agentix_namespaces/one/broken.py").write_text("def\n")
    with pytest.raises(UsageError, match=r"agentix_namespaces/one/broken.py does not compile"):
        make_namespace_bundle(source, tmp_path / "bundles/one")
    assert list((tmp_path / "bundles").iterdir()) == []


def test_manifest_must_name_a_package_that_is_there(source: Path, tmp_path: Path) -> None:
    other = {**MANIFEST, "package": "agentix_namespaces.other"}
    (source / "manifest.json").write_text(json.dumps(other))
    with pytest.raises(ManifestError, match=r"agentix_namespaces\.other"):
        make_namespace_bundle(source, tmp_path / "bundle")


def test_runtime_bundle_names_only_what_the_runtime_needs(tmp_path: Path) -> None:
    bundle = make_runtime_bundle(tmp_path / "runtime")
    start = (bundle / "entry/bin/start").read_text()
    assert start.startswith(f"#!{sys.executable} -ISXutf8\n")
    assert str(REPOSITORY / "packages/agentix-runtime/src") in start or "site-packages" in start
    assert f"'{REPOSITORY}'" not in start
    assert (bundle / "entry/bin/sh").exists()


def test_command_line(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentix.local.bundle"]
    made = subprocess.run(
        [*command, "namespace", str(source), "one"], cwd=tmp_path, capture_output=True, check=True
    )
    assert made.stdout.decode().strip() == str(tmp_path / "one")
    assert (tmp_path / "one/entry/manifest.json").is_file()


def test_reference_of_an_image(source: Path, tmp_path: Path) -> None:
    bundle = make_namespace_bundle(source, tmp_path / "agentix/one/0.1.0")
    found = find_bundle("agentix/one:0.1.0", tmp_path)
    assert found.path == bundle.resolve()
    assert found.mount.startswith("c")
    assert found.host_paths is None
    assert found == find_bundle(str(bundle), None)


@pytest.mark.parametrize(
    ("reference", "place"),
    [("agentix/one:0.1.0", "agentix/one/0.1.0/entry"), ("one", "one/latest/entry")],
)
def test_missing_bundle_says_where_it_was_looked_for(
    tmp_path: Path, reference: str, place: str
) -> None:
    with pytest.raises(DeploymentError, match=f"no bundle '{reference}': {tmp_path / place}"):
        find_bundle(reference, tmp_path)


def test_reference_without_a_directory_of_bundles() -> None:
    with pytest.raises(DeploymentError, match="was given no directory of bundles"):
        find_bundle("agentix/one:0.1.0", None)


@pytest.mark.parametrize("reference", ["a/../../etc", "a//b", "a:b:c/d", "-x", "a@sha256:00", " "])
def test_reference_that_is_none(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UsageError, match="neither the path of a bundle nor an image reference"):
        find_bundle(reference, tmp_path)


def test_image_is_a_directory(tmp_path: Path) -> None:
    assert find_image(str(tmp_path)) == tmp_path
    with pytest.raises(DeploymentError, match="no task image"):
        find_image(str(tmp_path / "missing"))
