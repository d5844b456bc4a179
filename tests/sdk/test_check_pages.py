"""The page of each code: its example breaks the rule and no other, and fixes it again."""

import re
import subprocess
from pathlib import Path

import pytest

from agentix.namespace_sdk.check.report import explain
from agentix.namespace_sdk.check.rules import all_rules
from agentix.namespace_sdk.command import main
from tests.docs.blocks import Block, Step, in_sections, read_blocks, read_steps
from tests.docs.workbench import shown

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = DOCS / "sdk" / "checks"
INDEX = PAGES / "index.md"
START = "Checks"
CLOSURE = "A closure by hand"
RULES = all_rules()
OF_SOURCES = [code for code in RULES if code < "AGX500"]
OF_BUNDLES = [code for code in RULES if code > "AGX501"]


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert sorted(path.stem for path in PAGES.glob("AGX*.md")) == sorted(RULES)


def test_every_code_is_in_the_table_and_in_the_navigation() -> None:
    table = (PAGES / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(AGX\d{3})\]\(\1\.md\) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    assert rows == [(rule.code, rule.title, rule.fix) for rule in RULES.values()]
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"sdk/checks/(AGX\d+)\.md", navigation) == list(RULES)


@pytest.mark.parametrize("code", RULES)
def test_page_is_of_its_rule(code: str) -> None:
    rule = RULES[code]
    text = (DOCS / rule.page).read_text(encoding="utf-8")
    assert text.startswith(f"# {code}: {rule.title}\n")
    assert rule.fix[1:] in text
    assert " ".join(rule.why.split()) == without_links(text.split("\n\n")[1])


def without_links(text: str) -> str:
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text)


@pytest.mark.parametrize("code", RULES)
def test_rule_is_explained_as_on_its_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    rule = RULES[code]
    assert main(["check", "--explain", code]) == 0
    title, why, ending = capsys.readouterr().out.split("\n\n")
    assert title == f"{code}: {rule.title}"
    assert " ".join(why.split()) == " ".join(rule.why.split())
    assert max(map(len, why.splitlines())) <= 88
    assert ending == f"Fix: {rule.fix}\nPage: {rule.page}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain", "AGX999"], "there is no rule 'AGX999': the codes are AGX101, "),
        ([], "a target is needed: agentix-namespace check PATH|IMAGE\n"),
    ],
)
def test_what_cannot_be_checked_or_explained_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"agentix-namespace: {message}")


def follow(blocks: list[Block], directory: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Write the files of blocks and type their commands; return what `check` printed."""
    printed = []
    for block in blocks:
        if block.title is not None:
            write(block, directory)
        elif block.language == "console":
            printed += [take(step, directory, capsys) for step in read_steps(block)]
    return [text for text in printed if text]


def write(block: Block, directory: Path) -> None:
    """Write the file of a block."""
    path = directory / str(block.title)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)


def take(step: Step, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Type one command; our own is run in this process, which spares its start."""
    if not step.command.startswith("agentix-namespace "):
        subprocess.run(step.command, shell=True, cwd=directory, check=True)
        return ""
    exit_code = main(step.command.split()[1:])
    printed = capsys.readouterr().out
    assert shown(step.output).fullmatch(printed), printed
    assert exit_code == (1 if printed.endswith((" finding\n", " findings\n")) else 0)
    return printed


@pytest.fixture
def greeter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the namespace that all pages start from, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for block in in_sections(read_blocks(INDEX), START):
        if block.title is not None:
            write(block, tmp_path)
    (tmp_path / "agentix_namespaces/greeter/py.typed").touch()
    return tmp_path


@pytest.fixture
def closure(greeter: Path) -> Path:
    """Return the closure that the pages about images start from, beside the namespace."""
    [block] = in_sections(read_blocks(INDEX), CLOSURE)
    for step in read_steps(block)[:-1]:
        subprocess.run(step.command, shell=True, cwd=greeter, check=True)
    return greeter


def break_and_fix(code: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Follow the page of a code."""
    blocks = read_blocks(PAGES / f"{code}.md")
    [broken] = follow(in_sections(blocks, "Broken"), directory, capsys)
    assert set(re.findall(r": (AGX\d{3}) ", broken)) == {code}
    [fixed] = follow(in_sections(blocks, "Fixed"), directory, capsys)
    assert fixed.endswith(": nothing found\n")


@pytest.mark.parametrize("code", OF_SOURCES)
def test_example_breaks_the_rule_and_fixes_it(
    code: str, greeter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_and_fix(code, greeter, capsys)


@pytest.mark.parametrize("code", OF_BUNDLES)
def test_closure_breaks_the_rule_and_fixes_it(
    code: str, closure: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_and_fix(code, closure, capsys)


def test_image_breaks_the_rule_and_fixes_it(
    docker_engine: str, closure: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        break_and_fix("AGX501", closure, capsys)
    finally:
        subprocess.run(["docker", "image", "rm", "-f", "agentix-test/greeter:1"], check=True)


def test_what_all_pages_start_from_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = follow(read_blocks(INDEX), tmp_path, capsys)
    assert printed == [
        f"{explain(RULES['AGX204'])}\n",
        ".: nothing found\n",
        "nix: nothing found\n",
    ]
