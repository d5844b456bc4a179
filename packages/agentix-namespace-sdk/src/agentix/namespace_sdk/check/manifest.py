"""The rules about the manifest (protocol: Manifest)."""

import json
import re
from collections.abc import Iterator

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentix.manifest import NAMESPACE_PARENT, NamespaceManifest
from agentix.namespace_sdk.check.finding import Finding
from agentix.namespace_sdk.check.tree import Tree

__all__ = ["check_manifest"]

FIELD_RULES = {"abi": "AGX103", "version": "AGX105", "package": "AGX106"}
"""Fields with a rule of their own."""


def check_manifest(tree: Tree) -> tuple[NamespaceManifest | None, list[Finding]]:
    """Reads the manifest.

    Returns:
        The manifest, where it is valid, and what is wrong with it, where it is not.
    """
    try:
        text = tree.manifest.read_bytes()
    except OSError as error:
        reason = f"{tree.manifest.name} can not be read: {error.strerror}"
        return None, [tree.finding("AGX101", tree.manifest, reason)]
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        return None, [tree.finding("AGX102", tree.manifest, error.msg, error.lineno)]
    except UnicodeDecodeError as error:
        return None, [tree.finding("AGX102", tree.manifest, f"it is not UTF-8: {error.reason}")]
    if not isinstance(fields, dict):
        reason = f"it is a {type(fields).__name__}, not an object"
        return None, [tree.finding("AGX102", tree.manifest, reason, 1)]
    try:
        return NamespaceManifest.model_validate_json(text, strict=True), []
    except ValidationError as error:
        return None, list(_field_findings(tree, text.decode(), error))


def _field_findings(tree: Tree, text: str, error: ValidationError) -> Iterator[Finding]:
    for item in error.errors(include_url=False, include_context=False):
        field = str(item["loc"][0]) if item["loc"] else "manifest"
        code = FIELD_RULES.get(field, "AGX104")
        if item["type"] in ("missing", "string_type") and field != "abi":
            code = "AGX104"
        message = f"{field}: {_described(item)}"
        yield tree.finding(code, tree.manifest, message, _line_of(field, text))


def _described(item: ErrorDetails) -> str:
    if item["type"] == "missing":
        return "the field is missing"
    given = json.dumps(item["input"])
    if item["type"] == "string_pattern_mismatch":
        wanted = {"version": "a semantic version", "package": f"{NAMESPACE_PARENT}.<name>"}
        return f"{given} is not {wanted[str(item['loc'][0])]}"
    return f"{given}: {item['msg']}"


def _line_of(field: str, text: str) -> int:
    """Gives the line of a field; the first one where the field is missing."""
    found = re.search(rf"{re.escape(json.dumps(field))}\s*:", text)
    return 1 if found is None else text.count("\n", 0, found.start()) + 1
