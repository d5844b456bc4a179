"""AgentServer's pages, followed as a reader does."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentix import LocalDeployment, RemoteCallError, RuntimeClient, SandboxConfig
from agentix.agentserver.spec import OrganismSpec
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix.version import VERSION
from agentix_namespaces import agentserver
from tests.agentserver.llm_server import serving_llm
from tests.docs.blocks import read_blocks
from tests.docs.workbench import Workbench

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "agentserver"


def test_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    Workbench(tmp_path).follow(read_blocks(PAGES / "tutorial.md"))


def test_gateways_do_what_the_page_shows(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    try:
        bench.follow(read_blocks(PAGES / "gateways.md"))
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_model_of_the_page_answers(tmp_path: Path) -> None:
    call = "<calculator.add.addpayload><a>7</a><b>35</b></calculator.add.addpayload>"
    async with serving_llm() as model:
        model.say(f"I shall ask.\n{call}", "<answer>It is 42.</answer>")
        blocks = [
            replace(each, text=each.text.replace("http://127.0.0.1:11434/v1", model.base_url))
            for each in read_blocks(PAGES / "models.md")
        ]
        bench = Workbench(tmp_path, environment={"MODEL_KEY": "sk-page"})
        await asyncio.to_thread(bench.follow, blocks)
    assert model.keys == ["Bearer sk-page"] * 2
    assert "<question>What is 7 + 35?</question>" in model.requests[0]["messages"][2]["content"]


def test_files_of_the_pages_are_right(tmp_path: Path) -> None:
    for page in ("gateways", "models"):
        for block in read_blocks(PAGES / f"{page}.md"):
            if block.language == "yaml" and block.title is not None:
                OrganismSpec.model_validate(yaml.safe_load(block.text))
            elif block.language == "yaml":
                head = {"organism": {"name": "page"}}
                OrganismSpec.model_validate(head | yaml.safe_load(block.text))
            elif block.language == "python":
                compile(block.text, str(block.title), "exec")


@pytest.fixture(scope="module")
def bundles() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentix-bundles-") as directory:
        made = Path(directory)
        make_runtime_bundle(made / f"agentix/runtime/{VERSION}")
        source = ROOT / "namespaces" / "agentserver"
        make_namespace_bundle(source, made / f"agentix/agentserver/{VERSION}")
        yield made


@pytest.fixture
async def client(bundles: Path) -> AsyncIterator[RuntimeClient]:
    """A client of a sandbox with the namespace."""
    async with (
        LocalDeployment(bundles=bundles) as deployment,
        deployment.session(SandboxConfig(image="/", namespaces=[agentserver])) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield client


def file(page: str, title: str) -> str:
    """Gives a file of a page."""
    (block,) = [each for each in read_blocks(PAGES / f"{page}.md") if each.title == title]
    return block.text


def names(text: str) -> dict[str, Any]:
    """Gives what a module of a page defines."""
    module: dict[str, Any] = {}
    exec(text, module)
    return module


ORGANISM = """
organism: {name: page}
packages: [handlers]
listeners:
  - name: calculator.add
    payload_class: handlers.AddPayload
    handler: handlers.add
    description: Adds two numbers.
"""


async def test_principals_of_the_page_speak_for_themselves(client: RuntimeClient) -> None:
    module = names(file("gateways", "scouts.py"))
    handlers = file("gateways", "listeners/handlers.py")
    spec = agentserver.OrganismSpec(ORGANISM, {"handlers.py": handlers})
    info = await client.remote(agentserver.start, spec)
    (reply,) = await module["ask_as"](client, "scout")
    assert "<to>scout</to>" in reply
    assert '<result xmlns="">42</result>' in reply
    await client.upload(file("gateways", "scout.py").encode(), "scout.py")
    printed = await module["run_as"](client, info.socket, "miner")
    assert printed == "calculator.add.addpayload\ncalculator.add to miner\n"
    with pytest.raises(RemoteCallError, match="'miner' has no token that could be revoked"):
        await client.remote(agentserver.revoke, "miner")


async def test_organism_of_the_page_runs_in_a_sandbox(
    client: RuntimeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = file("gateways", "listeners/handlers.py")
    await names(file("models", "sandboxed.py"))["add"](client, ORGANISM, handlers)
    first, reply, *events = capsys.readouterr().out.splitlines()
    assert first == "page ['calculator.add']"
    assert reply.startswith("calculator.add <message ")
    assert '<result xmlns="">7</result>' in events[-1]
    with pytest.raises(RemoteCallError, match="no organism runs"):
        await client.remote(agentserver.threads)
