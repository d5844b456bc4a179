"""The lock of the offline package set: what it names, and what happens when a mirror moves on."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from agentix.namespace_sdk.store import Closure
from nix.closures import Builder
from nix.offline.command import FetchError, VanishedError
from nix.offline.fetch import DEFAULT_LOCK, fetch, fetch_or_newer, runtime_requirements
from nix.offline.lock import Lock
from nix.offline.wheels import requirement_name
from tests.images.conftest import CACHE


@pytest.fixture
def lock(builder: Builder, runtime_closure: Closure) -> Lock:
    """Gives the lock whose files the build of the runtime has fetched."""
    return Lock.read(builder.lock)


@pytest.fixture
def cache(lock: Lock, tmp_path: Path) -> Path:
    """Gives a copy of the filled cache, to do harm to."""
    sources = tmp_path / "offline"
    for folder in ("bootstrap", "debian", "wheels"):
        shutil.copytree(CACHE / "offline" / folder, sources / folder)
    return sources


@pytest.fixture
def vanished(lock: Lock, tmp_path: Path) -> Path:
    """Gives a lock that names a version the mirror does not have."""
    gone = dataclasses.replace(
        lock.debian["libffi8"], version="3.0-1", file="libffi8_3.0-1_amd64.deb", sha256="0" * 64
    )
    path = tmp_path / "lock.json"
    dataclasses.replace(lock, debian={**lock.debian, "libffi8": gone}).write(path)
    return path


def test_everything_the_runtime_requires_is_locked() -> None:
    required = {requirement_name(requirement) for requirement in runtime_requirements()}
    assert required <= set(Lock.read(DEFAULT_LOCK).wheels)


def test_writing_a_lock_gives_the_file_it_was_read_from(tmp_path: Path) -> None:
    Lock.read(DEFAULT_LOCK).write(tmp_path / "lock.json")
    assert (tmp_path / "lock.json").read_text() == DEFAULT_LOCK.read_text()


def test_file_that_is_not_the_locked_one_is_fetched_again(lock: Lock, cache: Path) -> None:
    damaged = cache / "wheels" / lock.wheels["idna"].file
    original = damaged.read_bytes()
    damaged.write_bytes(b"damaged")
    fetch(lock, cache)
    assert damaged.read_bytes() == original


def test_package_the_mirror_has_dropped_is_named_with_what_to_do(
    cache: Path, vanished: Path
) -> None:
    with pytest.raises(VanishedError, match=r"libffi8 3\.0-1 is no longer .* --refresh"):
        fetch(Lock.read(vanished), cache)


def test_newer_package_stands_in_for_one_the_mirror_has_dropped(
    lock: Lock,
    cache: Path,
    vanished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    newer = tmp_path / "newer.json"
    fetch_or_newer(vanished, newer, cache)
    assert "WARNING: libffi8 3.0-1 is no longer" in capsys.readouterr().err
    substitute = Lock.read(newer)
    assert substitute.debian["libffi8"].version != "3.0-1"
    assert substitute.wheels == lock.wheels


def test_failed_download_says_which_command_failed(lock: Lock, cache: Path) -> None:
    idna = dataclasses.replace(lock.wheels["idna"], sha256="0" * 64)
    with pytest.raises(FetchError, match="pip download"):
        fetch(dataclasses.replace(lock, wheels={"idna": idna}), cache)
