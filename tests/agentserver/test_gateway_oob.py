"""The out-of-band channel: signed commands over real sockets, while messages flow."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentix.agentserver import Organism
from agentix.agentserver.credentials import Identity
from agentix.agentserver.errors import GatewayError, PrivilegedError
from agentix.agentserver.gateway.admin import (
    OobChannel,
    PrivilegedGate,
    Shutdown,
    send_privileged,
    sign_privileged,
)
from agentix.agentserver.spec import GatewaySpec
from tests.agentserver.conftest import Start
from tests.agentserver.messages import add, egress, envelope
from tests.agentserver.test_gateway_wss import security

REGISTER = (
    "<register-listener><name>{name}</name><description>Does as it is told.</description>"
    "<payload-class>fixture_handlers.DoPayload</payload-class>"
    "<handler>{handler}</handler></register-listener>"
)
NEW = REGISTER.format(name="new", handler="fixture_handlers.do")


@dataclass
class Channel:
    """An organism with an open channel."""

    organism: Organism
    identity: Identity
    address: str
    oob: OobChannel
    ended: list[Shutdown] = field(default_factory=list)
    gateways: dict[str, GatewaySpec] = field(default_factory=dict)

    async def send(self, command: str) -> str:
        return await send_privileged(self.address, sign_privileged(command, self.identity))


@pytest.fixture
async def channel(start: Start, tmp_path: Path) -> AsyncIterator[Channel]:
    organism = await start()
    identity = Identity.generate(tmp_path / "identity")
    ended: list[Shutdown] = []
    gateways: dict[str, GatewaySpec] = {}

    async def connect(spec: GatewaySpec) -> None:
        gateways[spec.name] = spec

    async def disconnect(name: str) -> None:
        gateways.pop(name)

    oob = OobChannel(organism, PrivilegedGate(identity.public), ended.append, connect, disconnect)
    async with oob.serve("127.0.0.1", 0) as port:
        yield Channel(organism, identity, f"127.0.0.1:{port}", oob, ended, gateways)


async def test_a54_new_listener_works_and_no_message_in_flight_is_lost(channel: Channel) -> None:
    messages = [envelope(add(number, 1), thread=None) for number in range(300)]
    calls = asyncio.gather(*(channel.organism.call(each, "ext") for each in messages))
    assert await channel.send(NEW) == "new.dopayload"
    replies = await calls
    assert [b">%d<" % (number + 1) in reply[0] for number, reply in enumerate(replies)] == (
        [True] * 300
    )
    payload = '<new.dopayload xmlns=""><returns>&lt;here/&gt;</returns></new.dopayload>'
    assert await channel.organism.call(envelope(payload), "ext") == [
        egress("new", '<here xmlns=""></here>')
    ]
    assert await channel.send('<unregister-listener name="new"/>') == ""
    (huh,) = await channel.organism.call(envelope(payload), "ext")
    assert b"Invalid payload structure" in huh


async def test_a54_bad_signature_replay_and_old_timestamp_are_refused(
    channel: Channel, tmp_path: Path
) -> None:
    stranger = Identity.generate(tmp_path / "stranger")
    good = sign_privileged("<get-status/>", channel.identity)
    old = sign_privileged(
        NEW, channel.identity, timestamp=datetime.now(UTC) - timedelta(minutes=10)
    )
    assert json.loads(await send_privileged(channel.address, good))["name"] == "fixture"
    for message, reason in [
        (good, "was used already"),
        (sign_privileged(NEW, stranger), "bad signature"),
        (old, "more than 60 seconds off"),
        (b"<a/>", "not a privileged message"),
        (b"nonsense", "not XML"),
    ]:
        with pytest.raises(PrivilegedError, match=reason):
            await send_privileged(channel.address, message)
    with pytest.raises(KeyError):
        channel.organism.describe("new")
    refused = [event.detail for event in await security(channel.organism)]
    assert [detail.partition(":")[0] for detail in refused] == (
        ["a privileged message was refused"] * 5
    )


async def test_a54_channel_is_reachable_on_loopback_only(channel: Channel) -> None:
    for address in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(GatewayError, match="is not a loopback address"):
            async with channel.oob.serve(address, 0):
                pass
    port = int(channel.address.rpartition(":")[2])
    others = {
        info[4][0]
        for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        if not str(info[4][0]).startswith("127.")
    }
    for other in others:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((str(other), port), timeout=5).close()


async def test_commands_are_carried_out(channel: Channel) -> None:
    assert json.loads(await channel.send("<list-listeners/>")) == [
        "calculator.add",
        "calculator.secret",
        "researcher",
    ]
    detailed = json.loads(await channel.send('<list-listeners detailed="true"/>'))
    assert detailed[0]["root_tag"] == "calculator.add.addpayload"
    drawn = json.loads(await channel.send('<get-organism-graph format="json"/>'))
    assert drawn == json.loads(channel.organism.graph("json"))
    await channel.send('<shutdown reason="the test ends"/>')
    assert channel.ended == [Shutdown(reason="the test ends")]
    gateway = '<register-remote-gateway name="g" remote-url="wss://h:1" trusted-identity="{}"'
    await channel.send(gateway.format(channel.identity.public) + ' description="d"/>')
    assert channel.gateways["g"].remote_url == "wss://h:1"
    await channel.send('<unregister-remote-gateway name="g"/>')
    assert channel.gateways == {}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (REGISTER.format(name="calculator.add", handler="fixture_handlers.do"), "is registered"),
        (REGISTER.format(name="core", handler="fixture_handlers.do"), "reserved"),
        (REGISTER.format(name="new", handler="os.system"), "none of the configured packages"),
        (REGISTER.format(name="new", handler="fixture_handlers.missing"), "cannot be imported"),
        ('<unregister-listener name="missing"/>', "there is no 'missing'"),
        ('<unregister-remote-gateway name="missing"/>', "there is no 'missing'"),
    ],
)
async def test_command_that_can_not_be_done_changes_nothing(
    channel: Channel, command: str, reason: str
) -> None:
    before = channel.organism.graph("json")
    with pytest.raises(PrivilegedError, match=reason):
        await channel.send(command)
    assert channel.organism.graph("json") == before


async def test_unix_socket_serves_its_own_user(channel: Channel, tmp_path: Path) -> None:
    path = tmp_path / "oob.sock"
    async with channel.oob.serve_unix(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        signed = sign_privileged("<get-status/>", channel.identity)
        assert json.loads(await send_privileged(path, signed))["running"] is True
    assert not path.exists()
    with pytest.raises(GatewayError, match="no organism answers"):
        await send_privileged(path, signed)


FOREIGN = """
import os, socket, sys
os.setgroups([])
os.setuid(65534)
end = socket.socket(socket.AF_UNIX)
end.connect(sys.argv[1])
body = sys.stdin.buffer.read()
end.sendall(b"POST / HTTP/1.0\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
print(end.makefile("rb").read().decode())
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that other users may enter; pytest's are closed to them."""
    with tempfile.TemporaryDirectory(prefix="agentix-oob-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_unix_socket_refuses_another_user_by_its_credentials(
    channel: Channel, open_directory: Path
) -> None:
    path = open_directory / "oob.sock"
    async with channel.oob.serve_unix(path):
        path.chmod(0o666)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FOREIGN, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        signed = sign_privileged("<get-status/>", channel.identity)
        output, _ = await asyncio.wait_for(process.communicate(signed), 30)
    assert b"403" in output.splitlines()[0]
    (event,) = await security(channel.organism)
    assert event.detail == "a process of another user was refused"


async def test_port_that_is_taken_is_told(channel: Channel) -> None:
    port = int(channel.address.rpartition(":")[2])
    with pytest.raises(GatewayError, match="cannot be listened at"):
        async with channel.oob.serve("127.0.0.1", port):
            pass
