"""What makes the closure of a namespace: this library, local Nix, or Docker with Nix inside."""

import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from agentix.errors import UsageError
from agentix.layout import lay_out_namespace
from agentix.namespace_sdk.build.programs import (
    engine_answers,
    engine_platform,
    nix_answers,
    run_program,
)
from agentix.namespace_sdk.build.project import EXPRESSION, Project, Wheel
from agentix.namespace_sdk.errors import BuildError
from agentix.namespace_sdk.store import STORE, Closure, add_to_store

__all__ = [
    "NIX_IMAGE",
    "BuilderChoice",
    "BuilderName",
    "build_closure",
    "choose_builder",
]

BuilderName = Literal["plain", "nix", "docker"]
"""What builds: nothing but this library, Nix, or Docker with Nix inside."""

NIX_IMAGE = "nixos/nix:2.24.9"
"""The image with Nix that namespaces are built in."""

NIX_SYSTEMS = {"linux/amd64": "x86_64-linux", "linux/arm64": "aarch64-linux"}
"""What Nix calls the platforms that it builds for."""

DOCKERFILE = """\
FROM {image}
LABEL org.agentix.builder="{image}"
WORKDIR /source
COPY . .
RUN entry="$(nix-build --no-out-link)" \\
    && mkdir -p /export/nix/store \\
    && cp -a $(nix-store --query --requisites "$entry") /export/nix/store/ \\
    && printf %s "$entry" >/export/entry
"""


@dataclass(frozen=True)
class BuilderChoice:
    """A builder, and why it is the one."""

    builder: BuilderName
    """Which one."""
    reason: str
    """Why, for a person."""


def choose_builder(project: Project) -> BuilderChoice:
    """Choose what this machine has and the namespace needs.

    Pure Python needs no Nix, and gives the same image everywhere without it. Scripts want an
    interpreter in the closure, which Nix brings; without Nix they take the task image's.

    Raises:
        UsageError: The namespace needs Nix, and here is neither Nix nor an engine.
    """
    reason = project.needs_nix()
    scripts = bool(project.programs()) and (project.source / EXPRESSION).is_file()
    if reason is None and not scripts:
        return BuilderChoice("plain", "the namespace is pure Python")
    if project.wheels:
        return BuilderChoice("plain", "the namespace brings wheels")
    if nix_answers():
        return BuilderChoice("nix", reason or "programs in bin get interpreters of their own")
    if reason is None:
        return BuilderChoice("plain", "Nix with nixpkgs is not here")
    if engine_answers():
        return BuilderChoice("docker", f"{reason}, and Nix with nixpkgs is not here")
    raise UsageError(f"{reason}: install Nix with nixpkgs, or Docker, to build {project.source}")


def build_closure(
    project: Project,
    builder: BuilderName,
    wheels: Sequence[Wheel],
    *,
    platform: str,
    plain_root: Path,
    docker_cache: Path,
    nix_image: str = NIX_IMAGE,
) -> Closure:
    """Build a namespace.

    Args:
        project: The namespace.
        builder: What builds it.
        wheels: What the plain builder adds to it.
        platform: What it is built for, such as `linux/amd64`.
        plain_root: The directory that stands for `/` where the plain builder has its store.
        docker_cache: Where closures are kept that Docker built.
        nix_image: The image with Nix that the Docker builder builds in.

    Raises:
        UsageError: It cannot be built by that builder, or for that platform.
        BuildError: A program that the builder needs is missing or failed.
    """
    match builder:
        case "plain":
            return _build_plain(project, wheels, plain_root)
        case "nix":
            return _build_by_nix(project, platform)
        case "docker":
            return _build_by_docker(project, platform, nix_image, docker_cache)


def _build_plain(project: Project, wheels: Sequence[Wheel], root: Path) -> Closure:
    """Lay a namespace and its wheels out in a store.

    Modules stay as they are, without bytecode: so the closure depends on the source alone, and
    not on the Python that builds it.
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
    """Add a wheel to the store, and link to its modules beside the namespace."""
    tree = making / wheel.path.name
    modules = wheel.unpack(tree)
    path = add_to_store(tree, f"{wheel.name}-{wheel.version}", root)
    for module in modules:
        link = entry / "python" / module
        if link.is_symlink():
            raise UsageError(f"{wheel.path.name} brings {module}, and so does another wheel")
        link.symlink_to(f"../../{path.name}/{module}")
    return path


def _build_by_nix(project: Project, platform: str) -> Closure:
    """Build the `default.nix` of a namespace, with Nix as the environment sets it up."""
    _require_expression(project)
    if platform not in NIX_SYSTEMS:
        raise UsageError(f"Nix builds for {' and '.join(NIX_SYSTEMS)}, not for {platform}")
    options = ["--no-out-link", "--option", "system", NIX_SYSTEMS[platform]]
    entry = run_program(["nix-build", *options, str(project.source)]).strip()
    requisites = run_program(["nix-store", "--query", "--requisites", entry])
    return Closure.of(Path(entry), requisites, Path("/"))


def _require_expression(project: Project) -> None:
    if not (project.source / EXPRESSION).is_file():
        raise UsageError(f"{project.source} has no {EXPRESSION}, which Nix builds from")


def _build_by_docker(project: Project, platform: str, image: str, cache: Path) -> Closure:
    """Build the `default.nix` of a namespace in a container, and copy its closure out.

    Docker's own cache decides whether anything is built; what it built is copied out once.
    """
    _require_expression(project)
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache, prefix=".making-") as making:
        image_id = _build_image(project, platform, image, Path(making))
        root = cache / image_id.removeprefix("sha256:")
        if not root.is_dir():
            _copy_export(image_id, Path(making))
            Path(making, "export").rename(root)
    entry = Path((root / "entry").read_text())
    paths = (STORE / path.name for path in (root / "nix/store").iterdir())
    return Closure(entry, tuple(sorted(path for path in paths if path != entry)), root)


def _build_image(project: Project, platform: str, image: str, making: Path) -> str:
    """Build the image with the closure in `/export`, and return its id."""
    dockerfile, id_file = making / "Dockerfile", making / "id"
    dockerfile.write_text(DOCKERFILE.format(image=image))
    options = ["--force-rm", "--file", str(dockerfile), "--iidfile", str(id_file)]
    if platform != engine_platform():
        options += ["--platform", platform]
    run_program(["docker", "build", "--quiet", *options, str(project.source)])
    return id_file.read_text().strip()


def _copy_export(image_id: str, directory: Path) -> None:
    """Copy `/export` of an image into a directory."""
    container = run_program(["docker", "create", image_id, "true"]).strip()
    try:
        command = ["docker", "cp", f"{container}:/export", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                if hasattr(tarfile, "tar_filter"):  # Python 3.11.4
                    archive.extraction_filter = staticmethod(tarfile.tar_filter)
                archive.extractall(directory)  # noqa: S202 - made by the engine, just now
        if process.returncode != 0:
            raise BuildError(f"`{' '.join(command)}` failed with exit code {process.returncode}")
    finally:
        run_program(["docker", "rm", container])
