"""The page about build, stubs and dev: its commands are typed, its outputs compared."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentix.namespace_sdk.command import SUBCOMMANDS
from tests.docs.blocks import in_sections, read_blocks
from tests.docs.workbench import Workbench, shown

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "sdk" / "build.md"
DOCKER = "Into Docker"
DEVELOPMENT = "While writing"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """Follows the page, but for what needs an engine, Nix, or an end by Ctrl-C."""
    directory = tmp_path_factory.mktemp("build")
    bench = Workbench(directory, environment={"XDG_CACHE_HOME": str(directory / "cache")})
    others = (DOCKER, DEVELOPMENT, "Builders")
    bench.follow(block for block in read_blocks(PAGE) if block.section not in others)
    return bench


def test_page_leads_to_calls(bench: Workbench) -> None:
    assert (bench.directory / "hello-stubs/pyproject.toml").is_file()


def test_page_leads_to_an_image(bench: Workbench, docker_engine: str) -> None:
    try:
        bench.follow(in_sections(read_blocks(PAGE), DOCKER))
    finally:
        subprocess.run(["docker", "rmi", "--force", "agentix/hello:0.1.0"], capture_output=True)


def test_names_are_those_of_nix(bench: Workbench) -> None:
    if bench.run("command -v nix-store").returncode != 0:
        pytest.skip("nix-store is not installed")
    bench.follow(in_sections(read_blocks(PAGE), "Builders"))


@pytest.fixture
def development(bench: Workbench) -> Iterator["subprocess.Popen[str]"]:
    """Runs the page's command in its directory; a Unix socket wants a short path."""
    blocks = in_sections(read_blocks(PAGE), DEVELOPMENT)
    bench.follow(blocks)
    (command,) = (block.text.split() for block in blocks if block.language == "sh")
    assert command[0] == "agentix-namespace"
    words = [sys.executable, "-m", "agentix.namespace_sdk", *command[1:]]
    with subprocess.Popen(
        words, cwd=bench.directory, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not (bench.directory / "hello.sock").exists()


def test_development_prints_what_the_page_shows(
    bench: Workbench, development: "subprocess.Popen[str]"
) -> None:
    blocks = in_sections(read_blocks(PAGE), DEVELOPMENT)
    (text,) = (block.text for block in blocks if block.language == "text")
    assert development.stdout is not None
    for line in text.splitlines():
        if line.startswith("search") and not (bench.directory / "asked").exists():
            asked = bench.run("PYTHONPATH=hello python ask.py && touch asked")
            assert asked.returncode == 0, asked.stderr
        if line.startswith("reloaded"):
            impl = bench.directory / "hello/agentix_namespaces/hello/_impl.py"
            impl.write_text(impl.read_text() + "\n# saved\n")
        printed = development.stdout.readline()
        assert shown(line + "\n").fullmatch(printed), printed


@pytest.mark.parametrize("command", ["build", "stubs", "dev"])
def test_every_option_is_on_the_page(command: str) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    SUBCOMMANDS[command].add_arguments(parser)
    page = PAGE.read_text()
    options = {name for action in parser._actions for name in action.option_strings}
    assert {name for name in options - {"-h", "--help"} if f"`{name}" not in page} == set()
