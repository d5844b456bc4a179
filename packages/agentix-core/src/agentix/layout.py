"""Lays out the entry of a namespace from its source tree (protocol: Image).

    manifest.json
    python/agentix_namespaces/<name>/
    bin/                                 where the source has programs

Every builder does it here: bundles of a source tree, builds without Nix, and Nix, which runs this
file by itself, without its package. So it takes nothing but the standard library.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["copy_tree", "lay_out_namespace", "shipped"]

SHEBANG_LIMIT = 255
"""Bytes of the longest first line that the kernel reads (execve(2))."""


def lay_out_namespace(source: Path, entry: Path, interpreters: Mapping[str, str] = {}) -> None:
    """Fills the entry of a namespace; nothing but the source decides what is in it.

    Args:
        source: The directory with `manifest.json`, `agentix_namespaces/<name>/` and, where the
            namespace has programs, `bin/`. The manifest is known to be right.
        entry: The directory to make, with those above it.
        interpreters: What becomes of the first lines of programs: `/bin/sh` for one, and what
            takes its place. Others stay as they are.
    """
    manifest = source / "manifest.json"
    package = json.loads(manifest.read_bytes())["package"].split(".")
    copy_tree(source.joinpath(*package), entry.joinpath("python", *package))
    shutil.copyfile(manifest, entry / "manifest.json")
    (entry / "manifest.json").chmod(0o644)
    if (source / "bin").is_dir():
        copy_tree(source / "bin", entry / "bin")
        for program in (entry / "bin").iterdir():
            _choose_interpreter(program, interpreters)


def copy_tree(source: Path, target: Path) -> None:
    """Copies what a tree ships, with the modes 0644 and 0755, and links as they are."""
    target.mkdir(parents=True)
    for path in shipped(source):
        copied = target / path.name
        if path.is_symlink():
            copied.symlink_to(path.readlink())
        elif path.is_dir():
            copy_tree(path, copied)
        else:
            shutil.copyfile(path, copied)
            copied.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def shipped(directory: Path) -> Iterator[Path]:
    """Gives what of a directory belongs to a namespace, in order: not what tools leave behind."""
    for path in sorted(directory.iterdir()):
        left = path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc"
        if not left and (path.is_symlink() or path.is_dir() or path.is_file()):
            yield path


def _choose_interpreter(program: Path, interpreters: Mapping[str, str]) -> None:
    if program.is_symlink() or not program.is_file():
        return
    with program.open("rb") as file:
        line = file.readline(SHEBANG_LIMIT).removesuffix(b"\n")
    for old, new in interpreters.items():
        known = f"#!{old}".encode()
        if line == known or line.startswith(known + b" "):
            program.write_bytes(f"#!{new}".encode() + program.read_bytes()[len(known) :])
            return


def main() -> None:
    """Lays out a namespace: SOURCE ENTRY [INTERPRETER=REPLACEMENT ...]."""
    source, entry, *pairs = sys.argv[1:]
    lay_out_namespace(Path(source), Path(entry), dict(pair.split("=", 1) for pair in pairs))


if __name__ == "__main__":
    main()
