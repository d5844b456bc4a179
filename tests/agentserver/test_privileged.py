"""Privileged messages: what is signed, what is refused, and that nothing is good twice."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from lxml import etree

from agentix.agentserver.credentials import Identity
from agentix.agentserver.errors import PrivilegedError
from agentix.agentserver.gateway.admin import (
    Command,
    GetOrganismGraph,
    GetStatus,
    ListListeners,
    PrivilegedGate,
    RegisterListener,
    RegisterRemoteGateway,
    Shutdown,
    UnregisterListener,
    UnregisterRemoteGateway,
    sign_privileged,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAMESPACE = "https://xml-pipeline.org/privileged-msg"


@dataclass
class Clock:
    now: float = NOW.timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity.generate(tmp_path / "key")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(identity: Identity, clock: Clock) -> PrivilegedGate:
    return PrivilegedGate(identity.public, clock)


@pytest.fixture
def signed(identity: Identity) -> Callable[..., bytes]:
    def sign(command: str, message_id: str = "1", timestamp: datetime = NOW) -> bytes:
        return sign_privileged(command, identity, message_id=message_id, timestamp=timestamp)

    return sign


REGISTER = (
    "<register-listener><name>a.b</name><payload-class>m.P</payload-class>"
    "<handler>m.h</handler><description>Adds &amp; more.</description>"
    "<peers>c.d e.f</peers><agent>true</agent></register-listener>"
)
GATEWAY = (
    '<register-remote-gateway name="g" remote-url="wss://h:1" trusted-identity="k"'
    ' description="d"/>'
)
COMMANDS: list[tuple[str, Command]] = [
    (
        REGISTER,
        RegisterListener(
            name="a.b",
            payload_class="m.P",
            handler="m.h",
            description="Adds & more.",
            peers=("c.d", "e.f"),
            agent=True,
        ),
    ),
    ('<unregister-listener name="a.b"/>', UnregisterListener(name="a.b")),
    ("<list-listeners/>", ListListeners()),
    ('<list-listeners detailed="true"/>', ListListeners(detailed=True)),
    (
        '<get-organism-graph team="search" format="graphviz"/>',
        GetOrganismGraph(team="search", format="graphviz"),
    ),
    ("<get-status/>", GetStatus()),
    ('<shutdown mode="immediate" reason="x"/>', Shutdown(mode="immediate", reason="x")),
    (
        GATEWAY,
        RegisterRemoteGateway(
            name="g", remote_url="wss://h:1", trusted_identity="k", description="d"
        ),
    ),
    ('<unregister-remote-gateway name="g"/>', UnregisterRemoteGateway(name="g")),
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=lambda value: str(value)[:24])
def test_signed_command_is_understood(
    gate: PrivilegedGate, signed: Callable[..., bytes], command: str, expected: Command
) -> None:
    assert gate.open(signed(command)) == expected


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("<launch/>", "there is no command 'launch'"),
        ('<get-status xmlns="urn:x"/>', "there is no command"),
        ("<unregister-listener/>", "unregister-listener: name: Field required"),
        ('<unregister-listener name="a" force="1"/>', "force: Extra inputs"),
        ('<unregister-listener name="a"><name>b</name></unregister-listener>', "given twice"),
        ("<unregister-listener><name><b/></name></unregister-listener>", "holds elements"),
        ('<shutdown mode="slow"/>', "mode: Input should be 'graceful' or 'immediate'"),
    ],
)
def test_wrong_command_is_refused(
    gate: PrivilegedGate, signed: Callable[..., bytes], command: str, reason: str
) -> None:
    with pytest.raises(PrivilegedError, match=reason):
        gate.open(signed(command))


def test_change_of_what_was_signed_is_refused(
    gate: PrivilegedGate, signed: Callable[..., bytes]
) -> None:
    message = signed('<unregister-listener name="a.b"/>')
    for old, new in [(b"a.b", b"a.c"), (b'id="1"', b'id="2"'), (b"12:00:00", b"12:00:01")]:
        assert old in message
        with pytest.raises(PrivilegedError, match="bad signature"):
            gate.open(message.replace(old, new))
    assert gate.open(message) == UnregisterListener(name="a.b")


def test_signature_of_another_identity_is_refused(gate: PrivilegedGate, tmp_path: Path) -> None:
    stranger = Identity.generate(tmp_path / "stranger")
    with pytest.raises(PrivilegedError, match="bad signature"):
        gate.open(sign_privileged("<get-status/>", stranger, timestamp=NOW))


def test_spelling_does_not_matter_to_the_signature(
    gate: PrivilegedGate, signed: Callable[..., bytes]
) -> None:
    message = signed("<get-status/>")
    root = etree.fromstring(message)
    spelt = etree.tostring(root, xml_declaration=True, encoding="utf-8", standalone=True)
    assert b"<?xml" in spelt
    assert gate.open(spelt.replace(b"<get-status/>", b"<get-status  ></get-status>")) == GetStatus()


def test_message_is_good_once(
    gate: PrivilegedGate, signed: Callable[..., bytes], clock: Clock
) -> None:
    message = signed("<get-status/>")
    assert gate.open(message) == GetStatus()
    for later in (0, 60):
        clock.now = NOW.timestamp() + later
        with pytest.raises(PrivilegedError, match="was used already"):
            gate.open(message)


def test_refused_message_does_not_use_an_id_up(
    gate: PrivilegedGate, signed: Callable[..., bytes]
) -> None:
    with pytest.raises(PrivilegedError, match="no command"):
        gate.open(signed("<launch/>"))
    assert gate.open(signed("<get-status/>")) == GetStatus()


def test_ids_are_forgotten_when_their_timestamps_are_old(
    gate: PrivilegedGate, signed: Callable[..., bytes], clock: Clock
) -> None:
    for hour in range(100):
        clock.now = (NOW + timedelta(hours=hour)).timestamp()
        gate.open(signed("<get-status/>", str(hour), NOW + timedelta(hours=hour)))
    assert gate.remembered == 1


@pytest.mark.parametrize("seconds", [-600, -61, 61])
def test_timestamp_far_from_now_is_refused(
    gate: PrivilegedGate, signed: Callable[..., bytes], seconds: int
) -> None:
    with pytest.raises(PrivilegedError, match="more than 60 seconds off"):
        gate.open(signed("<get-status/>", timestamp=NOW + timedelta(seconds=seconds)))


def test_timestamp_may_be_of_any_time_zone(
    gate: PrivilegedGate, signed: Callable[..., bytes]
) -> None:
    there = NOW.astimezone(timezone(timedelta(hours=9)))
    assert gate.open(signed("<get-status/>", timestamp=there)) == GetStatus()


def test_timestamp_without_a_time_zone_is_refused(
    gate: PrivilegedGate, signed: Callable[..., bytes]
) -> None:
    with pytest.raises(PrivilegedError, match="no time zone"):
        gate.open(signed("<get-status/>", timestamp=NOW.replace(tzinfo=None)))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not XML that is taken here"),
        (b"not xml", "not well-formed"),
        (b"<privileged-msg/>", "not a privileged message"),
        (f'<privileged-msg xmlns="{NAMESPACE}" version="2.0"/>'.encode(), "of version 1.0"),
        (f'<privileged-msg xmlns="{NAMESPACE}" version="1.0"/>'.encode(), "one payload and one"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        (b" " * 65537, "too large"),
    ],
)
def test_what_is_no_privileged_message_is_refused(
    gate: PrivilegedGate, message: bytes, reason: str
) -> None:
    with pytest.raises(PrivilegedError, match=reason):
        gate.open(message)


def test_second_payload_beside_the_signed_one_is_refused(
    gate: PrivilegedGate, signed: Callable[..., bytes]
) -> None:
    message = signed("<get-status/>")
    smuggled = message.replace(
        b"<payload", b'<payload id="2" timestamp="x"><shutdown/></payload><payload', 1
    )
    with pytest.raises(PrivilegedError, match="one payload and one signature"):
        gate.open(smuggled)
