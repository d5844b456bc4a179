"""Closure volumes: filled once for each digest, whoever asks and whoever dies."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentix.deployment import SandboxConfig
from agentix.docker import DockerDeployment
from agentix.docker.engine import Engine
from agentix.docker.labels import DIGEST, ROLE
from agentix.docker.volumes import ClosureVolumes
from agentix.errors import DeploymentError
from tests.deployments.docker.closure_images import (
    digest_of,
    docker,
    files_in_volume,
    image_of,
    namespace_files,
    runtime_files,
    volume_of,
)

MARK = "/nix/entry/manifest.json"
PROGRAM = Path(__file__).parent / "programs" / "fill.py"
REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE = 60.0
MANY = 3000


@pytest.fixture
async def engine(docker_engine: str) -> AsyncIterator[Engine]:
    engine = Engine.from_environ()
    yield engine
    await engine.close()


def start_fill(reference: str, busybox: str) -> "subprocess.Popen[str]":
    """Starts a process that fills the volume when a line is written to it."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), reference, busybox],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path[1:]])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


def test_two_processes_that_race_both_see_the_whole_store(busybox: str) -> None:
    with image_of(namespace_files(MANY)) as reference:
        racers = [start_fill(reference, busybox) for _ in range(2)]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        seen = [racer.communicate(timeout=DEADLINE)[0] for racer in racers]
        assert seen == [f"{MANY + 2}\n"] * 2


def test_fill_survives_the_process_that_began_it(busybox: str) -> None:
    with image_of(namespace_files(MANY)) as reference:
        killed = start_fill(reference, busybox)
        assert killed.stdin is not None
        killed.stdin.write("go\n")
        killed.stdin.flush()
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=DEADLINE)
        second = start_fill(reference, busybox)
        assert second.communicate("go\n", timeout=DEADLINE)[0] == f"{MANY + 2}\n"


async def test_volume_that_was_filled_in_part_is_filled_again(engine: Engine, busybox: str) -> None:
    with image_of(namespace_files(20)) as reference:
        volume = volume_of(reference)
        docker("volume", "create", volume)
        docker("run", "--rm", "-v", f"{volume}:/v", busybox, "sh", "-c", "echo half >/v/half")
        await ClosureVolumes(engine).ensure(await engine.image(reference), MARK)
        assert files_in_volume(volume, busybox) == 22


async def test_holder_removed_by_others_is_made_again_without_a_copy(
    engine: Engine, busybox: str
) -> None:
    with image_of(namespace_files(20)) as reference:
        volumes = ClosureVolumes(engine)
        image = await engine.image(reference)
        volume = await volumes.ensure(image, MARK)
        user = docker("create", "-v", f"{volume}:/v:ro", busybox, "true")
        try:
            docker("rm", f"{volume}-holder")
            await volumes.ensure(image, MARK)
            status = docker("inspect", "--format", "{{.State.Status}}", f"{volume}-holder")
            assert status == "created"
            assert files_in_volume(volume, busybox) == 22
        finally:
            docker("rm", user)


async def test_one_process_asks_the_engine_once_for_many_sandboxes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    create = Engine.create_container

    async def counted(self: Engine, name: str, config: dict[str, object]) -> None:
        asked.append(name)
        await create(self, name, config)

    monkeypatch.setattr(Engine, "create_container", counted)
    with image_of(namespace_files(20)) as reference:
        volumes = ClosureVolumes(engine)
        image = await engine.image(reference)
        await asyncio.gather(*(volumes.ensure(image, MARK) for _ in range(10)))
        assert asked == [f"{volume_of(reference)}-holder"]


async def test_volume_and_holder_carry_labels(engine: Engine) -> None:
    with image_of(namespace_files()) as reference:
        volume = await ClosureVolumes(engine).ensure(await engine.image(reference), MARK)
        digest = digest_of(reference)
        shown = f'{{{{index .Labels "{ROLE}"}}}} {{{{index .Labels "{DIGEST}"}}}}'
        assert docker("volume", "inspect", "--format", shown, volume) == f"volume {digest}"
        shown = shown.replace(".Labels", ".Config.Labels")
        assert docker("inspect", "--format", shown, f"{volume}-holder") == f"holder {digest}"


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("runtime", "/nix/entry/bin/start"), ("namespace", "/nix/entry/manifest.json")],
)
async def test_image_that_is_no_closure_is_named(
    deployment: DockerDeployment, busybox: str, kind: str, missing: str
) -> None:
    with image_of(runtime_files("exit 1")) as runtime, image_of({}) as empty:
        config = {
            "runtime": SandboxConfig(image=busybox, runtime=empty),
            "namespace": SandboxConfig(image=busybox, runtime=runtime, namespaces=(empty,)),
        }[kind]
        with pytest.raises(DeploymentError) as caught:
            await deployment.create(config)
        assert str(caught.value) == (
            f"image {empty!r} has no {missing}: it is not an Agentix image of this kind"
        )
        assert docker("volume", "ls", "--quiet", "--filter", f"name={volume_of(empty)}") == ""


async def test_prune_drops_what_nobody_uses(deployment: DockerDeployment, busybox: str) -> None:
    with image_of(namespace_files()) as used, image_of(namespace_files()) as unused:
        engine = Engine.from_environ()
        volumes = ClosureVolumes(engine)
        for reference in (used, unused):
            await volumes.ensure(await engine.image(reference), MARK)
        await engine.close()
        user = docker("create", "-v", f"{volume_of(used)}:/v:ro", busybox, "true")
        try:
            assert await deployment.prune(used, unused) == [volume_of(unused)]
        finally:
            docker("rm", user)
        assert await deployment.prune(used) == [volume_of(used)]
        assert docker("ps", "--all", "--quiet", "--filter", f"name={volume_of(used)}") == ""
