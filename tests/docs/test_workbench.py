"""The workbench, on pages that are wrong."""

from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.docs.workbench import Workbench, shown


def session(text: str) -> Block:
    return Block("console", None, text, "", 5)


def test_other_output_than_shown_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="`echo two`, in the block of line 5 printed\ntwo\n"):
        Workbench(tmp_path).follow([session("$ echo two\none\n")])


def test_output_that_is_not_shown_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="`echo two`"):
        Workbench(tmp_path).follow([session("$ echo two\n")])


def test_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"`echo why >&2; false`, .*: why"):
        Workbench(tmp_path).follow([session("$ echo why >&2; false\n")])


def test_files_are_there_for_the_commands_that_follow(tmp_path: Path) -> None:
    file = Block("text", "directory/file", "content\n", "", 1)
    Workbench(tmp_path).follow([file, session("$ cat directory/file\ncontent\n")])


@pytest.mark.parametrize(
    ("output", "alike"),
    [("a...z\n", True), ("...\n", True), ("a\n", False), ("a...\n...z\n", False)],
)
def test_dots_stand_for_any_text_of_a_line(output: str, alike: bool) -> None:
    assert (shown(output).fullmatch("a to z\n") is not None) is alike
