"""The namespace, through the runtime of a real sandbox."""

import asyncio
import json
import shlex
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentix import (
    Deployment,
    DockerDeployment,
    LocalDeployment,
    RemoteCallError,
    RuntimeClient,
    SandboxConfig,
)
from agentix.agentserver.credentials import Identity
from agentix.agentserver.gateway.admin import sign_privileged
from agentix.local.bundle import make_namespace_bundle, make_runtime_bundle
from agentix.version import VERSION
from agentix_namespaces import agentserver, mock_agent
from tests.agentserver.conftest import FIXTURE
from tests.agentserver.messages import INVALID, T, add, egress, escaped
from tests.deployments.conftest import Target, docker_target, host_bundles

__all__ = ["docker_target", "host_bundles"]

NAMESPACES = Path(__file__).resolve().parents[2] / "namespaces"
ADD = "<calculator.add.addpayload><a>7</a><b>35</b></calculator.add.addpayload>"
ADD_ROOT = "calculator.add.addpayload"


def organism(**files: str) -> agentserver.OrganismSpec:
    """The fixture's organism, for the sandbox."""
    modules = {path.name: path.read_text() for path in FIXTURE.glob("*.py")}
    yaml = (FIXTURE / "organism.yaml").read_text()
    return agentserver.OrganismSpec(yaml, {**modules, **files})


@pytest.fixture(scope="module")
def local_bundles() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentix-bundles-") as directory:
        bundles = Path(directory)
        make_runtime_bundle(bundles / f"agentix/runtime/{VERSION}")
        for name in ("agentserver", "mock-agent"):
            make_namespace_bundle(NAMESPACES / name, bundles / f"agentix/{name}/{VERSION}")
        yield bundles


