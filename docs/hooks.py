"""Lets mkdocstrings read the import package `agentix` as one tree, though five parts make it up."""

import shutil
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def on_startup(**_: Any) -> None:
    """Copies the parts of `agentix` together before anything looks for them."""
    tree = REPOSITORY / ".cache" / "docs" / "agentix"
    shutil.rmtree(tree, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for part in sorted(REPOSITORY.glob("packages/*/src/agentix")):
        shutil.copytree(part, tree, dirs_exist_ok=True, ignore=ignore)
