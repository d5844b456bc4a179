"""The code blocks of a Markdown page, and the commands in those that are console sessions."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^(?P<mark>`{3,})(?P<language>[\w-]*)(?P<options>.*)$")
TITLE = re.compile(r'title="(?P<title>[^"]*)"')
HEADING = re.compile(r"^(?P<level>#{1,6}) (?P<text>.+?)\s*$")
PROMPT = "$ "


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    """The first word of its info string."""
    title: str | None
    """The file that it is the content of, where it has a title."""
    text: str
    """Its lines, each with its end."""
    section: str
    """The heading that it stands under."""
    line: int
    """The line of the page that it starts on."""


@dataclass(frozen=True)
class Step:
    """One command of a console session."""

    command: str
    """What is typed after the prompt."""
    output: str
    """What is printed; `...` stands for any text in a line."""


def read_blocks(page: Path) -> list[Block]:
    """Reads the fenced blocks of a page, from its start to its end."""
    return list(_blocks(page.read_text(encoding="utf-8").splitlines()))


def in_sections(blocks: Sequence[Block], *sections: str) -> list[Block]:
    """Selects the blocks of some sections.

    Raises:
        KeyError: A section has no block; it may have been renamed.
    """
    for section in sections:
        if not any(block.section == section for block in blocks):
            raise KeyError(section)
    return [block for block in blocks if block.section in sections]


def read_steps(block: Block) -> list[Step]:
    """Splits a console session into its commands.

    Raises:
        ValueError: It starts with output.
    """
    steps: list[_OpenStep] = []
    for line in block.text.splitlines():
        if line.startswith(PROMPT):
            steps.append(_OpenStep(line.removeprefix(PROMPT)))
        elif not steps:
            raise ValueError(f"the session of line {block.line} starts with {line!r}")
        else:
            steps[-1].lines.append(line)
    return [Step(step.command, "".join(f"{line}\n" for line in step.lines)) for step in steps]


@dataclass
class _OpenStep:
    command: str
    lines: list[str] = field(default_factory=list)


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    section = ""
    opening: tuple[int, re.Match[str]] | None = None
    for number, line in enumerate(lines, 1):
        if opening is not None:
            start, fence = opening
            if line == fence["mark"]:
                yield _block(fence, lines[start : number - 1], section, start)
                opening = None
        elif (fence_found := FENCE.match(line)) is not None:
            opening = (number, fence_found)
        elif (heading := HEADING.match(line)) is not None:
            section = heading["text"]
    if opening is not None:
        raise ValueError(f"the block of line {opening[0]} does not end")


def _block(fence: re.Match[str], lines: Sequence[str], section: str, start: int) -> Block:
    title = TITLE.search(fence["options"])
    text = "".join(f"{line}\n" for line in lines)
    return Block(fence["language"], title["title"] if title else None, text, section, start)
