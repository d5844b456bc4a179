"""The environment of a hostile image does not run its code in the runtime."""

from pathlib import Path

from agentix.client import RuntimeClient
from agentix.deployment import Deployment
from agentix.docker import DockerDeployment
from tests.deployments.conftest import Target
from tests.deployments.docker.closure_images import docker
from tests.task_images import HOSTILE_ENVIRONMENT, TASK_IMAGES

KEPT_FOR_COMMANDS = ("GCONV_PATH", "OPENSSL_CONF", "PYTHONSTARTUP")
"""What the protocol does not strip."""


async def test_environment_of_the_image_reaches_commands_and_not_the_runtime(
    docker_target: Target,
) -> None:
    config = docker_target.config.model_copy(update={"image": TASK_IMAGES["hostile"]("docker")})
    async with (
        docker_target.make() as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        seen = await client.run("env")
        runtime = environment_of_the_runtime(deployment, sandbox.id)
    of_commands = dict(line.partition("=")[::2] for line in seen.stdout.splitlines())
    assert HOSTILE_ENVIRONMENT.keys() & of_commands.keys() == set(KEPT_FOR_COMMANDS)
    for name in KEPT_FOR_COMMANDS:
        assert of_commands[name] == HOSTILE_ENVIRONMENT[name]
    # Python looks at none of its own variables (`-I`).
    loading = {name for name in HOSTILE_ENVIRONMENT if not name.startswith("PYTHON")}
    assert runtime.keys() & loading == set()


def environment_of_the_runtime(deployment: Deployment, sandbox_id: str) -> dict[str, str]:
    """Read the environment that the runtime was started with, as root of the engine's host."""
    assert isinstance(deployment, DockerDeployment)
    [pid] = [
        row.split()[1]
        for row in docker("top", sandbox_id).splitlines()
        if "agentix.runtime.__main__" in row or "python3" in row
    ]
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().partition("=")[::2] for entry in entries if entry)
