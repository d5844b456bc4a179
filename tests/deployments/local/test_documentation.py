"""The examples of docs/deployments-local.md, run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs/deployments-local.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_bundles_and_the_first_example(tmp_path: Path) -> None:
    (tmp_path / "namespaces").symlink_to(REPOSITORY / "namespaces")
    [make_bundles], [example] = blocks("sh"), blocks("python")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-euc", make_bundles], cwd=tmp_path, env=environment, check=True)
    program = f"{example}\nimport asyncio\nasyncio.run(main())\n"
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "+fix the bug" in finished.stdout
