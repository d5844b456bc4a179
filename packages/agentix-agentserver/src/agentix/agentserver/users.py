"""The users of an organism: who may log in, by which one-time codes, and what they may call."""

import base64
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pyotp
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.reasons import reasons
from agentix.agentserver.yaml_file import read_yaml

__all__ = ["User", "UserName", "Users", "UsersError", "new_secret", "read_users"]

logger = logging.getLogger(__name__)

WINDOW = 1
"""Steps of 30 seconds that a code may be early or late."""

FREE_FAILURES = 3
"""Failures of one user after which each further one doubles the time to wait."""

FIRST_WAIT = 1.0
LONGEST_WAIT = 300.0

CODE_DIGITS = 6


class UsersError(AgentServerError):
    """A file of users is missing or malformed."""


def _base32(secret: str) -> str:
    """Refuses what is not base32, or is shorter than RFC 4226 asks for."""
    try:
        size = len(base64.b32decode(secret + "=" * (-len(secret) % 8), casefold=True))
    except ValueError as error:
        raise ValueError("totp_secret is not base32") from error
    if size < 16:
        raise ValueError(f"totp_secret has {size * 8} bits, and must have 128 (RFC 4226, R6)")
    return secret


class User(BaseModel):
    """One user."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    totp_secret: Annotated[str, AfterValidator(_base32)] = Field(repr=False)
    """The shared secret in base32, of at least 128 bits (RFC 6238)."""
    allowed_root_tags: Literal["*"] | tuple[str, ...] = ()
    """The root tags of payloads that the user may send, or `*` for any."""
    admin: bool = False
    """Whether meta queries of the level `admin` are answered."""

    def may_send(self, root: str) -> bool:
        """Tells whether a payload with this root tag is allowed."""
        return self.allowed_root_tags == "*" or root in self.allowed_root_tags


UserName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""The name of a user: an XML name without a dot, so that it is no other organism's."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    users: dict[UserName, User]


def read_users(path: Path, now: Callable[[], float] = time.time) -> "Users":
    """Reads `users.yaml`.

    Raises:
        UsersError: The file is missing or malformed; secrets are not shown.
    """
    try:
        content = read_yaml(path)
    except OSError as error:
        raise UsersError(f"no users at {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = f": {error.problem}" if isinstance(error, yaml.MarkedYAMLError) else ""
        raise UsersError(f"{path} is not YAML{problem}") from error
    try:
        return Users(_File.model_validate(content).users, now)
    except ValidationError as error:
        raise UsersError(f"malformed users in {path}: {reasons(error, (User,))}") from error


def new_secret() -> str:
    """Gives a fresh secret of 160 bits for a user."""
    return pyotp.random_base32()


@dataclass
class _Record:
    """What is remembered of one user's attempts."""

    last_step: int = -1
    failures: int = 0
    closed_until: float = 0.0


class Users:
    """Checks codes: each is good once, in its step and one beside it, and failures slow down.

    Args:
        users: The users by their names.
        now: Gives the seconds since 1970.
    """

    def __init__(self, users: Mapping[str, User], now: Callable[[], float] = time.time) -> None:
        self._users = dict(users)
        self._now = now
        self._records = {name: _Record() for name in users}
        self._nobody = User(totp_secret=new_secret())

    def __getitem__(self, name: str) -> User:
        return self._users[name]

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def authenticate(self, name: str, code: str) -> User | None:
        """Checks a code, and takes it.

        An unknown name costs as much time as a known one. While a user waits after failures no
        code is taken, not even a right one.

        Returns:
            The user; `None` where the code is wrong, used, or came too soon after failures.
        """
        now = self._now()
        user = self._users.get(name, self._nobody)
        record = self._records.get(name, _Record())
        step = _matching_step(user.totp_secret, code, now)
        if name not in self._users or now < record.closed_until:
            return None
        if step is None or step <= record.last_step:
            self._fail(name, record, now)
            return None
        record.last_step, record.failures = step, 0
        return user

    def _fail(self, name: str, record: _Record, now: float) -> None:
        record.failures += 1
        beyond = record.failures - FREE_FAILURES
        if beyond >= 0:
            wait = min(FIRST_WAIT * 2.0 ** min(beyond, 32), LONGEST_WAIT)
            record.closed_until = now + wait
            logger.warning(
                "user %s failed %d times to log in and is closed for %g s",
                name,
                record.failures,
                wait,
            )


def _matching_step(secret: str, code: str, now: float) -> int | None:
    """Finds the step that a code belongs to, comparing with all of the window in any case."""
    totp = pyotp.TOTP(secret)
    given = code.encode()
    current = totp.timecode(now)
    found = None
    for step in range(max(current - WINDOW, 0), current + WINDOW + 1):
        if hmac.compare_digest(totp.generate_otp(step).encode(), given):
            found = step
    return found if len(given) == CODE_DIGITS else None
