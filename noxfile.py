"""Everything that is done to this repository, a session each: `nox -l` lists them."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
DISTRIBUTIONS = sorted(path.parent for path in ROOT.glob("*/*/pyproject.toml"))
NAMESPACES = [path for path in DISTRIBUTIONS if path.parent.name == "namespaces"]
WHEELS = ROOT / "dist"
BUNDLES = ROOT / ".cache" / "host-bundles"
PYTHON_SOURCES = [
    "packages",
    "namespaces",
    "nix",
    "tests",
    "typing_tests",
    "examples",
    "bench",
    "noxfile.py",
]


def group(name: str) -> Sequence[str]:
    """Gives the requirements of a dependency group of pyproject.toml."""
    return nox.project.dependency_groups(PROJECT, name)


def editables() -> list[str]:
    """Gives pip's arguments for all distributions; exact pins need them in one command."""
    return [argument for path in DISTRIBUTIONS for argument in ("-e", str(path))]


def build_wheels(session: nox.Session) -> list[str]:
    """Builds every distribution's wheel into dist/ and gives their paths."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    session.install(*group("build"))
    sources = [str(path) for path in DISTRIBUTIONS]
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(WHEELS)]
    session.run("pip", "wheel", *options, *sources)
    return sorted(str(path) for path in WHEELS.glob("*.whl"))


def engine_answers() -> bool:
    """Tells whether a Docker engine can be used."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "version"], capture_output=True).returncode == 0


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests against the built wheels; arguments go to pytest."""
    wheels = build_wheels(session)
    session.install("--force-reinstall", "--no-deps", "--quiet", *wheels)
    session.install(*wheels, *group("test"))
    session.run("pytest", *(session.posargs or ["tests"]))


@nox.session
def e2e(session: nox.Session) -> None:
    """Run the tests that need containers, images and whole sandboxes."""
    session.notify("tests", ["tests/deployments", "tests/images", "tests/docs"])


@nox.session
def demo(session: nox.Session) -> None:
    """Run the demonstration; `nox -s demo -- docker` runs it in containers."""
    deployment = session.posargs[0] if session.posargs else "local"
    session.install("--quiet", *editables())
    if deployment == "docker":
        demo_in_containers(session)
    else:
        make_host_bundles(session)
        session.run("python", "examples/demo.py", "local", "--bundles", str(BUNDLES))


def make_host_bundles(session: nox.Session) -> None:
    """Lays out the runtime and the namespaces for sandboxes on this machine's own interpreter."""
    version = read_version()
    make = ["python", "-m", "agentix.local.bundle"]
    runtime = BUNDLES / "agentix" / "runtime" / version
    session.run(*make, "runtime", str(runtime), silent=True)
    for path in NAMESPACES:
        bundle = BUNDLES / "agentix" / path.name / version
        session.run(*make, "namespace", str(path), str(bundle), silent=True)


def demo_in_containers(session: nox.Session) -> None:
    """Starts an engine where none answers, builds the images, and runs the demonstration."""
    if shutil.which("apt-get"):
        session.run(".ci/machine", external=True)
    started = not engine_answers()
    if started:
        session.run(".ci/engine", "start", external=True)
    try:
        build_images(session)
        image = session.run("python", "tests/task_images.py", "busybox", silent=True)
        session.run("python", "examples/demo.py", "docker", "--image", str(image).strip())
    finally:
        if started:
            session.run(".ci/engine", "stop", external=True)


@nox.session
def images(session: nox.Session) -> None:
    """Build all images and load them into Docker; `-- --locked` takes locked files only."""
    build_images(session, *session.posargs)


def build_images(session: nox.Session, *options: str) -> None:
    """Builds by Nix where it is installed, by Docker with Nix inside where it is not."""
    if shutil.which("nix-build"):
        session.install("--quiet", *editables())
        session.run("python", "-m", "nix.images", *options, "load")
        return
    version = read_version()
    build = ["docker", "build", "-f", "nix/Dockerfile"]
    session.run(*build, "-t", f"agentix/runtime:{version}", ".", external=True)
    for path in NAMESPACES:
        expression = f"EXPRESSION=namespaces/{path.name}"
        tag = f"agentix/{path.name}:{version}"
        session.run(*build, "-t", tag, "--build-arg", expression, ".", external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style; `nox -s lint -- --fix` mends what can be mended."""
    session.install("--quiet", *group("lint"))
    sources = [path for path in PYTHON_SOURCES if (ROOT / path).exists()]
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), *sources)
    session.run("ruff", "format", *([] if fix else ["--check"]), *sources)


@nox.session
def types(session: nox.Session) -> None:
    """Check types: mypy on everything, pyright on what users write, against built wheels."""
    wheels = build_wheels(session)
    session.install("--force-reinstall", "--no-deps", "--quiet", *wheels)
    session.install("--quiet", *wheels, *group("types"))
    session.run("mypy", *(path for path in PYTHON_SOURCES if (ROOT / path).exists()))
    session.run("pyright", "typing_tests", "examples")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every distribution's wheel into dist/."""
    for path in build_wheels(session):
        session.log(path)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/."""
    session.install("--quiet", *editables(), *group("docs"))
    session.run("mkdocs", "build", "--strict", "--quiet")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure against floors and peers; `-- calls` runs one part."""
    session.install("--quiet", *editables(), *group("bench"))
    make_host_bundles(session)
    session.run("python", "-m", "bench", *session.posargs)


@nox.session(venv_backend="none")
def bump(session: nox.Session) -> None:
    """Write a version into every file that names it: `nox -s bump -- 0.2.0`."""
    if len(session.posargs) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", session.posargs[0]):
        session.error("give the new version: nox -s bump -- 0.2.0")
    old, new = read_version(), session.posargs[0]
    for path in files_with_version():
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(old, new), encoding="utf-8")
        session.log(f"{path.relative_to(ROOT)}: {text.count(old)}")


def read_version() -> str:
    """Reads the version that all distributions carry."""
    module = ROOT / "packages/agentix-core/src/agentix/version.py"
    match = re.search(r'^VERSION = "(.+)"$', module.read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def files_with_version() -> list[Path]:
    """Lists the files whose every mention of the version is this release's."""
    found = [path / "pyproject.toml" for path in DISTRIBUTIONS]
    found += [path / "manifest.json" for path in NAMESPACES]
    found += sorted(ROOT.glob("namespaces/*/agentix_namespaces/*/__init__.py"))
    found += [ROOT / "packages/agentix-core/src/agentix/version.py"]
    # What was measured stays a measurement of its version.
    pages = {ROOT / "README.md", *ROOT.glob("docs/**/*.md")} - {ROOT / "docs/benchmarks.md"}
    found += sorted(pages)
    return found
