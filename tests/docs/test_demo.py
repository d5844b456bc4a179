"""The demonstration, to its last line."""

import re
from pathlib import Path

from tests.deployments.conftest import Target
from tests.docs.workbench import Workbench

EXPECTED = """\
<ms>  create a sandbox
<ms>  mock_dataset.setup: the first call imports the namespace
<ms>  mock_agent.run
RunResult(exit_code=0, patch="--- /dev/null\\n+++ /workspace/task/ANSWER\\n@@ -0,0 +1,1 @@\\n+Write 'hello' into the file ANSWER.\\n")
<ms>  a shell command
exit code 0
<ms>  mock_dataset.score
Score(reward=1.0, reason='the answer is right')
<ms>  mock_agent.chat: ['a', ' stream', ' is', ' iterated,', ' token', ' by', ' token']
<ms>  upload 1 MiB
<ms>  download it
the same
<ms>  delete the sandbox
"""  # noqa: E501


def outcome(bench: Workbench, arguments: str) -> str:
    """Runs the demonstration and gives its output without its durations and margins."""
    finished = bench.run(f"python examples/demo.py {arguments}")
    assert finished.returncode == 0, finished.stderr
    return re.sub(
        r"^ +(\d+\.\d ms)?", lambda m: "<ms>" if m[1] else "", finished.stdout, flags=re.M
    )


def test_demonstration_ends_well_locally(clone: Workbench, host_bundles: Path) -> None:
    assert outcome(clone, f"local --bundles {host_bundles}") == EXPECTED


def test_demonstration_ends_well_in_containers(clone: Workbench, docker_target: Target) -> None:
    assert outcome(clone, f"docker --image {docker_target.config.image}") == EXPECTED
