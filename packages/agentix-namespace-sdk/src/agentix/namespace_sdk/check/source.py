"""Checks a source tree, or the entry of a closure, by all rules but those of images."""

from pathlib import Path

from agentix.manifest import NamespaceManifest
from agentix.namespace_sdk.check.behaviour import TIME_LIMIT, RunningProbe
from agentix.namespace_sdk.check.finding import Finding
from agentix.namespace_sdk.check.layout import check_layout, check_links, check_project
from agentix.namespace_sdk.check.manifest import check_manifest
from agentix.namespace_sdk.check.stubs import check_imports, check_stubs
from agentix.namespace_sdk.check.tree import Tree

__all__ = ["check_source", "check_tree"]


def check_source(path: Path, time_limit: float = TIME_LIMIT) -> list[Finding]:
    """Checks the source tree of a namespace.

    Args:
        path: The directory with `manifest.json` and `agentix_namespaces/<name>/`.
        time_limit: Seconds that its import may take, which happens in a child process.

    Returns:
        What was found, in the order of places.
    """
    tree = Tree.of_source(path)
    manifest, findings = check_manifest(tree)
    if manifest is not None:
        findings += check_project(tree, manifest)
        findings += check_links(tree, manifest)
        findings += check_tree(tree, manifest, time_limit)
    return findings


def check_tree(
    tree: Tree, manifest: NamespaceManifest, time_limit: float = TIME_LIMIT
) -> list[Finding]:
    """Checks the package of a namespace whose manifest is valid."""
    package = manifest.package
    if not tree.package_directory(package).is_dir():
        return list(check_layout(tree, manifest))
    with RunningProbe(tree.python, package, time_limit) as probe:
        findings = [*check_layout(tree, manifest), *check_imports(tree, manifest)]
        behaviour = probe.finish(tree, package)
    findings += check_stubs(tree, manifest, behaviour.bound)
    told = {finding.file for finding in findings if finding.code in ("AGX203", "AGX205")}
    # A missing module and a wrong syntax are told once, and not again by the import.
    if told:
        behaviour.findings = [item for item in behaviour.findings if item.code != "AGX401"]
    return findings + behaviour.findings
