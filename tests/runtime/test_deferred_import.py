import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentix.runtime.deferred_import import load_later

SEEN = """
import json, sys
import agentix.runtime.__main__
print(json.dumps(sorted(sys.modules)))
"""


def test_the_runtime_starts_without_libraries_of_other_protocols() -> None:
    seen = subprocess.run([sys.executable, "-c", SEEN], check=True, capture_output=True)
    loaded = set(json.loads(seen.stdout))
    assert not loaded & {"h2.settings", "h2.connection", "hyperframe", "priority", "wsproto"}
    assert "hypercorn.protocol.h11" in loaded


def test_a_class_is_made_from_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_shape.py").write_text("class Point(tuple): pass\nORIGIN = Point((0, 0))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_later("late_shape", "Point")
    from late_shape import Point  # type: ignore[import-not-found]

    stand_in = sys.modules["late_shape"]
    point = Point((1, 2))
    assert point == (1, 2)
    assert type(point).__name__ == "Point"
    assert sys.modules["late_shape"] is not stand_in
    assert stand_in.ORIGIN == (0, 0)
    monkeypatch.delitem(sys.modules, "late_shape")
