"""The quickstart of docs/oanix.md does what it says."""

import re
import subprocess
import sys
from pathlib import Path

from tests.oanix.conftest import ROOT, compile_guest


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "oanix.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_c_program_prints_what_is_documented(tmp_path: Path) -> None:
    (program,) = blocks("c")
    (script,) = blocks("python")
    (printed,) = blocks("text")
    (tmp_path / "answer.c").write_text(program)
    (tmp_path / "answer.wasm").write_bytes(compile_guest(tmp_path / "answer.c"))
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == printed
