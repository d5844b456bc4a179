"""Bundles without Nix: a runtime on the host's interpreter, and a namespace from its source tree.

    python -m agentix.local.bundle runtime DIRECTORY
    python -m agentix.local.bundle namespace SOURCE DIRECTORY

A bundle is laid out beside `DIRECTORY` under a name that carries the digest of its content, and
`DIRECTORY` becomes a link to it. So the content of a bundle never changes, a running sandbox keeps
the one that it was made with, and making the same bundle again changes nothing.
"""

import argparse
import hashlib
import io
import json
import os
import py_compile
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from agentix.errors import DeploymentError, UsageError
from agentix.layout import lay_out_namespace
from agentix.local.reference import HOST_MARKER
from agentix.manifest import find_package

__all__ = ["main", "make_namespace_bundle", "make_runtime_bundle"]

PIECE = 1024 * 1024
"""Bytes of a file that are in memory at once."""

SHEBANG_LIMIT = 255
"""Bytes of the longest first line that the kernel reads (execve(2))."""

FIND_ROOTS = """
import importlib, json, os, sys
importlib.import_module("agentix.runtime.__main__")
used = set()
for module in list(sys.modules.values()):
    file = getattr(module, "__file__", None) or ""
    roots = [root for root in sys.path if file.startswith(root + os.sep)]
    used.add(max(roots, key=len, default=""))
print(json.dumps([[root for root in dict.fromkeys(sys.path) if root in used], sys.base_prefix]))
"""
"""Import the runtime as a sandbox does, and print which entries of the search path that took."""

START = """\
import gc
import sys

gc.disable()
sys.path[:] = {roots!r}
from agentix.runtime.__main__ import main

main()
"""


def make_runtime_bundle(directory: Path) -> Path:
    """Make a runtime bundle that runs on this interpreter, with the packages that it has now.

    It serves sandboxes with `image="/"` only, because it names directories of the host.

    Args:
        directory: Where the bundle is to be found.

    Returns:
        `directory`, made absolute.

    Raises:
        DeploymentError: agentix.runtime, or what it needs, cannot be imported here.
    """
    roots, prefix = _find_roots()
    program = _start_program(START.format(roots=roots))
    paths = sorted({*roots, prefix, str(Path(sys.executable).parent.parent)})

    def fill(bundle: Path) -> None:
        programs = bundle / "entry/bin"
        programs.mkdir(parents=True)
        (programs / "start").write_text(program)
        (programs / "start").chmod(0o755)
        (programs / "sh").symlink_to("/bin/sh")
        (bundle / HOST_MARKER).write_text(json.dumps({"paths": paths}, indent=2) + "\n")

    return _put(Path(directory), fill)


def _find_roots() -> tuple[list[str], str]:
    """Import the runtime in a process of its own, which also leaves its bytecode behind."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    answer = subprocess.run(
        [sys.executable, "-S", "-P", "-c", FIND_ROOTS],
        env={"PYTHONPATH": path, "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        reason = answer.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DeploymentError(
            f"{sys.executable} cannot import the runtime ({reason[0]}):"
            " install it with `pip install agentix-runtime`"
        )
    roots, prefix = json.loads(answer.stdout)
    return roots, prefix


def _start_program(source: str) -> str:
    """Return the program `start`: run by this interpreter, which looks at nothing but `source`."""
    shebang = f"#!{sys.executable} -ISXutf8"
    if len(os.fsencode(shebang)) <= SHEBANG_LIMIT and " " not in sys.executable:
        return f"{shebang}\n{source}"
    quoted = "'" + source.replace("'", "'\\''") + "'"
    return f'#!/bin/sh\nexec "{sys.executable}" -I -S -X utf8 -c {quoted}\n'


def make_namespace_bundle(source: Path, directory: Path) -> Path:
    """Make the bundle of a namespace from its source tree, with its bytecode.

    Args:
        source: The directory with `manifest.json`, `agentix_namespaces/<name>/` and, where the
            namespace has programs, `bin/`.
        directory: Where the bundle is to be found.

    Returns:
        `directory`, made absolute.

    Raises:
        ManifestError: The manifest is missing or malformed, or its package is not there.
        UsageError: A module does not compile.
    """
    source = Path(source)
    find_package(source)

    def fill(bundle: Path) -> None:
        lay_out_namespace(source, bundle / "entry")
        _compile(bundle / "entry" / "python")

    return _put(Path(directory), fill)


def _compile(root: Path) -> None:
    """Write bytecode that depends on the source alone (PEP 552)."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        try:
            py_compile.compile(str(path), dfile=name, doraise=True, invalidation_mode=mode)
        except py_compile.PyCompileError as error:
            raise UsageError(f"{name} does not compile: {error.msg.strip()}") from error


def _put(directory: Path, fill: Callable[[Path], None]) -> Path:
    """Lay out a bundle and let `directory` be a link to it, each in one step."""
    directory = directory.absolute()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=directory.parent) as making:
        made = Path(making, "bundle")
        made.mkdir(mode=0o755)
        fill(made)
        final = directory.parent / f".{directory.name}-{_digest(made)}"
        if not final.is_dir():
            try:
                made.rename(final)
            except OSError:
                if not final.is_dir():  # otherwise another process was first
                    raise
        link = Path(making, "link")
        link.symlink_to(final.name)
        link.replace(directory)
    return directory


def _digest(bundle: Path) -> str:
    """Return the digest of names, modes and content."""
    digest = hashlib.sha256()
    for path in _walk(bundle):
        mode = "link" if path.is_symlink() else oct(path.stat().st_mode & 0o777)
        with _content(path) as content:
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            digest.update(f"{path.relative_to(bundle)}\0{mode}\0{size}\0".encode())
            while piece := content.read(PIECE):
                digest.update(piece)
    return digest.hexdigest()[:16]


def _walk(directory: Path) -> Iterable[Path]:
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _content(path: Path) -> BinaryIO:
    if path.is_symlink():
        return io.BytesIO(os.fsencode(path.readlink()))
    return io.BytesIO() if path.is_dir() else path.open("rb")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a bundle from the command line and print where it is."""
    parser = argparse.ArgumentParser(prog="python -m agentix.local.bundle", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    runtime = kinds.add_parser("runtime", help="a runtime on this interpreter")
    namespace = kinds.add_parser("namespace", help="a namespace from its source tree")
    namespace.add_argument("source", type=Path)
    for kind in (runtime, namespace):
        kind.add_argument("directory", type=Path)
    given = parser.parse_args(arguments)
    if given.kind == "runtime":
        made = make_runtime_bundle(given.directory)
    else:
        made = make_namespace_bundle(given.source, given.directory)
    print(made)


if __name__ == "__main__":
    main()
