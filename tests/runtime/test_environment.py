"""Who runs commands, and what they see."""

from pathlib import Path

import pytest

from agentix.errors import UsageError
from agentix.runtime.environment import User, scrubbed

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
ann:x:1000:100:Ann:/home/ann:/bin/sh
bob:x:1001:100::
not an entry
1002:x:1003:100:named like a number:/home/odd:/bin/sh
"""
GROUP = """\
root:x:0:
users:x:100:
wheel:x:10:ann,root
video:x:44:bob,ann
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "group").write_text(GROUP)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("ann", User(1000, 100, (10, 44), "/home/ann")),
        ("1000", User(1000, 100, (10, 44), "/home/ann")),
        ("bob", User(1001, 100, (44,), "/")),
        ("1002", User(1003, 100, (), "/home/odd")),
        ("4242", User(4242, 0, (), "/")),
        ("ann:wheel", User(1000, 10, (), "/home/ann")),
        ("ann:4343", User(1000, 4343, (), "/home/ann")),
        ("4242:4343", User(4242, 4343, (), "/")),
    ],
)
def test_user_is_found_as_an_engine_finds_it(etc: Path, text: str, user: User) -> None:
    assert User.find(text, etc) == user


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nobody-here", "the task image has no user 'nobody-here'"),
        ("ann:nothing-here", "the task image has no group 'nothing-here'"),
    ],
)
def test_unknown_user_or_group_is_named(etc: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        User.find(text, etc)
    assert str(caught.value) == reason


def test_numbers_need_no_files(tmp_path: Path) -> None:
    assert User.find("12:34", tmp_path) == User(12, 34, (), "/")


STRIPPED = [
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTHONHOME",
    "LOCALE_ARCHIVE",
    "FONTCONFIG_FILE",
    "FONTCONFIG_",
    "SSL_CERT_FILE",
    "NIX_PATH",
    "NIX_",
    "AGENTIX_TOKEN_FILE",
]


@pytest.mark.parametrize("name", STRIPPED)
def test_variable_is_stripped(name: str) -> None:
    assert scrubbed({name: "value", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", ["NIX", "MY_NIX_PATH", "LD_OTHER", "PYTHONUNBUFFERED", "LANG"])
def test_variable_of_another_name_is_kept(name: str) -> None:
    assert scrubbed({name: "value", "PATH": "/bin"}) == {name: "value", "PATH": "/bin"}


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}])
def test_path_has_a_default(environ: dict[str, str]) -> None:
    assert scrubbed(environ) == {"PATH": "/usr/local/bin:/usr/bin:/bin"}
