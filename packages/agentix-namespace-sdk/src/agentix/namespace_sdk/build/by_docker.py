"""The builder that is Docker's, with Nix inside: for machines that have an engine and no Nix."""

import json
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from agentix.namespace_sdk.build.by_nix import require_expression
from agentix.namespace_sdk.build.program import BuildError, run
from agentix.namespace_sdk.build.project import Project
from agentix.namespace_sdk.store import STORE, Closure

__all__ = ["NIX_IMAGE", "build_by_docker"]

NIX_IMAGE = "nixos/nix:2.24.9"
"""The image with Nix that namespaces are built in."""

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


def build_by_docker(project: Project, platform: str, image: str, cache: Path) -> Closure:
    """Builds the `default.nix` of a namespace in a container, and copies its closure out.

    Docker's own cache decides whether anything is built; what it built is copied out once.

    Args:
        project: The namespace.
        platform: What it is built for; the engine must be able to run it.
        image: The image that has Nix.
        cache: Where closures are kept.

    Raises:
        UsageError: There is no `default.nix`.
        BuildError: Docker is missing, or the build fails.
    """
    require_expression(project)
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache, prefix=".making-") as making:
        identity = _build(project, platform, image, Path(making))
        root = cache / identity.removeprefix("sha256:")
        if not root.is_dir():
            exported = Path(making, "export")
            _copy_out(identity, Path(making))
            exported.rename(root)
    entry = Path((root / "entry").read_text())
    paths = (STORE / path.name for path in (root / "nix/store").iterdir())
    return Closure(entry, tuple(sorted(path for path in paths if path != entry)), root)


def _build(project: Project, platform: str, image: str, making: Path) -> str:
    """Builds the image with the closure in `/export`, and gives its id."""
    dockerfile = making / "Dockerfile"
    dockerfile.write_text(DOCKERFILE.format(image=image))
    identity = making / "id"
    options = ["--force-rm", "--file", str(dockerfile), "--iidfile", str(identity)]
    if platform != engine_platform():
        options += ["--platform", platform]
    run(["docker", "build", "--quiet", *options, str(project.source)])
    return identity.read_text().strip()


def engine_platform() -> str:
    """Gives the platform that the engine runs on.

    Raises:
        BuildError: No engine answers.
    """
    answer = run(["docker", "version", "--format", "{{json .Server}}"])
    server = json.loads(answer)
    return f"{server['Os']}/{server['Arch']}"


def _copy_out(identity: str, directory: Path) -> None:
    """Copies `/export` of an image into a directory."""
    container = run(["docker", "create", identity, "true"]).strip()
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
        run(["docker", "rm", container])
