"""The command: what it prints, and with which exit code it ends."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from agentix.agentserver.command import main
from agentix.agentserver.credentials import Identity, new_secret
from tests.agentserver.certificates import make_certificate
from tests.agentserver.conftest import FIXTURE

COMMAND = [sys.executable, "-m", "agentix.agentserver"]
ADD = "<calculator.add.addpayload><a>7</a><b>35</b></calculator.add.addpayload>"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an organism, where the command is typed."""
    for file in FIXTURE.glob("*.*"):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(here: Path, **sections: object) -> None:
    """Change sections of organism.yaml."""
    document = yaml.safe_load((here / "organism.yaml").read_text())
    (here / "organism.yaml").write_text(yaml.safe_dump(document | sections))


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., Outcome]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in this process, which spares the start of an interpreter."""

    def call(*arguments: str, given: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(str(ended.code))
        return Outcome(code, *capfd.readouterr())

    return call


def test_command_is_installed_and_runs_as_a_module(here: Path) -> None:
    for command in ([str(Path(sys.executable).with_name("agentix-agentserver"))], COMMAND):
        finished = subprocess.run([*command, "secret"], capture_output=True, timeout=60)
        assert (finished.returncode, len(finished.stdout)) == (0, 33)


def test_send_prints_the_reply(here: Path, call: Call) -> None:
    sent = call("send", "organism.yaml", ADD)
    assert (sent.returncode, sent.stdout) == (0, "<result>42</result>\n")


def test_send_prints_replies_one_a_line(here: Path, call: Call) -> None:
    document = yaml.safe_load((here / "organism.yaml").read_text())
    doer = {
        "name": "doer",
        "payload_class": "fixture_handlers.DoPayload",
        "handler": "fixture_handlers.do",
        "description": "Does as it is told.",
    }
    change(here, listeners=[*document["listeners"], doer])
    inner = "&lt;a&gt;1\n2&lt;/a&gt;&lt;b/&gt;"
    payload = f"<doer.dopayload><returns>{inner}</returns></doer.dopayload>\n"
    sent = call("send", "organism.yaml", "-", given=payload.encode())
    assert (sent.returncode, sent.stdout) == (0, "<a>1&#10;2</a>\n<b></b>\n")
    slow = payload.replace("</doer", "<seconds>30</seconds></doer")
    late = call("send", "--timeout", "0.5", "organism.yaml", slow)
    assert (late.returncode, late.stdout) == (124, "")
    assert "was still busy at the timeout" in late.stderr


def test_send_of_what_is_refused_prints_a_huh_and_exits_1(here: Path, call: Call) -> None:
    for payload in ("<no.such.tool/>", "no element", ADD.replace("7", "seven")):
        sent = call("send", "organism.yaml", payload)
        assert sent.returncode == 1
        assert sent.stdout.startswith('<huh xmlns="https://xml-pipeline.org/ns/core/v1"><error>')
        assert sent.stdout.count("\n") == 1


def test_send_takes_a_file_as_editors_write_them(here: Path, call: Call) -> None:
    given = f'\ufeff<?xml version="1.0" encoding="UTF-8"?>\r\n<!-- a sum -->\r\n{ADD}\r\n'
    sent = call("send", "organism.yaml", "-", given=given.encode())
    assert (sent.returncode, sent.stdout) == (0, "<result>42</result>\n")


def test_send_of_what_is_no_text_is_refused(here: Path, call: Call) -> None:
    for sent in (
        call("send", "organism.yaml", "-", given=b"<a>\xff</a>"),
        call("send", "organism.yaml", os.fsdecode(b"<a>\xff</a>")),
    ):
        assert sent.returncode == 1
        assert "<error>Malformed message</error>" in sent.stdout


def test_send_of_what_is_dropped_says_why(
    here: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    payload = '<privileged-msg xmlns="https://xml-pipeline.org/privileged-msg"/>'
    sent = call("send", "organism.yaml", payload)
    assert (sent.returncode, sent.stdout) == (0, "")
    (told,) = [each for each in caplog.records if "goes no further" in each.getMessage()]
    assert told.levelname == "WARNING"
    assert "a message of cli goes no further: the privileged root" in told.getMessage()


def test_check_shows_listeners_and_how_handlers_are_held(here: Path, call: Call) -> None:
    checked = call("check", "organism.yaml")
    assert checked.returncode == 0, checked.stderr
    lines = checked.stdout.splitlines()
    assert lines[:3] == [
        "calculator.add: <calculator.add.addpayload>",
        "calculator.secret: <calculator.secret.secretpayload>",
        "researcher: <researcher.researchpayload>",
    ]
    assert lines[3] == "isolation: thread"
    assert any(line.startswith("no new privileges: ") for line in lines)
    assert not (here / "schemas").exists()
    assert not (here / "journal").exists()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("name: fixture", "name: fixture\n  colour: red", "organism.colour: there is no such key"),
        ("description: Nobody's peer.", "description: ' '", "a description is needed"),
        ("handler: fixture_handlers.secret", "handler: fixture_handlers.no", "fixture_handlers.no"),
        ("peers: [calculator.add]", "peers: [nobody]", "no such peer: nobody"),
        ("organism:", "organism: [", "cannot be read"),
    ],
)
def test_check_refuses_what_is_wrong(
    here: Path, call: Call, old: str, new: str, reason: str
) -> None:
    text = (here / "organism.yaml").read_text()
    assert old in text
    (here / "organism.yaml").write_text(text.replace(old, new, 1))
    for arguments in (["check", "organism.yaml"], ["send", "organism.yaml", ADD]):
        refused = call(*arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "\nagentix-agentserver: " in f"\n{refused.stderr}"
        assert reason in refused.stderr
        assert "Traceback" not in refused.stderr


def test_check_reads_what_gateways_need(here: Path, call: Call) -> None:
    tls = {"cert": "cert.pem", "key": "key.pem"}
    section = {"name": "fixture", "tls": tls, "users": "users.yaml", "identity": "identity"}
    department = {"name": "department", "description": "D.", "trusted_identity": "department.pub"}
    change(here, organism=section, gateways=[department])
    (here / "cert.pem").write_text("no certificate")
    (here / "key.pem").write_text("no key")
    (here / "identity").write_text("no identity")
    (here / "identity").chmod(0o600)

    def refuses(reason: str) -> None:
        refused = call("check", "organism.yaml")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert reason in refused.stderr
        assert "Traceback" not in refused.stderr

    refuses("no certificate and key at")
    make_certificate(here)
    refuses("no users at")
    for name in ("researcher", "core"):
        (here / "users.yaml").write_text(f"users: {{{name}: {{totp_secret: {new_secret()}}}}}")
        refuses(f"user {name!r} has the name of a listener, or of the pump: rename it")
    (here / "users.yaml").write_text("users: {}")
    refuses(f"{here / 'identity'}")
    (here / "identity").unlink()
    key = Identity.generate(here / "identity")
    refuses("department.pub")
    (here / "department.pub").write_text(str(key.public))
    assert call("check", "organism.yaml").returncode == 0


def test_missing_file_is_told(tmp_path: Path, call: Call) -> None:
    refused = call("run", str(tmp_path / "organism.yaml"))
    assert refused.returncode == 2
    assert "No such file" in refused.stderr


def test_describe_prints_schema_example_and_prompt(here: Path, call: Call) -> None:
    described = call("describe", "calculator.add")
    assert described.returncode == 0
    schema, example, prompt = described.stdout.split("\n\n", 2)
    assert schema.startswith("<xs:schema ")
    assert example == "<calculator.add.addpayload><a>40</a><b>2</b></calculator.add.addpayload>"
    assert "a(int) - the first number" in prompt
    unknown = call("describe", "--organism", "organism.yaml", "nobody")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no listener 'nobody': there are calculator.add, calculator.secret" in unknown.stderr


def test_graph_is_mermaid(here: Path, call: Call) -> None:
    drawn = call("graph")
    assert drawn.returncode == 0
    assert drawn.stdout.splitlines()[0] == "graph LR"
    assert '["calculator.add"]' in drawn.stdout
    assert json.loads(call("graph", "organism.yaml", "--format", "json").stdout)
    team = call("graph", "--team", "calculator").stdout
    assert "researcher" not in team
    nobody = call("graph", "--team", "calc")
    assert (nobody.returncode, nobody.stdout) == (2, "")
    assert "no listener 'calc': there are calculator.add, calculator.secret" in nobody.stderr


def test_identity_and_secret_are_made(here: Path, call: Call) -> None:
    made = call("identity", "key")
    assert made.stdout.strip() == str(Identity.load(here / "key").public)
    assert call("identity", "key").returncode == 2
    assert len(call("secret").stdout.strip()) == 32


@contextmanager
def running(here: Path) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """Run the organism, and return the words of its line that says that it is ready."""
    with subprocess.Popen(
        [*COMMAND, "run", "organism.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_at_a_signal(here: Path, number: int) -> None:
    with running(here) as (process, ready):
        assert ready == ["agentix-agentserver", "ready", "fixture"]
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_run_opens_gateways_and_ends_at_a_command(here: Path, call: Call) -> None:
    make_certificate(here)
    Identity.generate(here / "identity")
    (here / "users.yaml").write_text(
        f"users: {{ext: {{totp_secret: {call('secret').stdout.strip()}}}}}"
    )
    tls = {"cert": "cert.pem", "key": "key.pem"}
    section = {
        "name": "fixture",
        "identity": "identity",
        "port": 0,
        "tls": tls,
        "users": "users.yaml",
    }
    change(here, organism=section, oob={"enabled": True, "unix_socket": "oob.sock"})
    with running(here) as (process, ready):
        name, wss, oob, path = ready[2:]
        assert (name, oob, path) == ("fixture", "oob", str(here / "oob.sock"))
        assert wss.startswith("wss://127.0.0.1:")
        status = call("privileged", path, "<get-status/>", "--identity", "identity")
        assert json.loads(status.stdout)["listeners"] == 3
        refused = call("privileged", path, "<launch/>", "--identity", "identity")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "there is no command 'launch'" in refused.stderr
        ended = call("privileged", path, '<shutdown reason="test"/>', "--identity", "identity")
        assert (ended.returncode, ended.stdout) == (0, "")
        process.wait(30)
    assert process.returncode == 0
    assert not os.path.exists(path)


def test_second_run_on_one_journal_is_refused(here: Path, call: Call) -> None:
    with running(here) as (process, _):
        second = call("run", "organism.yaml")
        assert second.returncode == 2
        assert "another organism uses this journal" in second.stderr
        process.terminate()
        process.wait(30)


def test_wrong_command_line_is_told(here: Path, call: Call) -> None:
    for arguments in ([], ["fly"], ["send"], ["graph", "--format", "png"]):
        refused = call(*arguments)
        assert refused.returncode == 2
        assert "usage: agentix-agentserver" in refused.stderr
