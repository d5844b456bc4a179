"""The manifest: what is required, what is kept, what is refused and why."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentix import AGENTIX_CLOSURE_ABI
from agentix.errors import ManifestError
from agentix.manifest import NamespaceManifest, read_manifest

VALID = {
    "abi": 1,
    "name": "my-namespace",
    "version": "1.0.0",
    "package": "agentix_namespaces.my_namespace",
}


def written(path: Path, content: Any) -> Path:
    file = path / "manifest.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_closure_abi_is_one() -> None:
    assert AGENTIX_CLOSURE_ABI == 1


def test_required_fields_are_enough(tmp_path: Path) -> None:
    manifest = read_manifest(written(tmp_path, VALID))
    assert (manifest.abi, manifest.name, manifest.version) == (1, "my-namespace", "1.0.0")
    assert manifest.package == "agentix_namespaces.my_namespace"
    assert (manifest.description, manifest.kind) == (None, None)


def test_additional_fields_are_preserved(tmp_path: Path) -> None:
    extra = {"homepage": "x", "nested": {"a": [1, None]}}
    manifest = read_manifest(written(tmp_path, VALID | extra))
    assert NamespaceManifest.model_validate_json(manifest.model_dump_json()) == manifest
    assert manifest.model_extra == extra


@pytest.mark.parametrize("field", sorted(VALID))
def test_missing_field_is_named(tmp_path: Path, field: str) -> None:
    content = {name: value for name, value in VALID.items() if name != field}
    with pytest.raises(ManifestError, match=rf"malformed manifest .*: {field}: Field required$"):
        read_manifest(written(tmp_path, content))


@pytest.mark.parametrize("abi", [0, 2, "1", True, 1.5, None])
def test_other_abi_is_refused(tmp_path: Path, abi: object) -> None:
    with pytest.raises(ManifestError, match=r"abi: (Value error, )?Input should be 1$"):
        read_manifest(written(tmp_path, VALID | {"abi": abi}))


@pytest.mark.parametrize("version", ["1", "1.0", "v1.0.0", "1.0.0 ", "01.0.0", ""])
def test_version_that_is_not_semantic_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(ManifestError, match="version: String should match pattern"):
        read_manifest(written(tmp_path, VALID | {"version": version}))


@pytest.mark.parametrize("version", ["0.0.0", "1.2.3-rc.1", "1.2.3+build.5", "10.20.30-a-b+c"])
def test_semantic_version_is_taken(tmp_path: Path, version: str) -> None:
    assert read_manifest(written(tmp_path, VALID | {"version": version})).version == version


@pytest.mark.parametrize(
    "package", ["my_namespace", "agentix_namespaces", "agentix_namespaces.a.b", "x.y", "os", ""]
)
def test_package_elsewhere_is_refused(tmp_path: Path, package: str) -> None:
    with pytest.raises(ManifestError, match="package: String should match pattern"):
        read_manifest(written(tmp_path, VALID | {"package": package}))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\x00"])
def test_file_that_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ManifestError, match="malformed manifest"):
        read_manifest(written(tmp_path, content))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=rf"no manifest at {tmp_path}/nothing: No such file"):
        read_manifest(tmp_path / "nothing")