@pytest.fixture(params=["local", "docker"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RuntimeClient]:
    """A client of a sandbox with the namespace."""
    if request.param == "local":
        bundles = request.getfixturevalue("local_bundles")
        deployment: Deployment = LocalDeployment(bundles=bundles)
        config = SandboxConfig(image="/", namespaces=[agentserver])
    else:
        target: Target = request.getfixturevalue("docker_target")
        deployment = DockerDeployment(pull=False)
        config = SandboxConfig(image=target.config.image, namespaces=[agentserver])
    async with (
        deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield client


async def take(client: RuntimeClient, count: int, after_seq: int = 0) -> list[agentserver.Event]:
    """Take so many events of the thread, and goes."""
    events: list[agentserver.Event] = []
    stream = client.remote(agentserver.listen, thread=T, after_seq=after_seq)
    async with asyncio.timeout(60), aclosing(stream):
        async for event in stream:
            events.append(event)
            if len(events) == count:
                break
    return events


async def test_a58_organism_runs_in_a_sandbox_and_streams_resume(client: RuntimeClient) -> None:
    info = await client.remote(agentserver.start, organism())
    assert info.name == "fixture"
    assert info.listeners == ["calculator.add", "calculator.secret", "researcher"]
    assert info.isolation[0] == "isolation: thread"
    replies = await client.remote(agentserver.call, ADD, thread=T)
    answer = egress("calculator.add", '<result xmlns="">42</result>', to="agentix").decode()
    assert replies == [agentserver.Message(T, "calculator.add", "agentix", answer)]
    events = await take(client, 3)
    kinds = [event.kind for event in events]
    assert kinds == ["thread_opened", "message", "message"]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert (events[1].sender, events[1].thread) == ("agentix", T)
    assert events[2].xml == answer
    # A stream that was cut off after its first event is resumed without a loss.
    first = await take(client, 1)
    assert first + await take(client, 2, after_seq=first[-1].seq) == events
    messages = [each async for each in client.remote(agentserver.history, T)]
    assert [each.xml for each in messages] == [event.xml for event in events[1:]]
    receipt = await client.remote(agentserver.post, ADD.replace("7", "8"), thread=T)
    assert receipt.thread == T
    (late,) = [
        event for event in await take(client, 2, after_seq=receipt.seq) if event.to == "agentix"
    ]
    assert '<result xmlns="">43</result>' in late.xml
    found = await client.remote(agentserver.describe, "calculator.add")
    assert (found.root_tag, found.name) == ("calculator.add.addpayload", "calculator.add")
    threads = await client.remote(agentserver.threads)
    assert ["agentix", "calculator.add"] in [each.path for each in threads]
    await client.remote(agentserver.stop)
    with pytest.raises(RemoteCallError, match="no organism runs: start one"):
        await client.remote(agentserver.post, ADD)


@pytest.fixture
async def local(local_bundles: Path) -> AsyncIterator[RuntimeClient]:
    """A client of a local sandbox."""
    config = SandboxConfig(image="/", namespaces=[agentserver])
    async with (
        LocalDeployment(bundles=local_bundles) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        yield client


async def test_refusals_are_told_and_leave_nothing(local: RuntimeClient) -> None:
    broken = agentserver.OrganismSpec("organism: {name: a, colour: red}")
    with pytest.raises(RemoteCallError, match=r"SpecError: .*colour: there is no such key"):
        await local.remote(agentserver.start, broken)
    with pytest.raises(RemoteCallError, match="leaves the directory"):
        await local.remote(agentserver.start, organism(**{"../evil.py": ""}))
    await local.remote(agentserver.stop)
    await local.remote(agentserver.start, organism())
    with pytest.raises(RemoteCallError, match="an organism runs already"):
        await local.remote(agentserver.start, organism())
    with pytest.raises(RemoteCallError, match="there is no listener 'nobody'"):
        await local.remote(agentserver.describe, "nobody")
    with pytest.raises(RemoteCallError, match="has no out-of-band channel"):
        await local.remote(agentserver.privileged, "<a/>")
    (reply,) = await local.remote(agentserver.call, "<no.such.tool/>")
    assert f"<error>{INVALID}</error>" in reply.xml
    (reply,) = await local.remote(agentserver.call, add(1, 1) + add(2, 2))
    assert "<error>Malformed message</error>" in reply.xml
    found = await local.run("ls /tmp | grep agentserver- | wc -l")
    assert found.stdout.strip() == "1"
    await local.remote(agentserver.stop)
    found = await local.run(
        "ls /tmp | grep -c agentserver-; ps ax | grep -c '[a]gentserver.gateway'"
    )
    assert found.stdout.split() == ["0", "0"]


async def test_pump_that_is_killed_is_told_and_started_again(local: RuntimeClient) -> None:
    spec = organism()
    spec.directory = Path("/workspace/organism")
    await local.remote(agentserver.start, spec)
    await local.remote(agentserver.call, ADD, thread=T)
    await local.run("kill -9 $(pgrep -f agentserver.gateway.local)")
    with pytest.raises(RemoteCallError, match="the organism has ended"):
        await local.remote(agentserver.call, ADD)
    await local.remote(agentserver.start, spec)
    messages = [each.sender async for each in local.remote(agentserver.history, T)]
    assert messages == ["agentix", "calculator.add"]


async def test_signed_command_is_carried_out(local: RuntimeClient, tmp_path: Path) -> None:
    identity = Identity.generate(tmp_path / "key")
    spec = organism(key=(tmp_path / "key").read_text())
    spec.yaml = spec.yaml.replace("name: fixture", "name: fixture\n  identity: key")
    spec.yaml += "oob: {enabled: true, unix_socket: oob.sock}\n"
    info = await local.remote(agentserver.start, spec)
    assert info.addresses[0].startswith("oob /")
    signed = sign_privileged('<unregister-listener name="calculator.secret"/>', identity).decode()
    assert await local.remote(agentserver.privileged, signed) == ""
    with pytest.raises(RemoteCallError, match="was used already"):
        await local.remote(agentserver.privileged, signed)
    ended = sign_privileged("<shutdown/>", identity).decode()
    assert await local.remote(agentserver.privileged, ended) == ""


async def test_token_makes_a_call_its_principals(local: RuntimeClient) -> None:
    await local.remote(agentserver.start, organism())
    scout = await local.remote(agentserver.grant, "scout", [ADD_ROOT])
    miner = await local.remote(agentserver.grant, "miner")
    replies = await local.remote(agentserver.call, ADD, thread=T, token=scout)
    answer = egress("calculator.add", '<result xmlns="">42</result>', to="scout").decode()
    assert replies == [agentserver.Message(T, "calculator.add", "scout", answer)]
    own = agentserver.ThreadInfo(T, ["scout"])
    assert await local.remote(agentserver.threads, token=scout) == [own]
    assert own in await local.remote(agentserver.threads)
    assert await local.remote(agentserver.threads, token=miner) == []
    # A39: what is another principal's is replaced, and tells nothing.
    receipt = await local.remote(agentserver.post, ADD, thread=T, token=miner)
    assert receipt.thread != T
    assert [each async for each in local.remote(agentserver.history, T, token=miner)] == []
    history = [each async for each in local.remote(agentserver.history, T, token=scout)]
    assert [each.sender for each in history] == ["scout", "calculator.add"]
    (reply,) = await local.remote(agentserver.call, "<no.such.tool/>", token=scout)
    secret = "<calculator.secret.secretpayload/>"
    (other,) = await local.remote(agentserver.call, secret, token=scout)
    assert f"<error>{INVALID}</error>" in reply.xml
    assert f"<error>{INVALID}</error>" in other.xml
    (tool,) = await local.remote(agentserver.catalog, token=scout)
    assert await local.remote(agentserver.describe, "calculator.add", token=scout) == tool
    names = [each.name for each in await local.remote(agentserver.catalog, token=miner)]
    assert names == ["calculator.add", "calculator.secret", "researcher"]
    stream = local.remote(agentserver.listen, token=scout)
    async with asyncio.timeout(60), aclosing(stream):
        kinds = [(await anext(stream)).kind for _ in range(3)]
        assert kinds == ["thread_opened", "message", "message"]
        await local.remote(agentserver.revoke, "scout")
        with pytest.raises(RemoteCallError, match="TokenError: the token was revoked"):
            [each async for each in stream]
    # Scratch of workers that end meanwhile is no error: what is there has to be found.
    await local.run('echo "$WORD" > /tmp/found', env={"WORD": "a-word-of-this-test"})
    search = 'grep -rlsF -e "$TOKEN" -e "$WORD" /tmp /workspace'
    found = await local.run(search, env={"TOKEN": miner, "WORD": "a-word-of-this-test"})
    assert found.stdout == "/tmp/found\n"


async def test_token_is_refused_where_it_is_not_good(local: RuntimeClient) -> None:
    spec = organism()
    spec.directory = Path("/workspace/organism")
    await local.remote(agentserver.start, spec)
    with pytest.raises(RemoteCallError, match="no token for 'researcher', with which the name"):
        await local.remote(agentserver.grant, "researcher")
    with pytest.raises(RemoteCallError, match="no token for 'core', which is reserved"):
        await local.remote(agentserver.grant, "core")
    for token in ("", "x" * 43):
        with pytest.raises(RemoteCallError, match="the token is missing, wrong or revoked"):
            await local.remote(agentserver.call, ADD, token=token)
    scout = await local.remote(agentserver.grant, "scout")
    await local.remote(agentserver.call, ADD, thread=T, token=scout)
    # Tokens end with the organism; conversations do not, where it has a directory.
    await local.remote(agentserver.stop)
    await local.remote(agentserver.start, spec)
    with pytest.raises(RemoteCallError, match="the token is missing, wrong or revoked"):
        await local.remote(agentserver.threads, token=scout)
    scout = await local.remote(agentserver.grant, "scout")
    own = await local.remote(agentserver.threads, token=scout)
    assert own == [agentserver.ThreadInfo(T, ["scout"])]


PROGRAM = """
import json, os, socket, sys
pump = socket.socket(socket.AF_UNIX)
pump.connect(sys.argv[1])
request = {"token": os.environ.get("TOKEN", ""), **json.loads(sys.argv[2])}
pump.sendall(json.dumps(request).encode() + b"\\n")
sys.stdout.write(pump.makefile().read())
"""


async def test_program_in_the_sandbox_speaks_for_itself(local: RuntimeClient) -> None:
    info = await local.remote(agentserver.start, organism())
    token = await local.remote(agentserver.grant, "scout")

    async def ask(**request: object) -> list[dict[str, Any]]:
        words = ["/usr/bin/python3", "-c", PROGRAM, info.socket, json.dumps(request)]
        done = await local.run(shlex.join(words), env={"TOKEN": token})
        return [json.loads(line) for line in done.stdout.splitlines()]

    reply, end = await ask(op="call", message=ADD, thread=T)
    assert end == {"end": True}
    assert (reply["item"]["sender"], reply["item"]["to"]) == ("calculator.add", "scout")
    (refused,) = await ask(op="grant", principal="accomplice")
    assert refused["error"]["message"] == "'grant' is for agentix alone, who gave the token"
    # One that has found the socket and nothing more is nobody.
    (refused,) = await ask(op="threads", token="")
    assert refused["error"]["message"].startswith("the token is missing, wrong or revoked")


async def test_functions_of_the_same_sandbox_are_tools(local_bundles: Path) -> None:
    root = "ns.mock_agent.run.runargs"
    config = SandboxConfig(image="/", namespaces=[agentserver, mock_agent])
    async with (
        LocalDeployment(bundles=local_bundles) as deployment,
        deployment.session(config) as sandbox,
        RuntimeClient(sandbox.runtime_url, token=sandbox.token) as client,
    ):
        spec = organism(token=str(sandbox.token))
        spec.yaml = spec.yaml.replace("[calculator.add]", '["ns:mock_agent.run"]')
        spec.yaml += "runtime: {token_file: token, allow: [mock_agent.run]}\n"
        await client.remote(agentserver.start, spec)
        call = f"<{root}><instruction>fix it</instruction></{root}>"
        topic = f"<topic>{escaped(call)}</topic>"
        payload = f"<researcher.researchpayload>{topic}</researcher.researchpayload>"
        (reply,) = await client.remote(agentserver.call, payload)
    assert '<heard xmlns="" tag="result"' in reply.xml
    assert "<exit_code>0</exit_code>" in reply.xml
    assert "+fix it" in reply.xml
