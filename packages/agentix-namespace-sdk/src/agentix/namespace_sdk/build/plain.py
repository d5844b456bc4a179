"""The builder that needs no Nix: a namespace of pure Python, laid out as store paths."""

from pathlib import Path
from tempfile import TemporaryDirectory

from agentix.errors import UsageError
from agentix.layout import lay_out_namespace
from agentix.namespace_sdk.build.project import Project
from agentix.namespace_sdk.build.wheels import Wheel
from agentix.namespace_sdk.store import Closure, add_to_store

__all__ = ["build_plain"]


def build_plain(project: Project, wheels: list[Wheel], root: Path) -> Closure:
    """Lays a namespace and its wheels out in a store.

    Modules stay as they are, without bytecode: so the closure depends on the source alone, and
    not on the Python that builds it.

    Args:
        project: The namespace.
        wheels: What it brings.
        root: The directory that stands for `/`.

    Raises:
        UsageError: It cannot be built without Nix, or two wheels hold the same module.
    """
    reason = project.needs_nix()
    if reason is not None:
        raise UsageError(f"{project.source} cannot be built without Nix: {reason}")
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root, prefix=".making-") as making:
        entry = Path(making, "entry")
        lay_out_namespace(project.source, entry)
        paths = [_add_wheel(wheel, entry, Path(making), root) for wheel in wheels]
        name = f"agentix-namespace-{project.manifest.name}"
        return Closure(add_to_store(entry, name, root), tuple(sorted(paths)), root)


def _add_wheel(wheel: Wheel, entry: Path, making: Path, root: Path) -> Path:
    """Adds a wheel to the store, and links to its modules beside the namespace."""
    tree = making / wheel.path.name
    modules = wheel.unpack(tree)
    path = add_to_store(tree, f"{wheel.name}-{wheel.version}", root)
    for module in modules:
        link = entry / "python" / module
        if link.is_symlink():
            raise UsageError(f"{wheel.path.name} brings {module}, and so does another wheel")
        link.symlink_to(f"../../{path.name}/{module}")
    return path
