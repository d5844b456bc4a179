"""What must hold for every page: links lead somewhere, commands exist, public names are shown."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *REPOSITORY.glob("*/*/README.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
MODULES = (
    "agentix",
    "agentix.client",
    "agentix.docker",
    "agentix.local",
    "agentix.namespace_sdk",
    "agentix.agentserver",
    "agentix.oanix",
    "agentix.oanix.jobs",
    "agentix.runtime",
)
SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """Gives a page without its fenced blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Gives what can be linked to in a page: its headings, and the names that it documents."""
    headings = re.findall(r"^#{1,6} (.+?)\s*$", prose(page), re.MULTILINE)
    return {slug(heading) for heading in headings} | set(documented(page))


def slug(heading: str) -> str:
    """Gives the anchor of a heading, as GitHub and MkDocs make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def documented(page: Path) -> Iterator[str]:
    """Gives the full names of what a reference page shows."""
    for name in SHOWN.findall(prose(page)):
        yield name
        yield from (f"{name}.{public}" for public in public_names(name))


def public_names(module: str) -> list[str]:
    """Gives the `__all__` of a module; none for what is no module."""
    try:
        return list(importlib.import_module(module).__all__)
    except ModuleNotFoundError:
        return []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(linked), f"{target}: there is no such anchor"


def test_pages_of_the_site_link_within_it() -> None:
    for page in DOCS.rglob("*.md"):
        for target in LINK.findall(prose(page)):
            if not re.match(r"https?://|#", target):
                linked = (page.parent / target.partition("#")[0]).resolve()
                assert linked.is_relative_to(DOCS), f"{page.name}: {target} leaves the site"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_make_targets_and_sessions_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w ]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    assert set(re.findall(r"(?:^|`)make ([a-z]+)\b", text, re.MULTILINE)) <= known
    noxfile = (REPOSITORY / "noxfile.py").read_text()
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", noxfile, re.MULTILINE))
    assert set(re.findall(r"\bnox -s (\w+)", text)) <= sessions


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    shown = {name for page in (DOCS / "reference").glob("*.md") for name in documented(page)}
    owners = {name.rpartition(".")[2]: name for name in shown}
    parent = importlib.import_module(module)
    missing = [
        name
        for name in parent.__all__
        if name not in owners or not is_same(owners[name], getattr(parent, name))
    ]
    assert missing == []


def is_same(full_name: str, value: object) -> bool:
    """Tells whether a documented name is that very object."""
    module, _, name = full_name.rpartition(".")
    return getattr(importlib.import_module(module), name) is value


def test_every_error_is_in_the_reference() -> None:
    assert "::: agentix.errors" in (DOCS / "reference" / "errors.md").read_text()
