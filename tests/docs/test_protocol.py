"""The protocol's page against a real runtime: every request, answer, type and setting."""

import datetime
import decimal
import inspect
import pathlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentix.runtime import Settings
from agentix.stub import Codec
from tests.docs.blocks import read_blocks
from tests.docs.exchange import Exchange, Message, Server, like, read_exchanges, serving
from tests.docs.workbench import Workbench

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "protocol.md"
EXCHANGES = read_exchanges(read_blocks(PAGE))
TYPES = "types_of_the_table.py"
SPECIAL = {
    "A body that is too large": {"AGENTIX_MAX_BODY": "40"},
    "Token": {"AGENTIX_TOKEN_FILE": "token"},
}
"""The settings of the runtimes that some sections are about."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a directory with the page's namespace mounted."""
    root = tmp_path_factory.mktemp("protocol")
    entry = Workbench(root / "mnt" / "c1" / "entry")
    for block in read_blocks(PAGE):
        if block.title is not None and block.title != TYPES:
            code = block.language == "python"
            entry.write(f"python/{block.title}" if code else block.title, block.text)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with serving(root, {}) as server:
        yield server


def test_answers_of_the_page_are_those_of_a_runtime(server: Server) -> None:
    for exchange in EXCHANGES:
        if exchange.section not in SPECIAL:
            server.check(exchange)


@pytest.mark.parametrize("section", SPECIAL)
def test_answers_of_a_section_are_those_of_its_runtime(root: Path, section: str) -> None:
    settings = dict(SPECIAL[section])
    if "AGENTIX_TOKEN_FILE" in settings:
        (root / "token").write_text("secret")
        settings["AGENTIX_TOKEN_FILE"] = str(root / "token")
    exchanges = [exchange for exchange in EXCHANGES if exchange.section == section]
    assert exchanges
    with serving(root, settings) as server:
        for exchange in exchanges:
            server.check(exchange)


def table(section: str) -> list[list[str]]:
    """Reads the cells of a section's table, without its head."""
    text = PAGE.read_text().split(f"## {section}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    cells = [re.split(r"(?<!\\)\|", row.strip("|")) for row in rows]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in cells]


@pytest.mark.parametrize(("annotation", "value", "text"), table("JSON of types"))
def test_type_has_the_json_of_the_table(annotation: str, value: str, text: str) -> None:
    names: dict[str, Any] = {
        **vars(datetime),
        "Decimal": decimal.Decimal,
        "Path": pathlib.Path,
        "UUID": uuid.UUID,
    }
    code = next(block.text for block in read_blocks(PAGE) if block.title == TYPES)
    exec(code, names)
    codec: Codec[Any] = Codec(eval(annotation, names))
    expected = eval(value, names)
    assert codec.encode(expected).decode() == text
    decoded = codec.decode(text.encode())
    assert type(decoded) is type(expected)
    assert codec.encode(decoded).decode() == text


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = {name: default for name, default, _ in table("Settings of agentix-server")}
    source = inspect.getsource(Settings)
    assert set(rows) == set(re.findall(r"`(AGENTIX_\w+)`", source))
    shown = SimpleNamespace(
        **{name.removeprefix("AGENTIX_").lower(): v for name, v in rows.items()}
    )
    defaults = Settings()
    assert (shown.bind_host, shown.bind_port) == (defaults.bind_host, str(defaults.bind_port))
    assert (shown.mount_root, shown.upload_root) == (
        str(defaults.mount_root),
        str(defaults.upload_root),
    )
    assert (shown.max_output, shown.max_body) == (str(defaults.max_output), str(defaults.max_body))


def test_wrong_answer_is_noticed(server: Server) -> None:
    request = Message("GET /health", {}, "")
    wrong = Message("HTTP/1.1 200", {}, '{"status": "ok", "version": "9.9.9"}')
    with pytest.raises(AssertionError, match="line 1: "):
        server.check(Exchange(request, wrong, "", 1))


@pytest.mark.parametrize(
    ("expected", "actual", "alike"),
    [
        ({"a": [1, "x...z"]}, {"a": [1, "x\ny z"]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 2], False),
        (True, 1, False),
        ("x...", "y", False),
    ],
)
def test_json_is_alike(expected: object, actual: object, alike: bool) -> None:
    assert like(expected, actual) is alike
