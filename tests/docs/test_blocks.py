"""The extractor of code blocks, on pages of its own."""

from pathlib import Path

import pytest

from tests.docs.blocks import Block, Step, in_sections, read_blocks, read_steps

PAGE = """\
# Title

```python title="directory/file.py"
# a comment, not a heading
print(1)
```

## First section

```console
$ cat file
one

two
$ true
```

````text
```
inner
```
````
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_blocks_carry_their_language_title_section_and_line(page: Path) -> None:
    code, session, text = read_blocks(page)
    content = "# a comment, not a heading\nprint(1)\n"
    assert code == Block("python", "directory/file.py", content, "Title", 3)
    assert (session.language, session.section, session.line) == ("console", "First section", 10)
    assert text.text == "```\ninner\n```\n"


def test_session_is_split_at_its_prompts(page: Path) -> None:
    session = read_blocks(page)[1]
    assert read_steps(session) == [Step("cat file", "one\n\ntwo\n"), Step("true", "")]


def test_sections_are_selected_by_their_heading(page: Path) -> None:
    blocks = read_blocks(page)
    assert in_sections(blocks, "First section") == blocks[1:]


def test_section_that_is_not_there_is_an_error(page: Path) -> None:
    with pytest.raises(KeyError, match="Renamed"):
        in_sections(read_blocks(page), "Renamed")


def test_block_without_an_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("```python\nprint(1)\n")
    with pytest.raises(ValueError, match="line 1 does not end"):
        read_blocks(path)


def test_session_that_starts_with_output_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 7 starts with 'output'"):
        read_steps(Block("console", None, "output\n$ true\n", "", 7))
