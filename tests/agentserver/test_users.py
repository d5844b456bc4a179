"""Users: their file, their codes, and what failures cost."""

from dataclasses import dataclass
from pathlib import Path

import pyotp
import pytest

from agentix.agentserver.credentials import GatewayUser, Users, new_secret, read_users
from agentix.agentserver.errors import UsersError

SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
FULL_WIDTH = "".join(chr(0xFF10 + digit) for digit in range(1, 7))
START = 1_800_000_000.0
"""A multiple of 30: the beginning of a step."""


@dataclass
class Clock:
    now: float = START

    def __call__(self) -> float:
        return self.now


def code(at: float) -> str:
    return pyotp.TOTP(SECRET).at(int(at))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def users(clock: Clock) -> Users:
    return Users({"ada": GatewayUser(totp_secret=SECRET, allowed_root_tags=("a.b",))}, clock)


def test_right_code_logs_in_once(users: Users) -> None:
    assert users.authenticate("ada", code(START)) is users["ada"]
    assert users.authenticate("ada", code(START)) is None


@pytest.mark.parametrize(("steps", "accepted"), [(-2, False), (-1, True), (1, True), (2, False)])
def test_code_may_be_one_step_off(users: Users, steps: int, accepted: bool) -> None:
    assert (users.authenticate("ada", code(START + 30 * steps)) is not None) is accepted


def test_older_code_is_refused_after_a_newer_one(users: Users) -> None:
    assert users.authenticate("ada", code(START + 30)) is not None
    assert users.authenticate("ada", code(START)) is None


def test_unknown_user_and_malformed_codes_are_refused(users: Users) -> None:
    assert users.authenticate("bob", code(START)) is None
    for wrong in ("", "12345", "1234567", "abcdef", FULL_WIDTH, code(START) + " "):
        assert Users({"ada": users["ada"]}, lambda: START).authenticate("ada", wrong) is None


def test_failures_close_the_door_for_longer_and_longer(users: Users, clock: Clock) -> None:
    for _ in range(3):
        assert users.authenticate("ada", "000000") is None
    assert users.authenticate("ada", code(clock.now)) is None
    clock.now += 1.0
    assert users.authenticate("ada", "000000") is None
    clock.now += 1.5
    assert users.authenticate("ada", code(clock.now)) is None
    clock.now += 0.5
    assert users.authenticate("ada", code(clock.now)) is not None


def test_closed_door_opens_within_five_minutes(users: Users, clock: Clock) -> None:
    for _ in range(60):
        users.authenticate("ada", "000000")
        clock.now += 300.0
    assert users.authenticate("ada", code(clock.now)) is not None


def test_file_of_users_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text(
        f"users:\n  ada: {{totp_secret: {SECRET}, allowed_root_tags: '*', admin: true}}\n"
        f"  bob: {{totp_secret: {new_secret()}, allowed_root_tags: [a.b]}}\n"
    )
    users = read_users(path)
    assert users["ada"].admin is True
    assert (users["ada"].may_send("x"), users["bob"].may_send("x")) == (True, False)
    assert (users["bob"].may_send("a.b"), users["bob"].admin) == (True, False)
    assert SECRET not in repr(users["ada"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("users: {ada: {totp_secret: '!!'}}", "totp_secret is not base32"),
        ("users: {ada: {totp_secret: JBSWY3DP}}", "has 40 bits, and must have 128"),
        (
            f"users: {{ada: {{totp_secret: {SECRET}, admn: true}}}}",
            "ada.admn: there is no such key; is 'admin' meant",
        ),
        (f"users: {{'a b': {{totp_secret: {SECRET}}}}}", "should match pattern"),
        ("users: [", "is not YAML"),
        (f"users: {{a: {{totp_secret: {SECRET}}}, a: {{}}}}", "the key 'a' is given twice"),
        ("!!python/object/apply:os.system [true]", "is not YAML"),
        ("", "keys with values are needed"),
    ],
)
def test_malformed_file_is_refused_without_its_secrets(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "users.yaml").write_text(content)
    with pytest.raises(UsersError, match=reason) as refused:
        read_users(tmp_path / "users.yaml")
    assert SECRET not in str(refused.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsersError, match="No such file"):
        read_users(tmp_path / "users.yaml")
