"""The example of docs/deployments-docker.md, run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "deployments-docker.md"


def test_first_example(images: None, busybox: str) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    program = f"{example}\nimport asyncio\nasyncio.run(main())\n"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "+fix the bug" in finished.stdout
